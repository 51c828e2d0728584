from __future__ import annotations

from autotune.cli import studies
from autotune.cli.console import _fitting


def test_a_narrow_list_of_studies_still_says_which_are_simulated() -> None:
    rows = [["a" * 40, "a100-80gb", "m" * 30, "SIMULATED", "25", "no-feasible-configuration", "+39.5 %", "x" * 22]]
    kept = [studies._COLUMNS[index].title for index in _fitting(studies._COLUMNS, rows, 80)]
    assert kept == ["study", "engine", "verdict", "gain"]
