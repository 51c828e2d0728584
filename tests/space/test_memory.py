"""The memory model against figures of real engines, and its shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.catalog import list_gpus, list_models, load_gpu, load_model
from autotune.space import MemoryModel
from autotune.space._demand import captured_graphs
from autotune.spec import ArgumentValue, Workload

CHAT = Workload(input_tokens="256:768", output_tokens="128:384")
Arguments = dict[str, ArgumentValue]


def model_of(gpu: str, model: str, version: str | None = None) -> MemoryModel:
    return MemoryModel(load_gpu(gpu), load_model(model), vllm_version=version)


#: vLLM 0.24 on an H200, Qwen3-4B shape, bf16, gpu-memory-utilization unset: arguments, KV cache in GiB and tokens,
#: CUDA graphs in GiB (benchmarks/data/h200_qwen3_4b.csv). Weights 7.56 GiB in all.
H200: list[tuple[Arguments, float, int, float]] = [
    ({}, 119.89, 873_008, 1.00),
    ({"max-num-seqs": 256, "max-num-batched-tokens": 2048}, 120.58, 878_000, 0.61),
    ({"max-num-seqs": 64}, 120.22, 875_408, 0.24),
    ({"kv-cache-dtype": "fp8"}, 119.89, 1_746_016, 1.00),
    ({"enforce-eager": True}, 119.89, 873_008, 0.0),
]


@pytest.mark.parametrize(("arguments", "kv_gib", "kv_tokens", "graphs_gib"), H200)
def test_the_measured_h200_before_any_start(
    arguments: Arguments, kv_gib: float, kv_tokens: int, graphs_gib: float
) -> None:
    predicted = model_of("h200", "qwen3-4b", "0.24.0").predict(arguments, CHAT)
    assert predicted.fits
    assert predicted.weights_gib == pytest.approx(7.56, rel=0.01)
    assert predicted.kv_gib == pytest.approx(kv_gib, rel=0.005)
    assert predicted.kv_tokens == pytest.approx(kv_tokens, rel=0.005)
    assert predicted.graphs_gib == pytest.approx(graphs_gib, abs=0.25)


@pytest.mark.parametrize(("arguments", "kv_gib", "kv_tokens", "graphs_gib"), H200)
def test_the_measured_h200_after_one_start(
    arguments: Arguments, kv_gib: float, kv_tokens: int, graphs_gib: float
) -> None:
    """The default was started; the others are predicted within 0.2 GiB of what they then had."""
    memory = model_of("h200", "qwen3-4b", "0.24.0")
    memory.calibrate({}, weights_gib=7.56, kv_gib=119.89, graphs_gib=1.0, kv_tokens=873_008)
    predicted = memory.predict(arguments, CHAT)
    assert predicted.weights_gib == pytest.approx(7.56, abs=0.01)
    assert predicted.kv_gib == pytest.approx(kv_gib, abs=0.2)
    assert predicted.kv_tokens == pytest.approx(kv_tokens, rel=0.002)


def test_a_log_of_vllm_0_22() -> None:
    """Qwen2.5-7B on a 44.4 GiB card at 0.95, 128 sequences, 2,048 tokens: 14.29 GiB of weights, 26.32 GiB of KV
    cache = 492,912 tokens, graphs 0.31 GiB in 35 + 19 captures."""
    arguments: Arguments = {"gpu-memory-utilization": 0.95, "max-num-seqs": 128, "max-model-len": 4096}
    predicted = model_of("l40s", "qwen2.5-7b-instruct").predict(arguments, CHAT)
    assert predicted.weights_gib == pytest.approx(14.29, rel=0.01)
    assert predicted.kv_gib == pytest.approx(26.32, rel=0.03)
    assert predicted.kv_tokens / predicted.kv_gib == pytest.approx(492_912 / 26.32, rel=0.001)
    assert predicted.graphs_gib == pytest.approx(0.31, abs=0.06)


@pytest.mark.parametrize(
    ("arguments", "sizes", "whole"),
    [
        ({"max-num-seqs": 128, "max-num-batched-tokens": 2048}, 35, 19),
        ({"max-num-seqs": 256, "max-num-batched-tokens": 2048}, 51, 35),
        ({"max-num-seqs": 1024, "max-num-batched-tokens": 8192}, 51, 51),
        ({"max-num-seqs": 8, "max-num-batched-tokens": 2048}, 5, 4),
        ({"max-num-seqs": 256, "max-num-batched-tokens": 2048, "enforce-eager": True}, 0, 0),
    ],
)
def test_captured_graphs_are_vllms(arguments: Arguments, sizes: int, whole: int) -> None:
    """The first two as vLLM logs them ("PIECEWISE=35 (largest=256), FULL=19 (largest=128)"; 51 and 35)."""
    sequences, tokens = arguments["max-num-seqs"], arguments["max-num-batched-tokens"]
    assert isinstance(sequences, int)
    assert isinstance(tokens, int)
    assert captured_graphs(load_gpu("l40s"), arguments, sequences, tokens) == (sizes, whole)


@pytest.mark.parametrize(
    ("gpu", "model", "arguments", "reason"),
    [
        ("t4", "qwen3-4b", {}, "oom_kv_cache"),
        ("t4", "qwen3-4b", {"max-model-len": 2048}, ""),
        ("t4", "qwen3-4b-thinking-2507", {}, "oom_kv_cache"),
        ("a10g", "qwen3-4b-instruct-2507", {}, "oom_kv_cache"),
        ("rtx4090", "nanbeige4.1-3b", {}, "oom_kv_cache"),
        ("rtx4090", "nanbeige4.1-3b", {"max-model-len": 8192}, ""),
        ("t4", "qwen3-8b", {"max-model-len": 2048}, "oom_weights"),
        ("t4", "qwen3-8b", {"max-model-len": "auto"}, "oom_weights"),
        ("t4", "qwen3-4b", {"max-model-len": "auto"}, ""),
        ("t4", "qwen3-4b", {"max-model-len": 2048, "gpu-memory-utilization": 1.0}, "gpu_memory_busy"),
        ("t4", "qwen3-4b", {"max-model-len": 2048, "gpu-memory-utilization": 0.5}, "oom_kv_cache"),
        ("t4", "qwen3-4b", {"max-num-batched-tokens": 262144, "max-model-len": 2048}, "oom_activation"),
        ("t4", "qwen3-4b", {"max-model-len": 2048, "kv-cache-memory-bytes": 10 * 2**30}, "oom_cudagraph"),
        ("t4", "qwen3-4b", {"max-model-len": 2048, "kv-cache-memory-bytes": 2**28}, "oom_kv_cache"),
        ("t4", "qwen3-4b", {"max-model-len": 2048, "kv-cache-memory-bytes": 4 * 2**30}, ""),
    ],
)
def test_what_fits_and_why_not(gpu: str, model: str, arguments: Arguments, reason: str) -> None:
    predicted = model_of(gpu, model).predict(arguments, CHAT)
    assert (predicted.fits, predicted.reason) == (reason == "", reason)
    assert predicted.hopeless is not predicted.fits
    assert bool(predicted.explanation) is not predicted.fits


def test_ready_is_not_safe() -> None:
    """Measured on an H200: this started, and ran out of memory at 1,024 concurrent prompts of 4,096 tokens."""
    arguments: Arguments = {
        "gpu-memory-utilization": 0.995,
        "max-num-seqs": 4096,
        "max-num-batched-tokens": 262144,
        "max-model-len": 8192,
    }
    long = Workload(input_tokens="4096", output_tokens="64")
    assert model_of("h200", "qwen3-4b").predict(arguments, long).reason == "oom_runtime"


def test_graphs_are_outside_the_budget_before_0_21() -> None:
    arguments: Arguments = {"max-model-len": 2048, "gpu-memory-utilization": 0.95}
    old, new = model_of("t4", "qwen3-4b", "0.17.1"), model_of("t4", "qwen3-4b", "0.33.0")
    assert old.predict(arguments, CHAT).kv_gib > new.predict(arguments, CHAT).kv_gib + 0.5
    assert old.predict(arguments, CHAT).reason == "oom_runtime"


def test_an_automatic_length_is_what_the_cache_holds() -> None:
    memory = model_of("t4", "qwen3-4b-thinking-2507")
    predicted = memory.predict({"max-model-len": "auto"}, CHAT)
    assert predicted.fits
    assert predicted.max_model_len == predicted.kv_tokens
    too_long = Workload(input_tokens="200000", output_tokens="64")
    assert memory.predict({"max-model-len": "auto"}, too_long).reason == "oom_kv_cache"


def test_a_context_shorter_than_the_workload_is_invalid() -> None:
    predicted = model_of("t4", "qwen3-4b").predict({"max-model-len": 512}, CHAT)
    assert predicted.hopeless
    assert predicted.reason == "invalid_config"


def test_the_cpu_backend_is_never_refused_for_memory() -> None:
    assert model_of("cpu", "qwen3-32b").predict({}, CHAT).fits


def test_figures_make_the_model_surer_and_a_wrong_catalogue_is_corrected() -> None:
    """A card whose overhead is 0.9 GiB, as one log shows, instead of the 0.35 that we start from."""
    memory = model_of("a10g", "qwen3-4b")
    edge: Arguments = {"max-model-len": 40960, "gpu-memory-utilization": 0.66}
    before = memory.predict(edge, CHAT)
    real = memory.predict({"max-model-len": 2048}, CHAT)
    memory.calibrate({"max-model-len": 2048}, weights_gib=7.56, kv_gib=real.kv_gib - 0.55, graphs_gib=0.7)
    after = memory.predict(edge, CHAT)
    assert after.doubt_gib < before.doubt_gib / 2
    assert after.spare_gib == pytest.approx(before.spare_gib - 0.5, abs=0.15)


def test_outcomes_teach_where_nothing_is_printed() -> None:
    memory = model_of("t4", "qwen3-4b")
    tight: Arguments = {"max-model-len": 2048, "gpu-memory-utilization": 0.95}
    tighter: Arguments = {"max-model-len": 2048, "gpu-memory-utilization": 0.96}
    start = memory.predict(tighter, CHAT).failure_probability
    memory.observe_outcome(tight, CHAT, "oom_runtime")
    after_failure = memory.predict(tighter, CHAT).failure_probability
    assert after_failure > max(0.9, start)
    fortunate = model_of("t4", "qwen3-4b")
    fortunate.observe_outcome(tight, CHAT, None)
    assert fortunate.predict(tighter, CHAT).failure_probability < start
    fortunate.observe_outcome(tight, CHAT, None, least_free_gib=0.01)
    assert fortunate.predict(tighter, CHAT).failure_probability > 0.8


def test_causes_that_are_not_about_memory_teach_nothing() -> None:
    memory = model_of("t4", "qwen3-4b")
    before = memory.predict({}, CHAT)
    memory.observe_outcome({}, CHAT, "port_in_use")
    assert memory.predict({}, CHAT) == before


def test_another_model_on_the_same_gpu_inherits_what_is_the_gpus() -> None:
    first = model_of("t4", "qwen3-4b")
    for _ in range(3):
        first.observe_outcome({"max-model-len": 2048, "gpu-memory-utilization": 0.95}, CHAT, "oom_runtime")
    second, fresh = model_of("t4", "qwen3-1.7b"), model_of("t4", "qwen3-1.7b")
    second.inherit(first)
    tight: Arguments = {"gpu-memory-utilization": 0.95}
    assert second.predict(tight, CHAT).spare_gib < fresh.predict(tight, CHAT).spare_gib
    assert second.predict({}, CHAT).weights_gib == fresh.predict({}, CHAT).weights_gib


gpus = st.sampled_from([gpu for gpu in list_gpus() if gpu.kind == "cuda"])
models = st.sampled_from(list_models())
settings_of = st.fixed_dictionaries(
    {},
    optional={
        "max-num-seqs": st.integers(1, 4096),
        "max-num-batched-tokens": st.integers(4096, 131072),
        "gpu-memory-utilization": st.floats(0.3, 0.99),
        "max-model-len": st.integers(2048, 32768),
        "enforce-eager": st.booleans(),
        "kv-cache-dtype": st.sampled_from(["auto", "fp8"]),
    },
)


@given(gpus, models, settings_of, st.data())
@settings(max_examples=150, deadline=None)
def test_asking_for_more_never_leaves_more_for_the_cache(
    gpu: object, model: object, arguments: Arguments, data: st.DataObject
) -> None:
    """Monotone: in sequences, tokens of a step, context and data type the spare memory for the cache only falls."""
    memory = MemoryModel(gpu, model)  # type: ignore[arg-type]
    more = dict(arguments)
    kind = data.draw(st.sampled_from(["max-num-seqs", "max-num-batched-tokens", "max-model-len", "dtype"]))
    if kind == "dtype":
        more["dtype"] = "float32"
    else:
        value = arguments.get(kind)
        if not isinstance(value, int):
            return
        more[kind] = value * 2
        if kind == "max-num-seqs":
            arguments.setdefault("max-num-batched-tokens", 8192)
            more.setdefault("max-num-batched-tokens", 8192)

    def cache_spare(given_arguments: Arguments) -> float:
        asked = memory.demand(given_arguments, CHAT)
        return next(o.spare for o in memory.outlooks(asked, CHAT) if o.cause == "oom_kv_cache")

    one_graph = 0.04  # vLLM captures max-num-seqs itself beside its grid of sizes, so one graph may come or go
    assert cache_spare(more) <= cache_spare(arguments) + one_graph


@given(gpus, models, settings_of)
@settings(max_examples=150, deadline=None)
def test_predictions_are_finite_and_agree_with_themselves(gpu: object, model: object, arguments: Arguments) -> None:
    predicted = MemoryModel(gpu, model).predict(arguments, CHAT)  # type: ignore[arg-type]
    assert predicted.fits is (predicted.spare_gib >= 0)
    assert not (predicted.hopeless and predicted.fits)
    assert predicted.kv_gib >= 0
    assert predicted.kv_tokens >= 0
    assert 0 <= predicted.failure_probability <= 1
    assert math.isfinite(predicted.spare_gib)
    assert (predicted.reason == "") is predicted.fits
