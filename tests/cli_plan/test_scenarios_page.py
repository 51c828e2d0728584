"""``docs/scenarios.md``: its commands run, and its tables are what the benchmark prints today."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from autotune.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scenarios.md").read_text()
COMMANDS = re.findall(r"^ +autotune (.*)$", PAGE, re.MULTILINE)
NAMES = ("A", "B", "C")


@pytest.fixture(scope="module")
def scenarios() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("scenarios_benchmark", ROOT / "benchmarks" / "scenarios.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def numbers(row: str) -> list[float]:
    """The figures of a table's line after its flags."""
    cells = row.split("|")[3:-1]
    return [float(re.sub(r"[^0-9.]", "", cell)) for cell in cells if re.search(r"\d", cell)]


@pytest.mark.parametrize("name", NAMES)
def test_the_tables_are_what_is_simulated_today(scenarios: ModuleType, name: str) -> None:
    scenario = next(s for s in scenarios.SCENARIOS if s.name == name)
    section = PAGE.split(f"\n## {name}: ")[1].split("\n## ")[0]
    printed = scenarios.table([scenarios._document(figures) for figures in scenarios.simulated(scenario)]).splitlines()
    head = section.splitlines().index(printed[0])
    shown = section.splitlines()[head : head + len(printed)]
    for now, then in zip(printed, shown, strict=True):
        assert now.split("|")[:3] == then.split("|")[:3]
        assert ("does not start" in now) == ("does not start" in then)
        assert numbers(now) == pytest.approx(numbers(then), rel=0.1), (
            "run benchmarks/scenarios.py, and correct the page"
        )


@pytest.mark.parametrize("name", NAMES)
def test_no_figure_passes_what_physics_allows(scenarios: ModuleType, name: str) -> None:
    """Against limits reckoned by hand: bytes through the memory, bf16 weights read once for all (and KV left out)."""
    by_hand = {"A": 4 * 1008 / 7.0, "B": 16 * 600 / 8.0, "C": 5 * 320 / 8.0}
    scenario = next(s for s in scenarios.SCENARIOS if s.name == name)
    study = scenario.definition()
    gpu, model = scenarios.load_gpu(study.gpu), scenarios.load_model(study.model)
    limit = scenarios.output_limit(gpu, model, scenario.workload, scenario.users)
    assert 0.5 * by_hand[name] < limit < by_hand[name]
    for figures in scenarios.simulated(scenario):
        assert (figures.found.output_tokens_per_s or 0.0) < limit


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 12


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [str(ROOT / word) if word.startswith("studies/") else word for word in shlex.split(command)]
    if words[0] == "search":
        words += ["--dry-run", "--engine", "simulated"]
    elif "--set" not in words:
        words += ["--configurations", "2", "--workers", "1"]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    if words[0] == "plan":
        (prediction,) = document["predictions"]
        assert prediction["simulated"] is True
        assert prediction["fits"] is ("max-model-len=262144" not in command)
