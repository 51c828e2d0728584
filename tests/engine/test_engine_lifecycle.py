"""Start, readiness, death and stop of an engine, with a stand-in for vLLM that misbehaves on demand."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from autotune.engine import Cause, EngineStartError, FailureKind, LaunchRequest, Phase, VllmEngine
from autotune.engine import _supervised as supervised
from autotune.engine._procfs import ProcessState, all_processes, is_alive, look_at
from autotune.engine._watchdog import StartWatchdog

MakeEngine = Callable[..., VllmEngine]
MakeRequest = Callable[..., LaunchRequest]
CASES = Path(__file__).parent / "data" / "engine_logs"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.02)


async def test_a_ready_engine_is_ours_and_leaves_nothing(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    engine = make_engine(environment={"HF_TOKEN": "hf_very_secret_value"}, study="a-study")
    running = await engine.start(make_request(max_num_seqs=7))
    assert running.url.startswith("http://127.0.0.1:")
    assert running.facts.resolved["max-num-seqs"] == 7
    assert running.facts.start_seconds["total"] > 0
    assert not running.exited()
    assert (await running.diagnose()).cause is Cause.NONE
    assert await running.reset_prefix_cache()
    report = await running.stop()
    assert not report.forced
    assert report.memory_returned is None
    assert look_at(running.process_id) is None
    assert "Application startup complete" in running.log_path.read_text()
    assert not running.exited()
    assert (await running.stop()) == report


@pytest.mark.parametrize("child", ["session", "stray"])
async def test_stubborn_children_are_killed_although_their_leader_is_gone(
    make_engine: MakeEngine, make_request: MakeRequest, child: str
) -> None:
    running = await make_engine({"child": child}).start(make_request())
    leader = look_at(running.process_id)
    assert leader is not None
    (young,) = [p for p in all_processes() if p.parent == running.process_id]
    os.kill(running.process_id, signal.SIGKILL)
    await until(running.exited)
    assert is_alive(young.identity)
    failure = await running.diagnose()
    assert failure.cause is Cause.ENGINE_CRASH
    assert failure.phase is Phase.SERVING
    report = await running.stop()
    assert report.forced
    assert not is_alive(young.identity)


async def test_exit_code_zero_after_readiness_is_a_failure(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    running = await make_engine({"die_after": 1}).start(make_request())
    await running.reset_prefix_cache()
    await until(running.exited)
    failure = await running.diagnose()
    assert failure.cause is Cause.ENGINE_CRASH
    assert failure.kind is FailureKind.FAULT
    await running.stop()


async def test_out_of_memory_under_load_is_named(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    words = (CASES / "oom_runtime__v015-sample-tokens-worker.log").read_text()
    running = await make_engine({"die_after": 1, "last_words": words}).start(make_request())
    await running.reset_prefix_cache()
    failure = await running.diagnose()
    assert failure.cause is Cause.OOM_RUNTIME
    assert failure.kind is FailureKind.INFEASIBLE
    await running.stop()


@pytest.mark.parametrize(
    ("case", "code", "cause"),
    [
        ("oom_kv_cache__v0-multiproc-131072-vs-86432.log", 1, Cause.OOM_KV_CACHE),
        ("invalid_config__v010-unrecognized-enable-reasoning.log", 2, Cause.INVALID_CONFIG),
        ("oom_weights__v1-llama-make-layers-24gb.log", 1, Cause.OOM_WEIGHTS),
    ],
)
async def test_a_start_that_dies_says_why(
    make_engine: MakeEngine, make_request: MakeRequest, case: str, code: int, cause: Cause
) -> None:
    with pytest.raises(EngineStartError) as caught:
        await make_engine({"log": str(CASES / case), "exit": code, "child": "session"}).start(make_request())
    assert caught.value.failure.cause is cause


async def test_refused_arguments_are_shown_as_the_parser_puts_it(
    make_engine: MakeEngine, make_request: MakeRequest
) -> None:
    with pytest.raises(EngineStartError) as caught:
        await make_engine().start(make_request(swap_space=4))
    assert caught.value.failure.cause is Cause.INVALID_CONFIG
    assert "--swap-space 4" in caught.value.failure.advice


async def test_a_start_that_takes_too_long_is_ended(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    with pytest.raises(EngineStartError) as caught:
        await make_engine({"bind": False, "child": "session"}).start(make_request(deadline=1.0))
    assert caught.value.failure.cause is Cause.STARTUP_TIMEOUT


async def test_a_start_held_by_a_signal_is_a_hang(
    make_engine: MakeEngine, make_request: MakeRequest, engine_processes: Callable[[], list[ProcessState]]
) -> None:
    engine = make_engine({"bind": False}, watchdog=StartWatchdog(stopped=0.5))
    starting = asyncio.create_task(engine.start(make_request(deadline=60.0)))
    await until(lambda: bool(engine_processes()))
    for process in engine_processes():
        os.kill(process.identity.pid, signal.SIGSTOP)
    with pytest.raises(EngineStartError) as caught:
        await starting
    assert caught.value.failure.cause is Cause.ENGINE_HANG


async def test_cancelling_a_start_leaves_nothing(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    starting = asyncio.create_task(make_engine({"bind": False, "child": "stray"}).start(make_request()))
    await asyncio.sleep(0.7)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_stopped_engine_is_named_a_hang_and_ended(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    running = await make_engine().start(make_request())
    os.kill(running.process_id, signal.SIGSTOP)
    running._http = dataclasses.replace(running._http, timeout=0.5)
    failure = await running.diagnose(hung=True)
    assert failure.cause is Cause.ENGINE_HANG
    await running.stop()


class _Foreign(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


async def test_a_foreign_server_on_the_port_is_seen(
    make_engine: MakeEngine, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = HTTPServer(("127.0.0.1", 0), _Foreign)
    thread = threading.Thread(target=foreign.serve_forever)
    thread.start()
    try:
        monkeypatch.setattr(supervised, "free_port", lambda: foreign.server_address[1])
        with pytest.raises(EngineStartError) as caught:
            await make_engine({"bind": False}).start(make_request())
        assert caught.value.failure.cause is Cause.PORT_IN_USE
    finally:
        foreign.shutdown()
        thread.join()
        foreign.server_close()


async def test_a_port_taken_without_an_answer_is_seen(
    make_engine: MakeEngine, make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(supervised, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(EngineStartError) as caught:
            await make_engine().start(make_request())
    assert caught.value.failure.cause is Cause.PORT_IN_USE


async def test_stop_waits_for_gpu_memory(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    taken = iter([10, 8 * 2**30, 4 * 2**30, 20, 20])
    engine = make_engine(memory_used=lambda: next(taken))
    running = await engine.start(make_request())
    report = await running.stop()
    assert report.memory_returned is True
    assert next(taken, None) is None


async def test_a_program_that_is_not_there(tmp_path: Path, make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.installation = dataclasses.replace(engine.installation, command=(str(tmp_path / "absent"),))
    with pytest.raises(EngineStartError) as caught:
        await engine.start(LaunchRequest("m", {}, tmp_path, 5.0))
    assert caught.value.failure.cause is Cause.DEPENDENCY_ERROR
    assert caught.value.failure.environment


async def test_hooks_hear_of_every_life(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    heard: list[str] = []

    class Hooks:
        def on_started(self, leader: object, port: int) -> None:
            heard.append(f"started {leader}")

        def on_stopped(self, leader: object) -> None:
            heard.append(f"stopped {leader}")

    running = await make_engine(hooks=Hooks()).start(make_request())
    await running.stop()
    assert [word.split()[0] for word in heard] == ["started", "stopped"]
    assert heard[0].split(maxsplit=1)[1] == heard[1].split(maxsplit=1)[1]


async def test_memory_in_other_hands_is_no_trial_of_ours(make_engine: MakeEngine, make_request: MakeRequest) -> None:
    taken = [2**30]
    engine = make_engine(memory_used=lambda: taken[0])
    engine._supervision.memory._patience = 0.2
    running = await engine.start(make_request())
    await running.stop()
    taken[0] = 9 * 2**30
    with pytest.raises(EngineStartError) as caught:
        await engine.start(make_request())
    assert caught.value.failure.cause is Cause.GPU_MEMORY_BUSY
    assert "8.0 GiB" in caught.value.failure.line
    taken[0] = 2**30
    await (await engine.start(make_request())).stop()
