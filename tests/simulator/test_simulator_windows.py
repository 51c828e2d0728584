"""Models whose layers do not all see the whole context: windows and states in memory, blocks and time."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.catalog import ModelShape, load_gpu, load_model
from autotune.simulator.engine_model import EngineModel, StartError, build_engine_model
from autotune.simulator.kv_layout import KvLayout, kv_layout
from autotune.simulator.scheduler import Scheduler
from autotune.simulator.sequence import Sequence
from autotune.simulator.virtual import simulate_load
from autotune.spec import LoadLevel

GEMMA = load_model("gemma-3-4b-it")
TOKEN_OF_LAYER = 2 * 4 * 256 * 2
"""Bytes: keys and values of four heads of 256, in bfloat16."""
SAME_BUT_GLOBAL = GEMMA.model_copy(update={"sliding_window": None, "full_attention_layers": None})


def engine(model: ModelShape = GEMMA, **arguments: bool | int | float | str) -> EngineModel:
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    return build_engine_model(load_gpu("a10g"), model, {"max-model-len": 32768} | named)


def layout(step_tokens: int = 2048) -> KvLayout:
    return kv_layout(GEMMA, block_size=16, value_bytes=2.0, ranks=1, step_tokens=step_tokens)


def test_what_a_long_sequence_needs_is_what_vllm_reckons() -> None:
    """By hand from ``SlidingWindowSpec``: blocks of 16 tokens in 5 layers that grow and 29 that keep 1,024 tokens."""
    kv = layout()
    block = 16 * TOKEN_OF_LAYER
    assert kv.block_bytes == 5 * block
    windows = 29 * ((1024 - 1 + 2048 + 15) // 16 + 1) * block
    assert kv.longest_blocks(131072) * kv.block_bytes == pytest.approx(131072 // 16 * 5 * block + windows, rel=1e-3)
    assert kv.fixed_blocks(131072) * kv.block_bytes == pytest.approx(29 * 1024 * TOKEN_OF_LAYER, rel=1e-2)
    assert kv.fixed_blocks(100) * kv.block_bytes == pytest.approx(29 * 100 * TOKEN_OF_LAYER, rel=3e-2)


def test_the_longest_fitting_length_is_the_longest_that_fits() -> None:
    kv = layout()
    for blocks in (10, 500, 1500, 9000):
        length = kv.longest_fitting(blocks, 131072)
        assert length == 131072 or kv.longest_blocks(length + 1) > blocks
        assert length == 0 or kv.longest_blocks(length) <= blocks


def test_windows_make_room_for_more_sequences_of_long_contexts() -> None:
    """29 of 34 layers keep 1,024 tokens (and a batch of 2,048 while they are computed) instead of 32,768."""
    local, full = engine(), engine(SAME_BUT_GLOBAL)
    assert local.kv_gib == full.kv_gib
    expected = 34 * 32768 / (5 * 32768 + 29 * (1023 + 2048))
    assert local.max_concurrency / full.max_concurrency == pytest.approx(expected, rel=0.01)
    assert local.kv_tokens == pytest.approx(local.max_concurrency * 32768, abs=1)


def test_a_context_that_fits_only_because_of_windows() -> None:
    long = {"max_model_len": 131072}
    with pytest.raises(StartError, match="KV cache is needed"):
        engine(SAME_BUT_GLOBAL, **long)
    assert engine(**long).max_concurrency > 1


def test_decoding_far_beyond_the_window_reads_the_window_only() -> None:
    """At 100,000 tokens the local layers read a hundredth of what they would read without a window."""
    local, full = engine().physics, engine(SAME_BUT_GLOBAL).physics
    empty = local.decode_time(1, 0)
    assert empty == full.decode_time(1, 0)
    cost = (local.decode_time(1, 100_000) - empty) / (full.decode_time(1, 100_000) - empty)
    assert cost == pytest.approx((5 + 29 * 1024 / 100_000) / 34, rel=0.02)
    within = {"sequences": 4, "context": 4 * 500}
    assert local.decode_time(**within) == pytest.approx(full.decode_time(**within), rel=1e-9)


def test_a_long_prompt_is_quicker_with_windows_and_a_short_one_is_not() -> None:
    local, full = engine().physics, engine(SAME_BUT_GLOBAL).physics
    late_chunk = {"decodes": 0, "context": 0, "chunk_tokens": 2048, "sampled": 0, "chunk_context": 30_000}
    pairs = 2048 * (30_000 + 1024)
    assert local.mixed_time(pairs=pairs, **late_chunk) < full.mixed_time(pairs=pairs, **late_chunk)
    short = {"decodes": 0, "context": 0, "chunk_tokens": 512, "sampled": 1, "chunk_context": 0, "pairs": 512 * 256}
    assert local.mixed_time(**short) == pytest.approx(full.mixed_time(**short), rel=1e-9)


def test_windows_are_taken_at_admission_and_given_back() -> None:
    local = engine(max_num_seqs=8)
    held = layout().fixed_blocks(4096 + 10)
    scheduler = Scheduler(local.options, 2 * (held + 257 + 8), 32768, local.memory.kv.fixed_blocks)
    for number in range(3):
        scheduler.add(Sequence(number, 4096, 10))
    while scheduler.has_work:
        scheduler.step()
        assert len(scheduler.running) <= 2, "a third one does not fit beside the windows of two"
        used = sum(s.fixed_blocks for s in scheduler.running.values())
        assert used == held * len(scheduler.running)
    assert scheduler.pool.used == 0


def test_long_contexts_are_answered_faster_with_windows() -> None:
    count = 24
    runs = [
        simulate_load(engine(model), LoadLevel.closed(12), np.full(count, 12_000), np.full(count, 200), seed=1)
        for model in (GEMMA, SAME_BUT_GLOBAL)
    ]
    assert all(run.done.all() for run in runs)
    assert runs[0].ended < 0.8 * runs[1].ended
    assert runs[0].preemptions <= runs[1].preemptions


def test_states_are_counted_and_grow_with_nothing() -> None:
    """Of 48 layers 12 have a KV cache; the others keep 100 MiB of state for each sequence."""
    model = load_model("qwen3-4b").model_copy(update={"layers": 48, "stateful_layers": 36, "state_bytes": 100 * 2**20})
    kv = kv_layout(model, block_size=16, value_bytes=2.0, ranks=1, step_tokens=2048)
    assert kv.block_bytes == 12 * 16 * 2 * 8 * 128 * 2
    assert kv.fixed_blocks(1) == kv.fixed_blocks(100_000) == -(-100 * 2**20 // int(kv.block_bytes))
