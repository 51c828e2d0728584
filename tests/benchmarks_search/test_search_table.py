"""The measure of the search benchmark, on rows written by hand."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def table() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("_search_table")
    finally:
        sys.path.remove(str(BENCHMARKS))


def row(policy: str, *curve: tuple[float, int, float], seed: int = 0) -> dict[str, object]:
    last = curve[-1][2] if curve else 0.0
    return {
        "system": "t4-chat", "seed": seed, "policy": policy, "default_quality": 0.8, "curve": list(curve),
        "quality": last, "search_s": 10.0, "total_s": 20.0, "launches": 3, "failures": 0, "error": 0.01,
        "arguments": {}, "tuned": True, "spent_s": {}, "cpu_s": 1.0,
    }  # fmt: skip


def test_time_counts_only_what_stays_good(table: ModuleType) -> None:
    left_again = row("ours", (10.0, 1, 0.99), (20.0, 2, 0.9), (30.0, 3, 0.985))
    assert table.time_to(left_again, 0.98) == 30.0
    assert math.isinf(table.time_to(row("ours", (10.0, 1, 0.99), (20.0, 2, 0.97)), 0.98))


def test_who_never_gets_there_has_infinite_time(table: ModuleType) -> None:
    good, better, poor = row("ours", (10.0, 1, 1.0)), row("random", (40.0, 4, 0.99)), row("random", (5.0, 1, 0.9))
    assert table.time_ratio(good, better) == pytest.approx(0.25)
    assert table.time_ratio(good, poor) == 0.0
    assert math.isinf(table.time_ratio(poor, good))
    assert table.time_ratio(poor, poor) is None


def test_medians_keep_infinity_and_leave_out_the_unknown(table: ModuleType) -> None:
    assert table.median([None, 1.0, 3.0]) == 2.0
    assert math.isinf(table.median([1.0, math.inf]))
    assert table.median([0.0, 0.5, math.inf]) == 0.5
    assert table.median([None]) is None


def test_the_table_counts_who_got_there(table: ModuleType) -> None:
    rows = [
        row("ours", (10.0, 1, 1.0)),
        row("ours", (10.0, 1, 0.99), seed=1),
        row("random", (40.0, 4, 0.99)),
        row("random", (5.0, 1, 0.9), seed=1),
    ]
    figures = table.summarise(rows)["table"]["random"]
    assert (figures["both_reached"], figures["only_ours_reached"], figures["none_reached"]) == (1, 1, 0)
    assert figures["our_time_over_theirs"] == pytest.approx(0.125)
    assert figures["our_time_where_both"] == pytest.approx(0.25)
    assert "| t4-chat | 0.800 |" in table.markdown(rows)


def test_finished_runs_are_read_and_a_torn_line_is_not(table: ModuleType, tmp_path: Path) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        search = importlib.import_module("search")
    finally:
        sys.path.remove(str(BENCHMARKS))
    file = tmp_path / "runs.jsonl"
    file.write_text(json.dumps(row("ours", (1.0, 1, 0.5))) + "\n" + json.dumps(row("random", (1.0, 1, 0.5)))[:40])
    assert [found["policy"] for found in search.read_rows([file])] == ["ours"]
