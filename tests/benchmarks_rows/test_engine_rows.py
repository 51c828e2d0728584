"""The measuring of rows, run as its users run it, against a server that is not vLLM but streams like it."""

from __future__ import annotations

import csv
import gzip
import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_engine.py")
LENGTHS = {"input": 20, "output": 8}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(plan: dict[str, object], folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    command = [sys.executable, "-m", "benchmarks.engine_rows", str(path), "--out", str(folder / "out")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def read_csv(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(text.splitlines()))


@pytest.mark.alone
def test_a_short_plan_gives_a_row_for_each_load(tmp_path: Path) -> None:
    plan = {
        "model": "fake",
        "model_label": "no model",
        "command": [sys.executable, str(FAKE), "serve"],
        "entry": "fake_engine:main",
        "preload": ["fake_engine"],
        "env": {"PYTHONPATH": str(FAKE.parent)},
        "port": free_port(),
        "clients": 2,
        "warmup": [{"closed": 2, **LENGTHS, "ramp_s": 0.1, "measure_s": 0.2}],
        "engines": [
            {
                "name": "first",
                "flags": {"max-num-seqs": 64, "enforce-eager": True},
                "loads": [
                    {"closed": 3, **LENGTHS, "ramp_s": 0.3, "measure_s": 1.5, "raw": True},
                    {"open": 20, **LENGTHS, "ramp_s": 0.2, "measure_s": 1, "drain_s": 10, "fixed": True, "raw": True},
                ],
            },
            {"name": "second", "preload": True, "loads": [{"closed": 1, **LENGTHS, "ramp_s": 0.2, "measure_s": 1}]},
        ],
    }
    done = measure(plan, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    rows = read_csv(out / "rows.csv")
    assert list(rows[0]) == list(read_csv(ROOT / "benchmarks/data/h200_qwen3_4b.csv")[0])
    assert [(row["engine"], row["load"], row["level"]) for row in rows] == [
        ("first", "closed", "3"),
        ("first", "open", "20"),
        ("second", "closed", "1"),
    ]
    for row in rows:
        assert int(row["requests"]) > 0, row
        assert (row["failed"], row["vllm"], row["model"]) == ("0", "0.24.0", "no model")
        assert (row["kv_tokens"], row["kv_gib"], row["weights_gib"]) == ("873008", "119.89", "7.56")
        assert row["graphs_gib"] == ""
    closed, opened, preloaded = rows
    assert json.loads(closed["flags"]) == {"max-num-seqs": 64, "enforce-eager": True}
    assert (closed["input_tokens"], opened["output_tokens"]) == ("uniform 10..30", "fixed 8")
    assert closed["start_mode"] == "no compilation"
    assert preloaded["start_mode"] == "no compilation, imports done before"
    assert float(closed["kv_usage_mean"]) == 0.25

    raw = read_csv(out / "00-first" / "requests-first-closed3-20x8-1.csv.gz")
    whole = [request for request in raw if request["status"] == "0"]
    assert {int(request["output"]) for request in whole} <= set(range(4, 13))
    assert {int(request["prompt"]) for request in whole} <= set(range(10, 31))
    assert all(request["output"] == request["chunks"] for request in whole)
    assert float(closed["output_tok_s"]) == pytest.approx(tokens_inside(raw, 0.3, 1.8) / 1.5, rel=0.01)
    in_window = [r for r in whole if 0.3 <= float(r["last"]) < 1.8]
    assert int(closed["requests"]) == pytest.approx(len(in_window), abs=1)  # the file rounds to 0.1 ms

    arrivals = read_csv(out / "00-first" / "requests-first-open20-20x8-1.csv.gz")
    judged = [r for r in arrivals if 0.2 <= float(r["scheduled"]) < 1.2 and r["status"] == "0"]
    latencies = [float(r["last"]) - float(r["scheduled"]) for r in judged]
    assert float(opened["latency_p90_s"]) == pytest.approx(np.quantile(latencies, 0.9), abs=2e-4)


def tokens_inside(raw: list[dict[str, str]], begin: float, end: float) -> float:
    total = 0.0
    for request in raw:
        first, last = float(request["first"]), float(request["last"])
        if first < end and last > begin:
            tokens = int(request["chunks"])
            total += tokens * (min(last, end) - max(first, begin)) / max(last - first, 1e-9)
    return total


def test_a_misspelt_key_of_the_plan_is_named(tmp_path: Path) -> None:
    load = {"closed": 1, **LENGTHS, "measure": 3}
    done = measure({"model": "fake", "engines": [{"name": "first", "loads": [load]}]}, tmp_path)
    assert done.returncode == 2
    assert "engines.0.loads.0.measure" in done.stderr
    assert not (tmp_path / "out").exists()
