from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table

from autotune.cli.progress import LiveDisplay, PlainDisplay, final_summary
from autotune.search.events import ProbeProgress, StudyPlan, TrialStarted
from autotune.store.result import Role, StudyDocument

RESULT = Path(__file__).parents[1] / "report" / "data"


def test_the_command_at_the_end_is_one_that_vllm_takes() -> None:
    document = StudyDocument.read(RESULT)
    assert document.best is not None
    best = document.best.model_copy(update={"arguments": {"async-scheduling": False, "compilation-config": '{"a": 1}'}})
    text = final_summary(document.model_copy(update={"best": best}))
    source = document.model_source
    assert "/" in source
    assert f"Use: vllm serve {source} --no-async-scheduling --compilation-config '{{\"a\": 1}}'" in text


def test_what_the_study_is_stands_above_every_notice(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay("Study x.")
    display.notice("Trial 3 was interrupted; it is run again.")
    display.planned(StudyPlan(baselines=3, trials=1, confirmations=8, resumed_trials=1, expected_seconds=None))
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == ["Study x.", "Trial 3 was interrupted; it is run again."]
    assert "then 1 trial, then" in lines[2]
    assert lines[2].endswith("Resuming after 1 finished trial.")


def test_the_time_left_runs_down_within_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("autotune.cli.progress.time.monotonic", lambda: now[0])
    display = LiveDisplay("Study x.")
    shown: list[str] = []

    def keep(group: Group) -> None:
        (table,) = group.renderables
        assert isinstance(table, Table)
        shown.append(str(next(iter(table.columns[2].cells))))

    monkeypatch.setattr(display._live, "update", keep)
    display.trial_started(
        TrialStarted(number=1, role=Role.SEARCH, label="", flags="", position=0, total=2, eta_seconds=60.0)
    )
    now[0] += 45
    display.phase("starting")
    now[0] += 45
    display.phase("measuring")
    assert shown == ["about 60s left", "about 15s left", ""]


def test_a_probe_says_how_long_it_takes_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("autotune.cli.progress.time.monotonic", lambda: now[0])
    display = PlainDisplay("Study x.")
    for finished in (0, 100, 400):
        display.probe(ProbeProgress(0, 1, "5 req/s", finished + 3, 400, finished, 0, 1.0))
        now[0] += 20
    first, second, third = capsys.readouterr().err.splitlines()
    assert "more" not in first
    assert second.endswith("0 late or failed, at most 60s more")
    assert "more" not in third
