"""``autotune dashboard`` in a real browser: which trials are feasible, their notes, figures and files."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.report import trial_note
from autotune.store.result import Outcome, TrialDocument
from autotune.trial import TrialOrder

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_ROOMY = 64
_GREY = "204, 204, 204"
"""The dashboard's colour of infeasible trials."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(_CHROMIUM is None, reason="no chromium is installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture
async def study(bench, executor, tmp_path: Path) -> Path:
    """A study whose largest batches run out of memory, with the notes and files that a real one leaves."""

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        roomy = order.arguments.get("max-num-seqs") == _ROOMY
        return (Outcome.INFEASIBLE, "oom_runtime") if roomy else 123.5

    bench.trials = 10
    run = bench.run(executor(answer))

    def keep(trial: TrialDocument) -> None:
        run.record.note(trial.number, trial_note(trial))
        log = tmp_path / "engine.log"
        log.write_text(f"log of trial {trial.number}\n")
        run.record.attach(trial.number, log, "text/plain")

    run.keep = keep
    await run.run()
    return tmp_path


@pytest.fixture
def address(study: Path) -> Iterator[str]:
    """Where the dashboard of that study listens."""
    command = [
        sys.executable, "-m", "autotune.cli.main", "dashboard", "--storage", f"sqlite:///{study / 'autotune.db'}",
        "--artifacts", str(study / "artifacts"), "--port", "0", "--no-browser",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found.group().rstrip("/")
        process.terminate()


def page(address: str, profile: Path) -> str:
    """A page as it stands once its scripts have run."""
    assert _CHROMIUM is not None
    command = [_CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def words(document: str) -> str:
    """What a reader sees of a page."""
    text = re.sub(r"<(style|script)\b.*?</\1>", " ", document, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


async def test_the_dashboard_shows_what_a_study_found(bench, executor, address: str, tmp_path: Path) -> None:
    trials = bench.run(executor(lambda order: 0.0)).documents.values()
    infeasible = [t for t in trials if t.outcome is Outcome.INFEASIBLE]
    measured = [t for t in trials if t.outcome is Outcome.MEASURED]

    study = page(f"{address}/dashboard/studies/1", tmp_path / "profile")
    points = re.findall(r'<path class="point"[^>]*fill: rgb\((\d+, \d+, \d+)\)', study)
    assert len(points) == len(trials)
    assert points.count(_GREY) == len(infeasible) > 0
    assert 'data-unformatted="Infeasible"' in study
    assert "output tok/s at the SLO" in words(study)

    bad = words(page(f"{address}/dashboard/studies/1/trials?numbers={infeasible[0].number}", tmp_path / "profile"))
    assert "Note infeasible: out of GPU memory under load" in bad
    assert "reason oom_runtime" in bad
    assert "Artifacts engine.log" in bad

    good = words(page(f"{address}/dashboard/studies/1/trials?numbers={measured[0].number}", tmp_path / "profile"))
    assert "Note carries 0.482 req/s, 124 tok/s out" in good
    assert f"output_tokens_per_s {measured[0].output_tokens_per_s}" in good
    assert "Artifacts engine.log" in good
