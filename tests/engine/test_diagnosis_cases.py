"""Every collected log is given the cause that a person gave it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from autotune.engine.diagnosis import Evidence, diagnose
from autotune.engine.failure import Cause, FailureKind

CASES = Path(__file__).parent / "data" / "engine_logs"


def rows() -> list[dict[str, str]]:
    with (CASES / "manifest.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_cause(row: dict[str, str]) -> None:
    log = (CASES / row["file"]).read_text(encoding="utf-8")
    evidence = Evidence(
        exit_code=int(row["exit_code"]) if row["exit_code"] else None,
        was_ready=row["was_ready"] == "1",
        stop_requested=row["stop_requested"] == "1",
    )
    failure = diagnose(log, evidence)
    accepted = {row["expected_cause"], *filter(None, row["accept_also"].split(";"))}
    assert failure.cause in accepted
    assert (failure.kind is FailureKind.NONE) == (failure.cause is Cause.NONE)
    assert failure.cause is Cause.NONE or failure.line
    assert failure.advice
