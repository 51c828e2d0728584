"""Makes ``data/result.json``: a study as a T4 search leaves it, with every kind of trial in it.

The figures follow a simple queue (latency grows as load nears capacity), so that curves look as real ones
do; nothing here comes from the program. Run it again after changing it: ``python tests/report/make_result.py``.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from autotune.spec import Slo, StudySpec, Workload
from autotune.store.result import (
    BestDocument,
    Decision,
    EngineDocument,
    Outcome,
    ProbeDocument,
    Role,
    StudyDocument,
    Timings,
    TrialDocument,
    VerdictDocument,
)

FOLDER = Path(__file__).parent / "data"
LIMIT_S = 10.0
OUTPUT_TOKENS = 100
INPUT_TOKENS = 256
_GIB = 2**30


def _telemetry(load: float, seqs: int, duration: float, rate: float) -> dict[str, Any]:
    """Summaries of one probe at ``load`` (share of capacity)."""

    def column(mean: float, high: float, delta: float | None = None) -> dict[str, Any]:
        figures = {"mean": mean, "min": mean * 0.6, "max": high, "last": mean, "delta": delta}
        rounded = {name: None if value is None else float(f"{value:.4g}") for name, value in figures.items()}
        return {**rounded, "samples": int(duration / 2)}

    running = min(seqs, 2 + load * seqs * 0.7)
    waiting = max(0.0, (load - 0.9) * 60)
    return {
        "gpu0.utilization": column(0.7 + 0.28 * min(load, 1), 1.0),
        "gpu0.memory_used_bytes": column(13.2 * _GIB, 13.4 * _GIB),
        "gpu0.memory_total_bytes": column(15.0 * _GIB, 15.0 * _GIB),
        "gpu0.power_w": column(50 + 19 * min(load, 1), 70.4),
        "gpu0.energy_j": column(1e6, 2e6, (50 + 19 * min(load, 1)) * duration),
        "gpu0.temperature_c": column(64, 71),
        "gpu0.sm_clock_mhz": column(1140, 1590),
        "gpu0.throttled": column(0.0, 0.0),
        "engine.running": column(running, min(seqs, running * 1.4)),
        "engine.waiting": column(waiting, waiting * 3),
        "engine.kv_cache_usage": column(min(0.97, 0.2 + 0.6 * load), min(1.0, 0.35 + 0.65 * load)),
        "engine.kv_cache_tokens": column(31_248, 31_248),
        "engine.iterations": column(1e5, 2e5, round(duration / 0.052)),
        "engine.iteration_tokens": column(1e6, 2e6, round(rate * (OUTPUT_TOKENS + INPUT_TOKENS) * duration)),
        "engine.preemptions": column(3, 6, round(max(0.0, load - 0.95) * 80)),
        "engine.generation_tokens": column(1e5, 2e5, rate * OUTPUT_TOKENS * duration),
        "host.cpu": column(0.41, 0.66),
        "host.engine_cpu_seconds": column(80, 120, duration * 0.9),
        "host.own_cpu_seconds": column(8, 12, duration * 0.07),
    }


def _probe(index: int, purpose: str, rate: float, capacity: float, seqs: int, rng: random.Random) -> ProbeDocument:
    load = rate / capacity
    floor = 3.1 + 0.012 * seqs
    p50 = floor / max(0.08, 1 - 0.45 * min(load, 1.35)) * rng.uniform(0.98, 1.02)
    p99 = LIMIT_S * load**2.2 * rng.uniform(0.97, 1.02) + 0.25 * p50 * max(0.0, 1 - load)
    p99 = max(p99, p50 * 1.25)
    passed = load <= 1.0
    requests = 640 if abs(load - 1) < 0.15 else 180
    duration = requests / rate
    misses = round(requests * (0.006 if passed else 0.05 * load))
    ttft = 0.3 + 0.6 * load**2
    return ProbeDocument(
        index=index,
        purpose=purpose,
        loop="open",
        rate=rate,
        realised_rate=rate * rng.uniform(0.97, 1.03),
        duration_s=duration,
        requests=requests,
        failed=0,
        misses=misses,
        decision="pass" if passed else "fail",
        output_tokens_per_s=rate * OUTPUT_TOKENS,
        total_tokens_per_s=rate * (OUTPUT_TOKENS + INPUT_TOKENS),
        p50_latency_s=p50,
        p90_latency_s=(p50 + p99) / 2,
        p99_latency_s=p99,
        p99_interval_s=(p99 * 0.94, p99 * 1.09) if requests >= 300 else (p99 * 0.85, None),
        p99_label=f"p99 of {requests}",
        p50_ttft_s=ttft / 2,
        p99_ttft_s=ttft,
        p50_tpot_s=(p50 - ttft / 2) / OUTPUT_TOKENS,
        p99_tpot_s=(p99 - ttft) / OUTPUT_TOKENS,
        prefix_hit_rate=0.0,
        client={"slip_p99_s": 0.003, "loop_lag_max_s": 0.011, "cpu_seconds": duration * 0.03},
        telemetry=_telemetry(load, seqs, duration, rate),
    )


def _measured(
    number: int,
    role: Role,
    arguments: dict[str, Any],
    capacity: float,
    rng: random.Random,
    *,
    label: str = "",
    dominated: bool = False,
    block: int | None = None,
) -> TrialDocument:
    seqs = int(arguments.get("max-num-seqs", 256))
    shares = (0.62, 1.3) if dominated else (0.5, 1.25, 0.82, 1.06, 0.97)
    if role is Role.CONFIRMATION:
        shares = (0.97, 1.04)
    probes = [
        _probe(i, "bracket" if i < 2 else "refine", round(capacity * share, 4), capacity, min(seqs, 24), rng)
        for i, share in enumerate(shares)
    ]
    best = max((p for p in probes if p.decision == "pass"), key=lambda p: p.rate or 0)
    assert best.rate is not None
    assert best.p99_latency_s is not None
    measured = sum(p.duration_s for p in probes)
    return TrialDocument(
        number=number,
        role=role,
        label=label,
        arguments=arguments,
        outcome=Outcome.MEASURED,
        capacity_rps=best.rate,
        capacity_interval=(best.rate * 0.96, best.rate * 1.05),
        dominated=dominated,
        output_tokens_per_s=best.output_tokens_per_s,
        total_tokens_per_s=best.total_tokens_per_s,
        p50_latency_s=best.p50_latency_s,
        p99_latency_s=best.p99_latency_s,
        p99_interval_s=best.p99_interval_s,
        p99_label=best.p99_label,
        p99_ttft_s=best.p99_ttft_s,
        p99_tpot_s=best.p99_tpot_s,
        slo_margin=math.log(best.p99_latency_s / LIMIT_S),
        requests=sum(p.requests for p in probes),
        timings=Timings(start=68 + 5 * rng.random(), warm_up=12, measure=measured, stop=2.1, other=3.0),
        probes=probes,
        engine_facts={
            "kv_cache_tokens": 31_248,
            "kv_cache_gib": 4.29,
            "weights_gib": 7.56,
            "graphs_gib": 0.4,
            "resolved": {"max-num-seqs": seqs, "max-num-batched-tokens": 2048},
        },
        block=block,
    )


def _failed(number: int, arguments: dict[str, Any], outcome: Outcome, reason: str, **more: Any) -> TrialDocument:
    return TrialDocument(
        number=number,
        role=more.pop("role", Role.SEARCH),
        arguments=arguments,
        outcome=outcome,
        reason=reason,
        timings=Timings() if more.get("launched") is False else Timings(start=41.0, stop=2.0),
        **more,
    )


def make() -> StudyDocument:
    """The whole study."""
    rng = random.Random(7)
    definition = StudySpec(
        name="t4-qwen3-4b",
        gpu="t4",
        model="qwen3-4b",
        workload=Workload(name="chat", description="Short chat turns", input_tokens=INPUT_TOKENS, output_tokens=100),  # type: ignore[arg-type]
        slo=Slo.from_mapping({"p99_latency": "10s"}),
        seed=7,
    )
    context = {"max-model-len": 2048}
    winner = {**context, "max-num-seqs": 24, "max-num-batched-tokens": 1024, "gpu-memory-utilization": 0.95}
    second = {**context, "max-num-seqs": 32, "max-num-batched-tokens": 1024}
    default = "vllm-default, context fitted"
    trials = [
        _failed(
            0,
            {},
            Outcome.INFEASIBLE,
            "oom_kv_cache",
            role=Role.BASELINE,
            label="vllm-default",
            detail="ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV"
            " cache is needed, which is larger than the available KV cache memory (4.29 GiB).",
            advice="Lower max-model-len to 31248 or less, or raise gpu-memory-utilization.",
        ),
        _measured(1, Role.BASELINE, context, 1.10, rng, label=default),
        _measured(
            2,
            Role.BASELINE,
            {**context, "performance-mode": "throughput"},
            1.04,
            rng,
            label="performance-mode throughput",
        ),
        _measured(
            3,
            Role.BASELINE,
            {**context, "performance-mode": "interactivity"},
            1.16,
            rng,
            label="performance-mode interactivity",
        ),
        _measured(4, Role.SEARCH, {**context, "max-num-seqs": 64}, 1.21, rng),
        _failed(
            5,
            {**context, "max-num-seqs": 512, "max-num-batched-tokens": 16384, "gpu-memory-utilization": 0.97},
            Outcome.INFEASIBLE,
            "oom_activation",
            detail="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity"
            " of 14.58 GiB of which 1.03 GiB is free.",
            advice="Lower max-num-batched-tokens or gpu-memory-utilization.",
        ),
        _measured(
            6, Role.SEARCH, {**context, "max-num-seqs": 8, "max-num-batched-tokens": 512}, 0.86, rng, dominated=True
        ),
        _measured(7, Role.SEARCH, {**context, "max-num-seqs": 32}, 1.33, rng),
        _failed(
            8,
            {**context, "max-num-seqs": 48, "max-num-batched-tokens": 2048},
            Outcome.FAULT,
            "port_in_use",
            detail="OSError: [Errno 98] Address already in use",
            advice="Another program took the port between the check and the start; the trial is run again.",
        ),
        _measured(9, Role.SEARCH, second, 1.47, rng),
        _failed(
            10,
            {**context, "max-num-seqs": 256, "max-num-batched-tokens": 32768},
            Outcome.INFEASIBLE,
            "oom_activation",
            launched=False,
            detail="Predicted: activations 3.9 GiB + weights 7.6 GiB + KV cache for one request exceed 13.4 GiB.",
            advice="Lower max-num-batched-tokens.",
        ),
        _measured(11, Role.SEARCH, winner, 1.58, rng),
        _measured(
            12,
            Role.SEARCH,
            {**context, "max-num-seqs": 16, "max-num-batched-tokens": 4096, "enable-prefix-caching": False},
            1.02,
            rng,
            dominated=True,
        ),
        _measured(13, Role.SEARCH, {**winner, "max-num-seqs": 28}, 1.55, rng),
        _failed(
            14,
            {**context, "max-num-seqs": 96, "gpu-memory-utilization": 0.98},
            Outcome.INFEASIBLE,
            "oom_runtime",
            detail="torch.OutOfMemoryError: CUDA out of memory while sampling 96 sequences.",
            advice="Lower gpu-memory-utilization: it was ready, and ran out of memory under load.",
        ),
        _measured(15, Role.SEARCH, {**winner, "max-num-batched-tokens": 1536}, 1.51, rng),
    ]
    number = len(trials)
    for block in range(3):
        for label, arguments, capacity in ((default, context, 1.11), ("", winner, 1.54), ("", second, 1.46)):
            trials.append(
                _measured(
                    number,
                    Role.CONFIRMATION,
                    arguments,
                    capacity * rng.uniform(0.985, 1.015),
                    rng,
                    label=label,
                    block=block,
                )
            )
            number += 1
    confirmed = [t for t in trials if t.role is Role.CONFIRMATION and t.arguments == winner]

    def mean(name: str) -> float:
        return sum(getattr(t, name) for t in confirmed) / len(confirmed)

    default_mean = sum(
        t.capacity_rps or 0 for t in trials if t.role is Role.CONFIRMATION and t.arguments == context
    ) / len(confirmed)
    found = trials[11].capacity_rps or 0
    total = Timings()
    for trial in trials:
        total = total + trial.timings
    return StudyDocument(
        study="t4-qwen3-4b",
        created="2026-11-30T09:12:41+00:00",
        finished="2026-11-30T13:47:05+00:00",
        engine=EngineDocument(
            kind="simulated",
            version="0.1.0",
            time_scale=60,
            command=["python", "-m", "autotune.simulator", "serve"],
        ),
        gpu={
            "name": "t4",
            "title": "NVIDIA T4",
            "memory_gib": 15.0,
            "power_w": 70,
        },
        model={"alias": "qwen3-4b", "repository": "Qwen/Qwen3-4B", "architecture": "Qwen3ForCausalLM", "layers": 36},
        slo=definition.slo.to_mapping(),
        workload=definition.workload.model_dump(mode="json"),
        definition=definition.model_dump(mode="json"),
        space={
            "parameters": {
                "max-num-seqs": {"kind": "int", "low": 1, "high": 512, "log": True, "default": 256},
                "max-num-batched-tokens": {"kind": "int", "low": 256, "high": 32768, "log": True, "default": 2048},
                "gpu-memory-utilization": {"kind": "float", "low": 0.8, "high": 0.98, "default": 0.92},
                "enable-prefix-caching": {"kind": "choice", "choices": [True, False], "default": True},
            },
            "fixed": context,
        },
        trials=trials,
        baselines=[0, 1, 2, 3],
        best=BestDocument(
            number=11,
            arguments=winner,
            environment={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
            capacity_rps=mean("capacity_rps"),
            output_tokens_per_s=mean("output_tokens_per_s"),
            total_tokens_per_s=mean("total_tokens_per_s"),
            p50_latency_s=mean("p50_latency_s"),
            p99_latency_s=mean("p99_latency_s"),
            p99_ttft_s=mean("p99_ttft_s"),
            p99_tpot_s=mean("p99_tpot_s"),
            requests=sum(t.requests for t in confirmed),
            confirmed=True,
        ),
        verdict=VerdictDocument(
            decision=Decision.TUNED,
            gain_percent=100 * (mean("capacity_rps") / default_mean - 1),
            interval_95=(32.4, 44.9),
            requests=sum(t.requests for t in trials if t.role is Role.CONFIRMATION),
            noise_percent=1.9,
            winners_curse_percent=100 * (found / mean("capacity_rps") - 1),
            default_capacity_rps=default_mean,
            best_capacity_rps=mean("capacity_rps"),
        ),
        time=total,
        storage="sqlite:///studies/autotune.db",
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    make().write(FOLDER)
