"""Predictions for ``plan``: what fits, why not, and figures that hang together."""

from __future__ import annotations

import pytest

from autotune.catalog import load_gpu, load_model
from autotune.simulator.engine_model import build_engine_model
from autotune.simulator.prediction import predict, run_workload
from autotune.spec import LengthSpec, LoadLevel, Slo, Workload

QWEN = load_model("qwen3-4b")
CHAT = Workload(input_tokens=LengthSpec.parse("256:768"), output_tokens=LengthSpec.parse("64:192"))
SLO = Slo.from_mapping({"p99_latency": "10s"})


@pytest.mark.parametrize(
    ("gpu", "arguments", "reason", "part"),
    [
        ("t4", {}, "oom_kv_cache", "estimated maximum model length"),
        ("t4", {"max-model-len": 2048, "dtype": "bfloat16"}, "unsupported_hardware", "compute capability"),
        ("t4", {"max-model-len": 2048, "kv-cache-dtype": "fp8"}, "unsupported_hardware", "fp8"),
        ("t4", {"max-model-len": 2048, "gpu-memory-utilization": 1.0}, "gpu_memory_busy", "Free memory"),
        ("t4", {"max-model-len": 2048, "gpu-memory-utilization": 0.5}, "oom_kv_cache", "No available memory"),
        ("t4", {"max-model-len": 2048, "max-num-batched-tokens": 262144}, "oom_activation", "out of memory"),
        ("t4", {"max-model-len": 512}, "invalid_config", "less than 960 tokens"),
        ("t4", {"max-num-seqs": 64, "max-num-batched-tokens": 8}, "invalid_config", "greater than or equal"),
        ("t4", {"swap-space": 4}, "invalid_config", "unrecognized arguments"),
        ("t4", {"max-model-len": 2048, "gpu-memory-utilization": 0.982}, "oom_runtime", "tried to allocate"),
    ],
)
def test_what_does_not_fit_and_why(gpu, arguments, reason, part):
    prediction = predict(load_gpu(gpu), QWEN, CHAT, arguments, LoadLevel.closed(32))
    assert not prediction.fits
    assert prediction.reason == reason
    assert part in prediction.detail
    assert prediction.output_tokens_per_s is None


def test_weights_that_do_not_fit():
    prediction = predict(load_gpu("t4"), load_model("qwen3-32b"), CHAT, {"max-model-len": 2048}, LoadLevel.closed(1))
    assert prediction.reason == "oom_weights"


def test_figures_hang_together():
    arguments = {"max-model-len": 1024, "max-num-seqs": 32}
    prediction = predict(load_gpu("a10g"), QWEN, CHAT, arguments, LoadLevel.closed(16), slo=SLO)
    assert prediction.fits
    assert prediction.slo_met is True
    assert prediction.output_tokens_per_s == pytest.approx(128 * prediction.request_rate, rel=0.06)
    assert prediction.total_tokens_per_s == pytest.approx(640 * prediction.request_rate, rel=0.06)
    assert 0 < prediction.p99_ttft_s < prediction.p50_latency_s < prediction.p99_latency_s < 10
    assert prediction.request_rate == pytest.approx(16 / prediction.p50_latency_s, rel=0.15)


def test_an_open_loop_beyond_capacity_misses_the_objective():
    arguments = {"max-model-len": 1024}
    gpu = load_gpu("t4")
    low = predict(gpu, QWEN, CHAT, arguments, LoadLevel.open(0.3), slo=SLO)
    high = predict(gpu, QWEN, CHAT, arguments, LoadLevel.open(6.0), slo=SLO)
    assert low.slo_met is True
    assert high.slo_met is False
    assert low.request_rate == pytest.approx(0.3, rel=0.1)
    assert high.request_rate < 5.0


def test_the_same_seed_gives_the_same_prediction():
    def once(seed: int) -> float | None:
        return predict(
            load_gpu("l4"), QWEN, CHAT, {"max-model-len": 1024}, LoadLevel.open(2.0), seed=seed
        ).p99_latency_s

    assert once(1) == once(1) != once(2)


def test_engines_are_compared_on_the_same_prompts_and_arrivals():
    runs = [
        run_workload(
            build_engine_model(load_gpu("l4"), QWEN, arguments), CHAT, LoadLevel.open(2.0), requests=50, seed=7
        )
        for arguments in ({"max-model-len": 1024}, {"max-model-len": 1024, "max-num-seqs": 4})
    ]
    assert (runs[0].input_tokens == runs[1].input_tokens).all()
    assert (runs[0].scheduled == runs[1].scheduled).all()


def test_scenarios_lie_within_what_physics_allows():
    """Hand-tuned deployments: 320 tok/s at 4 on an RTX 4090 is possible, 3,980 out at 16 on an A10G is not."""
    gpu = load_gpu("rtx4090")
    short = Workload(input_tokens=LengthSpec.parse(64), output_tokens=LengthSpec.parse("50:200"))
    a = predict(gpu, load_model("nanbeige4.1-3b"), short, {"max-model-len": 4096}, LoadLevel.closed(4))
    assert 320 < a.output_tokens_per_s < 513
    long = Workload(input_tokens=LengthSpec.parse(1024), output_tokens=LengthSpec.parse(512))
    b = predict(
        load_gpu("a10g"), load_model("qwen3-4b-instruct-2507"), long, {"max-model-len": 8192}, LoadLevel.closed(16)
    )
    assert 450 < b.output_tokens_per_s < 1190
    assert b.total_tokens_per_s == pytest.approx(3 * b.output_tokens_per_s, rel=0.1)
