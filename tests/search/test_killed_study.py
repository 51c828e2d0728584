"""``kill -9`` ten times at random moments: the study ends with the data of one that was left alone."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic.main import IncEx

from autotune.search.folder import StudyFolder
from autotune.store import Store
from autotune.store.result import StudyDocument, TrialDocument

STUDY = Path(__file__).parent / "virtual_study.py"
KILLS = 10


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(STUDY), str(folder)], stdout=subprocess.PIPE, text=True)


def finish(folder: Path) -> StudyDocument:
    with start(folder) as process:
        events, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert events.endswith("done\n")
    return StudyDocument.read(folder / "killed")


def kill_after(folder: Path, events: int) -> None:
    """Kill the study at a moment that its own progress decides, however slow the machine is."""
    with start(folder) as process:
        assert process.stdout is not None
        for _ in range(events):
            if process.stdout.readline() in ("", "done\n"):
                break
        process.kill()


def data(trials: list[TrialDocument]) -> list[object]:
    """All that a trial says, without its number, which counts the killed ones too, and without start times.

    A run that starts again finds no warm compile cache in this engine.
    """
    left_out: IncEx = {"number": True, "timings": True, "engine_facts": {"start_seconds"}}
    ordered = sorted(trials, key=lambda trial: trial.number)
    return [rounded(trial.model_dump(mode="json", exclude=left_out)) for trial in ordered]


def rounded(value: object) -> object:
    """Seven digits: the last ones depend on how long the clock of a run has been going."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


@pytest.mark.timeout(900)
def test_a_study_that_was_killed_ten_times_has_the_same_data(tmp_path: Path) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed-often"
    expected = finish(alone)
    rng = random.Random(20)
    lost = 0
    for _ in range(KILLS):
        before = StudyFolder(killed / "killed").read_trials()
        kill_after(killed, rng.randint(2, 20))
        after = StudyFolder(killed / "killed").read_trials()
        lost += sum(after.get(number) != trial for number, trial in before.items())
    found = finish(killed)
    assert lost == 0
    assert data(found.trials) == data(expected.trials)
    assert rounded(found.verdict.model_dump(mode="json")) == rounded(expected.verdict.model_dump(mode="json"))
    assert found.best is not None
    assert expected.best is not None
    assert found.best.arguments == expected.best.arguments
    store = Store.open(f"sqlite:///{killed / 'autotune.db'}")
    for trial in found.trials:
        assert [probe.summary for probe in store.probes("killed", trial.number)] == [
            probe.model_dump(mode="json", exclude={"telemetry"}) for probe in trial.probes
        ]
    store.close()
