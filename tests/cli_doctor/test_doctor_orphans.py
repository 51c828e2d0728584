"""``autotune doctor`` on a machine where a killed tuner left a simulated engine behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli import _checks
from autotune.cli.main import app
from autotune.engine import Orphan, end_orphan, find_orphans
from autotune.simulator.gpu_state import busy_bytes

COMMAND = [sys.executable, "-m", "autotune.cli.main", "doctor", "--json"]
TUNER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from autotune.base.clock import WallClock
    from autotune.catalog import load_gpu
    from autotune.engine import LaunchRequest, SimulatedEngine
    from autotune.engine._guard import shared_guard

    async def main():
        engine = SimulatedEngine(
            load_gpu("t4"), clock=WallClock(200), study=sys.argv[1], options=("--sim-child",),
            environment={"AUTOTUNE_SIM_GPU_STATE": sys.argv[2] + "/gpu"},
        )
        arguments = {"max-model-len": 2048}
        running = await engine.start(LaunchRequest("qwen3-4b", arguments, Path(sys.argv[2]), 3600))
        print(running.process_id, shared_guard()._process.pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
    """
)


@dataclass
class Tuner:
    """A tuner in another process, with a simulated engine of two processes running."""

    process: subprocess.Popen[str]
    engine_pid: int
    guard_pid: int
    gpu: Path
    """Where its engine's GPU memory is booked."""

    def die_with_its_guard(self) -> None:
        if self.process.poll() is None:
            os.kill(self.guard_pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()

    def orphans(self) -> list[Orphan]:
        return [orphan for orphan in find_orphans() if orphan.tuner_pid == self.process.pid]


@pytest.fixture
def start_tuner(tmp_path: Path) -> Iterator[Callable[[str], Tuner]]:
    with ExitStack() as at_the_end:

        def start(study: str) -> Tuner:
            folder = tmp_path / study
            process = subprocess.Popen(
                [sys.executable, "-c", TUNER, study, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            at_the_end.callback(process.stdout.close)
            engine_pid, guard_pid = (int(word) for word in process.stdout.readline().split())
            tuner = Tuner(process, engine_pid, guard_pid, folder / "gpu")
            at_the_end.callback(lambda: [end_orphan(orphan, grace=0.2) for orphan in tuner.orphans()])
            at_the_end.callback(tuner.die_with_its_guard)
            return tuner

        yield start


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that only looks like one of ours: nobody's mark is on it."""
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, "autotune.simulator", "serve", "qwen3-4b"]) as process:
        yield process
        process.kill()


def engines(document: str, pid: int) -> list[tuple[str, str, str]]:
    """State, text and remedy of the findings that name the process."""
    findings = json.loads(document)["findings"]
    return [
        (f["state"], f["text"], f["remedy"]) for f in findings if f["check"] == "engines" and f"pid {pid}," in f["text"]
    ]


def test_doctor_names_the_orphan_and_ends_it_and_nothing_else(
    start_tuner: Callable[[str], Tuner],
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed, living = start_tuner("killed-study"), start_tuner("living-study")
    killed.die_with_its_guard()

    told = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, "an engine left behind stands in nobody's way: " + told.stdout + told.stderr
    assert engines(told.stdout, killed.engine_pid) == [
        (
            "warn",
            f"An engine of study 'killed-study' was left behind (pid {killed.engine_pid}, 2 processes).",
            "End it with: autotune doctor --end-orphans",
        )
    ]
    assert engines(told.stdout, living.engine_pid) == []
    assert busy_bytes(killed.gpu) > 0, "only looking ends nothing"

    # What other programs left on this machine is theirs: here only the two engines of this test are in sight.
    ours = {killed.process.pid, living.process.pid}
    monkeypatch.setattr(_checks, "find_orphans", lambda: [o for o in find_orphans() if o.tuner_pid in ours])
    ended = CliRunner().invoke(app, ["doctor", "--end-orphans", "--json"])
    assert ended.exit_code == 0
    (finding,) = engines(ended.stdout, killed.engine_pid)
    assert finding[0] == "ok"
    assert finding[1].endswith("; it was ended.")
    assert killed.orphans() == []
    assert busy_bytes(killed.gpu) == 0, "its engine core is gone with the memory"

    assert stranger.poll() is None
    assert living.process.poll() is None
    assert Path(f"/proc/{living.engine_pid}").exists()
    assert busy_bytes(living.gpu) > 0
    after = CliRunner().invoke(app, ["doctor", "--json"])
    assert ("ok", "No engine was left behind.") in [
        (f["state"], f["text"]) for f in json.loads(after.stdout)["findings"] if f["check"] == "engines"
    ]
