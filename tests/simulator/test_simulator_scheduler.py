"""The scheduler as a state machine: hand-made cases, and a fuzzed one against its own bookkeeping."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog import load_gpu, load_model
from autotune.simulator.arguments import parse_arguments
from autotune.simulator.options import EngineOptions, resolve_options
from autotune.simulator.scheduler import Scheduler
from autotune.simulator.sequence import Sequence, State


def options(*words: str) -> EngineOptions:
    return resolve_options(parse_arguments(["qwen3-4b", *words]), load_gpu("l4"), load_model("qwen3-4b"))


def run_to_end(scheduler: Scheduler, limit: int = 100_000) -> int:
    steps = 0
    while scheduler.has_work:
        scheduler.step()
        steps += 1
        assert steps < limit, "the scheduler does not end"
    return steps


def test_a_prompt_is_chunked_and_each_later_step_gives_one_token():
    scheduler = Scheduler(options("--max-num-batched-tokens=256"), 100, 1600)
    sequence = Sequence(1, 600, 5)
    scheduler.add(sequence)
    chunks = [scheduler.step() for _ in range(3)]
    assert [plan.chunk_tokens for plan in chunks] == [256, 256, 88]
    assert [len(plan.first_tokens) for plan in chunks] == [0, 0, 1]
    assert chunks[1].chunk_pairs == 256 * (256 + 128), "each query sees what came before it and half of its chunk"
    assert run_to_end(scheduler) == 4
    assert sequence.state is State.FINISHED
    assert scheduler.pool.used == 0


def test_decodes_come_before_prefill_in_the_budget():
    scheduler = Scheduler(options("--max-num-batched-tokens=64", "--max-num-seqs=8"), 100, 1600)
    first, second = Sequence(1, 10, 50), Sequence(2, 200, 5)
    scheduler.add(first)
    scheduler.step()
    scheduler.add(second)
    plan = scheduler.step()
    assert plan.decodes == 1
    assert plan.chunk_tokens == 63


def test_the_sequence_limit_holds():
    scheduler = Scheduler(options("--max-num-seqs=2"), 1000, 1600)
    for number in range(5):
        scheduler.add(Sequence(number, 10, 20))
    scheduler.step()
    assert len(scheduler.running) == 2
    assert len(scheduler.waiting) == 3
    run_to_end(scheduler)


def test_the_latest_sequence_is_preempted_and_recomputed():
    scheduler = Scheduler(options("--no-enable-prefix-caching"), 8, 128)
    early, late = Sequence(1, 48, 60), Sequence(2, 48, 60)
    scheduler.add(early)
    scheduler.add(late)
    preempted: list[Sequence] = []
    while scheduler.has_work:
        preempted += scheduler.step().preempted
    assert preempted == [late], "6 blocks are taken at once, the seventh and eighth by both, then one must go"
    assert late.preemptions == 1
    assert early.generated == late.generated == 60


def test_a_preempted_sequence_finds_its_blocks_in_the_prefix_cache():
    cached = Scheduler(options(), 8, 128)
    for number in (1, 2):
        cached.add(Sequence(number, 48, 60))
    plans = []
    while cached.has_work:
        plans.append(cached.step())
    resumed = [plan for plan in plans[1:] if plan.scheduled]
    assert len(resumed) == 1
    plan = resumed[0]
    assert plan.chunk_context == 16, "of its four full blocks one was not taken by the other sequence"
    assert plan.chunk_tokens == plan.scheduled[0].prompt_tokens + 17 - 16


def test_a_shared_prefix_is_computed_once():
    scheduler = Scheduler(options(), 100, 1600)
    keys = list(range(1000, 1010))
    scheduler.add(Sequence(1, 160, 2, keys=keys))
    run_to_end(scheduler)
    scheduler.add(Sequence(2, 160, 2, keys=keys))
    plan = scheduler.step()
    assert plan.chunk_tokens == 16, "the block with the last token is computed again"
    assert scheduler.prefix_hits == 144
    run_to_end(scheduler)
    assert scheduler.reset_prefix_cache()
    scheduler.add(Sequence(3, 160, 2, keys=keys))
    assert scheduler.step().chunk_tokens == 160
    assert not scheduler.reset_prefix_cache(), "not while something runs"


def test_long_prefill_threshold_and_interval():
    scheduler = Scheduler(options("--long-prefill-token-threshold=100"), 100, 1600)
    scheduler.add(Sequence(1, 250, 1))
    assert [scheduler.step().chunk_tokens for _ in range(3)] == [100, 100, 50]
    spaced = Scheduler(options("--prefill-schedule-interval=4"), 100, 1600)
    spaced.add(Sequence(1, 10, 40))
    spaced.step()
    spaced.add(Sequence(2, 10, 2))
    admitted = next(number for number in range(2, 20) if spaced.step().scheduled)
    assert admitted % 4 == 0


def test_without_chunks_a_prompt_waits_for_a_step_of_its_own():
    scheduler = Scheduler(options("--no-enable-chunked-prefill", "--max-model-len=1024"), 200, 1024)
    assert scheduler.options.max_num_batched_tokens == 2048
    scheduler.add(Sequence(1, 900, 3))
    scheduler.add(Sequence(2, 900, 3))
    scheduler.add(Sequence(3, 900, 3))
    assert [len(scheduler.step().scheduled) for _ in range(2)] == [2, 1]
    run_to_end(scheduler)


def test_a_sequence_that_can_never_fit_is_refused():
    scheduler = Scheduler(options(), 4, 64)
    with pytest.raises(ValueError, match="more KV cache than there is"):
        scheduler.add(Sequence(1, 60, 10))


REQUESTS = st.lists(
    st.tuples(st.integers(1, 300), st.integers(1, 80), st.integers(0, 6), st.integers(0, 40)), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    blocks=st.integers(25, 120),
    seqs=st.integers(1, 12),
    batched=st.integers(16, 512),
    caching=st.booleans(),
    chunked=st.booleans(),
    reserve=st.booleans(),
    threshold=st.sampled_from([0, 7, 64]),
    watermark=st.sampled_from([0.0, 0.1]),
    aborts=st.sets(st.integers(0, 24), max_size=6),
)
def test_fuzzed_it_ends_loses_nothing_and_returns_every_block(
    requests, blocks, seqs, batched, caching, chunked, reserve, threshold, watermark, aborts
):
    words = [f"--max-num-seqs={seqs}", f"--max-num-batched-tokens={max(seqs, batched)}"]
    words += [f"--long-prefill-token-threshold={threshold}", f"--watermark={watermark}", "--max-model-len=384"]
    words += ["--enable-prefix-caching" if caching else "--no-enable-prefix-caching"]
    words += ["--scheduler-reserve-full-isl" if reserve else "--no-scheduler-reserve-full-isl"]
    if not chunked:
        words = [word for word in words if "batched" not in word] + ["--no-enable-chunked-prefill"]
    scheduler = Scheduler(options(*words), blocks, 384)
    sequences = []
    for number, (prompt, output, family, wait) in enumerate(requests):
        for _ in range(wait if scheduler.has_work else 0):
            scheduler.step()
        keys = [family * 1000 + position for position in range(prompt // 16)] if family else []
        sequences.append(Sequence(number, prompt, output, keys=keys))
        scheduler.add(sequences[-1])
    for number in aborts & set(range(len(sequences))):
        scheduler.abort(sequences[number])
    computed = 0
    steps = 0
    while scheduler.has_work:
        assert_books(scheduler)
        plan = scheduler.step()
        assert plan.tokens <= max(seqs, scheduler.options.max_num_scheduled_tokens)
        assert plan.tokens > 0, "a step with work does some"
        assert len(scheduler.running) <= seqs
        computed += plan.sampled
        steps += 1
        assert steps < 20_000
    for sequence in sequences:
        assert sequence.state in {State.FINISHED, State.ABORTED}
        if sequence.state is State.FINISHED:
            assert sequence.generated == sequence.target
    assert scheduler.pool.used == 0
    assert scheduler.decoding == 0
    assert not any(scheduler._residues)
    assert scheduler._decode_context == 0


def assert_books(scheduler: Scheduler) -> None:
    """Recount from the sequences what the scheduler keeps as counts."""
    decoding = [s for s in scheduler.running.values() if s.state is State.DECODE]
    held = [s.computed + scheduler.steps - s.anchor_step for s in decoding]
    assert scheduler.decoding == len(decoding)
    assert scheduler._decode_context == sum(held)
    size = scheduler.block_size
    used = sum(math.ceil(tokens / size) for tokens in held)
    used += sum(len(s.keyed) + s.plain_blocks for s in scheduler.running.values() if s.state is State.PREFILL)
    shared = sum(owners - 1 for owners in scheduler.pool._owners.values())
    assert scheduler.pool.used == used - shared


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 200)), min_size=1, max_size=12),
    blocks=st.integers(30, 200),
)
def test_skipping_quiet_steps_changes_nothing(requests, blocks):
    def play(skip: bool) -> list[tuple[int, int]]:
        scheduler = Scheduler(options("--max-num-seqs=4"), blocks, 400)
        for number, (prompt, output) in enumerate(requests):
            scheduler.add(Sequence(number, prompt, output))
        ends = []
        while scheduler.has_work:
            quiet = scheduler.quiet_steps() if skip else 0
            if quiet:
                scheduler.skip_quiet(quiet)
                continue
            plan = scheduler.step()
            ends += [(sequence.id, plan.number) for sequence in plan.finished]
        return ends

    assert play(True) == play(False)
