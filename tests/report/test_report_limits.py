from __future__ import annotations

from typing import Any

import pytest

from autotune.report.limits import Limit, deciding_probe, explain_limit
from autotune.store.result import ProbeDocument, StudyDocument, TrialDocument


def _probe(rate: float, decision: str, p99: float, telemetry: dict[str, Any], **more: Any) -> ProbeDocument:
    return ProbeDocument(
        index=int(rate * 10),
        purpose="refine",
        loop="open",
        rate=rate,
        duration_s=100.0,
        requests=640,
        failed=0,
        misses=0,
        decision=decision,
        p99_latency_s=p99,
        telemetry={
            column: dict.fromkeys(("mean", "max", "last", "delta"), value) for column, value in telemetry.items()
        },
        **more,
    )


def _trial(telemetry: dict[str, Any], *, light_p99: float = 2.0, **more: Any) -> TrialDocument:
    """A light load that passed and a heavier one that failed, where the telemetry was taken."""
    return TrialDocument(
        number=0,
        role="search",  # type: ignore[arg-type]
        arguments=more.pop("arguments", {}),
        outcome="measured",  # type: ignore[arg-type]
        slo_margin=-0.1,
        probes=[_probe(0.5, "pass", light_p99, {}), _probe(2.0, "fail", 11.0, telemetry, **more)],
        engine_facts={"weights_gib": 7.56, "resolved": {"max-num-seqs": 16}},
    )


@pytest.mark.parametrize(
    ("telemetry", "limit", "evidence"),
    [
        ({"engine.kv_cache_usage": 0.99, "engine.preemptions": 12}, Limit.KV_SPACE, "12 preemptions"),
        ({"host.cpu": 0.97}, Limit.HOST, "97.0 % busy"),
        ({"engine.running": 16, "engine.waiting": 4}, Limit.SEQUENCES, "16 of at most 16"),
        # 2,500 steps in 100 s: 40 ms each; 7.56 GiB over 320 GB/s take 25.4 ms = 63 %.
        ({"engine.iterations": 2500, "engine.iteration_tokens": 20_000}, Limit.MEMORY_BANDWIDTH, "63.4 %"),
        # 500 steps of 200 ms with 1,200 tokens: 7.56 GiB * 1,200 / 65 TFLOP/s = 150 ms = 75 %.
        ({"engine.iterations": 500, "engine.iteration_tokens": 600_000}, Limit.COMPUTE, "74.9 %"),
        ({"engine.kv_cache_usage": 0.5}, Limit.UNKNOWN, "nothing in particular"),
    ],
)
def test_limits_follow_from_figures(
    real_document: StudyDocument, telemetry: dict[str, Any], limit: Limit, evidence: str
) -> None:
    explanation = explain_limit(real_document, _trial(telemetry))
    assert explanation.limit is limit
    assert evidence in "; ".join(explanation.evidence)


def test_a_late_client_is_named_before_anything_else(real_document: StudyDocument) -> None:
    trial = _trial({"engine.kv_cache_usage": 1.0}, client={"slip_p99_s": 0.6})
    assert explain_limit(real_document, trial).limit is Limit.CLIENT


def test_latency_of_a_single_request_can_be_the_limit(real_document: StudyDocument) -> None:
    explanation = explain_limit(real_document, _trial({}, light_p99=9.5))
    assert explanation.limit is Limit.LATENCY
    assert "25.0 % of the load" in explanation.evidence[0]


def test_host_load_means_nothing_on_the_simulated_engine(document: StudyDocument) -> None:
    assert explain_limit(document, _trial({"host.cpu": 0.99})).limit is Limit.UNKNOWN


def test_the_lowest_failed_load_decides(document: StudyDocument) -> None:
    trial = document.trials[11]
    probe = deciding_probe(trial)
    assert probe is not None
    assert probe.rate == min(p.rate or 0 for p in trial.probes if p.decision == "fail")


def test_a_trial_without_valid_probes_is_not_explained(document: StudyDocument) -> None:
    trial = _trial({}).model_copy(update={"probes": []})
    assert explain_limit(document, trial).limit is Limit.UNKNOWN
