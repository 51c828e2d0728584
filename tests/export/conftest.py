from __future__ import annotations

import pytest

from autotune.store.result import (
    BestDocument,
    Decision,
    EngineDocument,
    Outcome,
    Role,
    StudyDocument,
    Timings,
    TrialDocument,
    VerdictDocument,
)


@pytest.fixture
def document() -> StudyDocument:
    """A small finished study on a real engine."""
    winner = {"max-model-len": 2048, "max-num-seqs": 24, "disable-log-stats": False, "enable-prefix-caching": False}
    return StudyDocument(
        study="t4-qwen3-4b",
        created="2026-11-30T09:12:41+00:00",
        finished="2026-11-30T13:47:05+00:00",
        engine=EngineDocument(kind="vllm", version="0.24.0"),
        gpu={"name": "t4", "title": "NVIDIA T4"},
        model={"alias": "qwen3-4b", "repository": "Qwen/Qwen3-4B"},
        slo={"p99_latency": "10s"},
        workload={"name": "chat", "input_tokens": {"kind": "fixed", "low": 256, "high": 256}},
        definition={"name": "t4-qwen3-4b", "gpu": "t4", "arguments": {"api-key": "sk-verysecret"}},
        space={},
        trials=[
            TrialDocument(
                number=0, role=Role.BASELINE, arguments={}, outcome=Outcome.INFEASIBLE, reason="oom_kv_cache"
            ),
            TrialDocument(
                number=1,
                role=Role.BASELINE,
                arguments={"max-model-len": 2048},
                outcome=Outcome.MEASURED,
                capacity_rps=1.07,
                requests=640,
            ),
            TrialDocument(
                number=2,
                role=Role.SEARCH,
                arguments=winner,
                outcome=Outcome.MEASURED,
                capacity_rps=1.53,
                timings=Timings(start=240.0),
            ),
        ],
        baselines=[0, 1],
        best=BestDocument(
            number=2,
            arguments={**winner, "api-key": "sk-verysecret"},
            environment={"VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_TOKEN": "hf_verysecret"},
            capacity_rps=1.4935,
            output_tokens_per_s=149.35,
            p50_latency_s=5.99,
            p99_latency_s=9.22,
            requests=3840,
            confirmed=True,
        ),
        verdict=VerdictDocument(decision=Decision.TUNED, gain_percent=39.46, interval_95=(32.4, 44.9)),
    )
