from __future__ import annotations

from autotune.cli._plan_text import plan_text

PLAN = {
    "study": "t4-qwen3-4b-chat",
    "engine": {"kind": "simulated", "version": "0.1.0", "why": "no NVIDIA T4 with a vLLM here"},
    "gpu": "NVIDIA T4",
    "model": "qwen3-4b",
    "workload": {"input": "256:768", "output": "64:192"},
    "more_workloads": [],
    "slo": {"p99_latency": "10s", "p99_ttft": "500ms"},
    "objective": "capacity",
    "load": "search for capacity",
    "budget": {"trials": 1, "time_s": 7200.0},
    "space": {
        "parameters": {
            "max-num-seqs": {"type": "int", "low": 2, "high": 256, "values": [2, 16, 256], "default": 256},
            "async-scheduling": {"type": "choice", "values": [True, False], "default": True},
        },
        "fixed": {"max-model-len": 1024},
    },
    "configurations": 5280,
    "default_refused": "oom_kv_cache: too long",
    "folder": "studies/t4-qwen3-4b-chat",
    "storage": "sqlite:///studies/autotune.db",
}


def test_a_dry_run_is_told_in_words() -> None:
    text = plan_text(PLAN)
    assert "{" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for expected in (
        "engine SIMULATED (no NVIDIA T4 with a vLLM here)",
        "objective capacity with p99_latency <= 10s and p99_ttft <= 500ms",
        "budget 1 trial, no new trial after 2h",
        "varies 5,280 configurations",
        "max-num-seqs: 2 to 256, 3 values (default 256)",
        "async-scheduling: true, false (default true)",
        "fixed max-model-len 1024",
        "vLLM's defaults not expected to run here: oom_kv_cache: too long",
    ):
        assert expected in lines
