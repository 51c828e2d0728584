"""The measured rows agree with the plan and with the records of requests that lie beside them."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def read_csv(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return list(csv.DictReader(text.splitlines()))


def test_each_load_of_the_plan_has_its_row() -> None:
    plan = json.loads((DATA / "h200_qwen3_4b_plan.json").read_text())
    planned = []
    for engine in plan["engines"]:
        for load in engine["loads"]:
            kind = "closed" if "closed" in load else "open"
            window = f"{load['ramp_s']:g}..{load['ramp_s'] + load['measure_s']:g}"
            mean = load["input"]
            lengths = f"uniform {mean // 2}..{mean * 3 // 2}"
            planned.append((engine["name"], engine["flags"], kind, load[kind], lengths, load.get("repeat", 1), window))
    measured = [
        (
            *(row["engine"], json.loads(row["flags"]), row["load"], float(row["level"])),
            *(row["input_tokens"], int(row["repeat"]), row["window_s"]),
        )
        for row in read_csv(DATA / "h200_qwen3_4b.csv")
    ]
    assert measured == planned
    assert len(measured) == 27


@pytest.mark.parametrize("path", sorted((DATA / "requests").glob("*.csv.gz")), ids=lambda path: path.name)
def test_percentiles_follow_from_the_requests(path: Path) -> None:
    engine, load, *_ = path.name.split("-")
    kind = load.rstrip("0123456789")
    row = next(
        row
        for row in read_csv(DATA / "h200_qwen3_4b.csv")
        if (row["engine"], row["load"], row["level"], row["repeat"], row["input_tokens"])
        == (engine, kind, load.removeprefix(kind), "1", "uniform 256..768")
    )
    begin, end = (float(bound) for bound in row["window_s"].split(".."))
    moment = "last" if kind == "closed" else "scheduled"
    judged = [r for r in read_csv(path) if r["status"] == "0" and begin <= float(r[moment]) < end]
    assert len(judged) == int(row["requests"])
    latency = [float(request["last"]) - float(request["scheduled"]) for request in judged]
    ttft = [float(request["first"]) - float(request["scheduled"]) for request in judged]
    for name, values, share in (
        ("latency_p50_s", latency, 0.5),
        ("latency_p90_s", latency, 0.9),
        ("latency_p99_s", latency, 0.99),
        ("ttft_p50_s", ttft, 0.5),
        ("ttft_p99_s", ttft, 0.99),
    ):
        assert float(row[name]) == pytest.approx(np.quantile(values, share), abs=2e-4), name
