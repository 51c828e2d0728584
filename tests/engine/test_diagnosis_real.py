"""Logs of failures that were provoked on real engines: vLLM 0.24 on an H200, vLLM 0.32 on a CPU."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from autotune.engine import Evidence, diagnose

LOGS = Path(__file__).parent / "data" / "real_logs"


def rows() -> list[dict[str, str]]:
    with (LOGS / "manifest.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_cause(row: dict[str, str]) -> None:
    log = (LOGS / row["file"]).read_text(encoding="utf-8")
    ready, stopped = row["was_ready"] == "1", row["stop_requested"] == "1"
    told = Evidence(int(row["exit_code"]), was_ready=ready, stop_requested=stopped)
    assert diagnose(log, told).cause == row["expected_cause"]
    if not stopped:
        assert diagnose(log, Evidence(was_ready=ready)).cause == row["expected_cause"], "the log alone must do"
