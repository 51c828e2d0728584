"""A tuner that is killed leaves no engine behind: its guard ends it, or the orphan finder does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.engine import Orphan, end_orphan, find_orphans
from autotune.engine._guard import Guard
from autotune.engine._marker import Marker
from autotune.engine._procfs import ProcessIdentity, all_processes, look_at

FAKE = Path(__file__).parent / "fake_vllm.py"
TUNER = textwrap.dedent(
    """
    import asyncio, json, sys
    from pathlib import Path
    from autotune.engine import CommandStyle, LaunchRequest, VllmEngine, VllmInstallation

    async def main():
        installation = VllmInstallation((sys.executable, sys.argv[1]), "0.99.0", CommandStyle.SERVE)
        engine = VllmEngine(installation, study="my-study", environment={"FAKE_VLLM": sys.argv[3]})
        running = await engine.start(LaunchRequest("m", {}, Path(sys.argv[2]), 30))
        print(running.process_id, engine._supervision.guard._process.pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
    """
)


@dataclass
class Tuner:
    """A tuner in another process, with one engine running."""

    process: subprocess.Popen[str]
    engine_pid: int
    guard_pid: int


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Tuner]:
    behaviour = json.dumps({"child": "stray"})
    process = subprocess.Popen(
        [sys.executable, "-c", TUNER, str(FAKE), str(tmp_path), behaviour],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    engine_pid, guard_pid = (int(word) for word in process.stdout.readline().split())
    yield Tuner(process, engine_pid, guard_pid)
    process.kill()
    process.wait()
    process.stdout.close()
    for orphan in own_orphans(process.pid):
        end_orphan(orphan, grace=0.2)


def own_orphans(tuner_pid: int) -> list[Orphan]:
    return [orphan for orphan in find_orphans() if orphan.tuner_pid == tuner_pid]


def gone(pid: int) -> bool:
    state = look_at(pid)
    return state is None or not state.alive


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_the_guard_ends_the_engine_of_a_killed_tuner(tuner: Tuner) -> None:
    child = next(p for p in all_processes() if p.parent == tuner.engine_pid)
    assert own_orphans(tuner.process.pid) == []
    tuner.process.kill()
    tuner.process.wait()
    until(lambda: gone(tuner.engine_pid) and gone(child.identity.pid) and gone(tuner.guard_pid))
    assert own_orphans(tuner.process.pid) == []


def test_without_a_guard_the_orphan_is_found_and_ended(tuner: Tuner) -> None:
    os.kill(tuner.guard_pid, signal.SIGKILL)
    assert own_orphans(tuner.process.pid) == [], "an engine whose tuner lives is no orphan"
    tuner.process.kill()
    tuner.process.wait()
    (orphan,) = own_orphans(tuner.process.pid)
    assert orphan.study == "my-study"
    assert orphan.pid == tuner.engine_pid
    assert len(orphan.processes) == 2
    assert "fake_vllm" in orphan.command
    assert 0 <= orphan.seconds < 300
    assert end_orphan(orphan, grace=0.5)
    assert gone(tuner.engine_pid)
    assert own_orphans(tuner.process.pid) == []


def test_an_interrupted_tuner_leaves_nothing(tuner: Tuner) -> None:
    tuner.process.send_signal(signal.SIGINT)
    tuner.process.wait(30)
    until(lambda: gone(tuner.engine_pid) and gone(tuner.guard_pid))
    until(lambda: own_orphans(tuner.process.pid) == [])


def test_a_guard_that_was_killed_is_started_again_and_knows_all(tmp_path: Path) -> None:
    guard = Guard()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as engine:
        state = look_at(engine.pid)
        assert state is not None
        guard.watch(state.identity, Marker.new())
        first = guard._process
        assert first is not None
        first.kill()
        first.wait()
        other = ProcessIdentity(engine.pid, state.identity.create_time + 1)
        guard.watch(other, Marker.new())
        second = guard._process
        assert second is not None
        assert second.pid != first.pid
        assert guard._watched.keys() == {state.identity, other}
        guard.forget(state.identity)
        guard.forget(other)
        assert second.stdin is not None
        second.stdin.close()
        assert second.wait(20) == 0
        assert engine.poll() is None
