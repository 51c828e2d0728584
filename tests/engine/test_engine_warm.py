"""Engines forked from a process that has everything imported: the same engines, only sooner there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.engine import Cause, CommandStyle, EngineStartError, LaunchRequest, VllmEngine, VllmInstallation
from autotune.engine._marker import Marker
from autotune.engine._procfs import environment_of, is_alive, look_at
from autotune.engine.vllm import FORK_ON_GPU, FORKED_LOG, SOCKETS

FAKE = Path(__file__).parent / "fake_vllm.py"
TORCH = """
import os, time
time.sleep({seconds})
os.environ["SET_BY_IMPORTS"] = "yes"
PARENT = os.getpid()
class version:
    cuda = "13.0"
class cuda:
    @staticmethod
    def is_initialized():
        return {initialised}
    @staticmethod
    def _is_in_bad_fork():
        return {counted} and os.getpid() != PARENT
"""

MakeRequest = Callable[..., LaunchRequest]
MakeWarmEngine = Callable[..., VllmEngine]


@pytest.fixture
async def make_warm_engine(nothing_left: None, tmp_path: Path) -> AsyncIterator[MakeWarmEngine]:
    engines: list[VllmEngine] = []

    def make(
        behaviour: dict[str, Any] | None = None,
        *,
        initialised: bool = False,
        counted: bool = False,
        seconds: float = 0.0,
        fork: bool = True,
    ) -> VllmEngine:
        packages = tmp_path / "packages"
        packages.mkdir(exist_ok=True)
        (packages / "torch.py").write_text(TORCH.format(initialised=initialised, counted=counted, seconds=seconds))
        shutil.copy(FAKE, packages / "fake_server.py")
        command = (sys.executable, "-m", "fake_server")
        installation = VllmInstallation(command, "0.99.0", CommandStyle.SERVE, sys.executable)
        environment = {
            "FAKE_VLLM": json.dumps(behaviour or {}),
            "PYTHONPATH": str(packages),
            **({} if fork else {FORK_ON_GPU: "0"}),
        }
        engines.append(VllmEngine(installation, environment=environment, study="warm"))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def zygote_pid(engine: VllmEngine) -> int:
    launcher = engine._launcher
    assert launcher is not None
    assert launcher._zygote is not None
    return launcher._zygote._process.pid


async def test_each_engine_is_a_fork_with_a_session_and_a_mark_of_its_own(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    engine = make_warm_engine()
    marks = []
    for seqs in (3, 4):
        running = await engine.start(make_request(max_num_seqs=seqs))
        state = look_at(running.process_id)
        assert state is not None
        assert state.session == running.process_id
        assert state.parent == zygote_pid(engine)
        assert running.facts.resolved["max-num-seqs"] == seqs
        marks.append(Marker.read(environment_of(running.process_id)))
        report = await running.stop()
        assert not report.forced
        assert look_at(running.process_id) is None
    own = Marker.read(environment_of(zygote_pid(engine)))
    ids = {mark.engine_id for mark in (*marks, own) if mark is not None}
    assert len(ids) == 3
    assert all(mark is not None and mark.study == "warm" for mark in marks)


async def test_spawned_workers_are_forks_too(make_warm_engine: MakeWarmEngine, make_request: MakeRequest) -> None:
    running = await make_warm_engine({"spawn": 7}).start(make_request())
    log = running.log_path.read_text()
    assert f"of session {running.process_id} sees yes" in log
    assert "preloaded: True" in log
    assert "the worker ended with 7" in log
    await running.stop()


async def test_what_imports_set_is_set_in_a_fork(make_warm_engine: MakeWarmEngine, make_request: MakeRequest) -> None:
    running = await make_warm_engine({"print_environment": "SET_BY_IMPORTS"}).start(make_request())
    assert "SET_BY_IMPORTS=yes" in running.log_path.read_text()
    await running.stop()


@pytest.mark.parametrize("fork", [True, False])
async def test_sockets_get_a_folder_that_is_removed(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest, fork: bool
) -> None:
    engine = make_warm_engine({"print_environment": SOCKETS}, fork=fork)
    running = await engine.start(make_request())
    (line,) = (text for text in running.log_path.read_text().splitlines() if text.startswith(f"{SOCKETS}="))
    folder = Path(line.removeprefix(f"{SOCKETS}="))
    (folder / "left-behind").touch()
    await running.stop()
    await engine.close()
    assert not folder.exists()


async def test_exit_codes_arrive(make_warm_engine: MakeWarmEngine, make_request: MakeRequest) -> None:
    running = await make_warm_engine({"die_after": 1, "die_code": 0}).start(make_request())
    assert not running.exited()
    await running.reset_prefix_cache()
    assert comes_true(lambda: running._process.exit_code() is not None)
    assert running._process.exit_code() == 0
    assert (await running.diagnose()).cause is Cause.ENGINE_CRASH
    await running.stop()
    with pytest.raises(EngineStartError) as caught:
        await make_warm_engine({"print": "vllm serve: error: unrecognized arguments: --x", "exit": 2}).start(
            make_request()
        )
    assert caught.value.failure.cause is Cause.INVALID_CONFIG


async def test_the_helpers_of_a_dead_engine_end_by_themselves(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    running = await make_warm_engine().start(make_request())
    helpers = [process for process in running._process.look() if process.identity.pid != running.process_id]
    assert helpers, "the factory of workers, at least"
    os.kill(running.process_id, signal.SIGKILL)
    assert comes_true(lambda: not any(is_alive(helper.identity) for helper in helpers))
    await running.stop()


@pytest.mark.parametrize("touched", ["initialised", "counted"])
async def test_a_gpu_touched_by_imports_means_plain_starts(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest, touched: str
) -> None:
    engine = make_warm_engine(**{touched: True})
    running = await engine.start(make_request())
    state = look_at(running.process_id)
    assert state is not None
    assert state.parent == os.getpid()
    assert "started plainly" in running.log_path.read_text()
    await running.stop()


async def test_a_library_that_sets_a_variable_does_not_cost_another_preloaded_process(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_warm_engine({"print_environment": "SET_BY_A_LIBRARY"})
    first = await engine.start(make_request())
    preloaded = zygote_pid(engine)
    await first.stop()
    monkeypatch.setenv("SET_BY_A_LIBRARY", "yes")
    second = await engine.start(make_request())
    assert zygote_pid(engine) == preloaded
    assert "SET_BY_A_LIBRARY=None" in second.log_path.read_text()
    await second.stop()


async def test_a_killed_preloaded_process_is_replaced(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    engine = make_warm_engine()
    running = await engine.start(make_request())
    os.kill(zygote_pid(engine), signal.SIGKILL)
    await asyncio.sleep(0.2)
    assert not running.exited(), "an engine outlives the process that forked it"
    await running.stop()
    again = await engine.start(make_request())
    assert not again.exited()
    await again.stop()


async def test_an_odd_failure_of_a_fork_is_tried_plainly(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    engine = make_warm_engine({"exit": 3, "print": "RuntimeError: something odd"})
    request = make_request()
    with pytest.raises(EngineStartError):
        await engine.start(request)
    launcher = engine._launcher
    assert launcher is not None
    assert not launcher.warm
    logs = [request.folder / name for name in (FORKED_LOG, "engine.log")]
    assert ["something odd" in log.read_text() for log in logs] == [True, True]


async def test_engines_on_a_gpu_are_started_plainly_when_asked(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    running = await make_warm_engine(fork=False).start(make_request())
    state = look_at(running.process_id)
    assert state is not None
    assert state.parent == os.getpid()
    await running.stop()


async def test_cancelling_a_start_that_waits_for_imports(
    make_warm_engine: MakeWarmEngine, make_request: MakeRequest
) -> None:
    engine = make_warm_engine(seconds=60.0)
    starting = asyncio.create_task(engine.start(make_request()))
    await asyncio.sleep(0.7)
    began = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert time.monotonic() - began < 20
