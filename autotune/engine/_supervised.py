"""What real and simulated engines have in common: start, readiness, facts, diagnosis, stop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.base.clock import Clock
from autotune.engine._facts import read_facts
from autotune.engine._gpu_memory import GpuMemory
from autotune.engine._guard import Guard, shared_guard
from autotune.engine._http import EngineHttp
from autotune.engine._log import CappedLog
from autotune.engine._marker import Marker
from autotune.engine._ports import LOOPBACK, free_port, listens
from autotune.engine._process import Child, Launcher, LifeHooks, NoHooks, PlainLauncher, SupervisedProcess
from autotune.engine._redaction import Redactor
from autotune.engine._room import check_room
from autotune.engine._session import TERM_GRACE_S
from autotune.engine._watchdog import StartWatchdog
from autotune.engine.api import EngineFacts, EngineStartError, LaunchRequest, StopReport
from autotune.engine.diagnosis import Evidence, diagnose
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.spec import Arguments

_POLL_S = 0.2
_RESET_ATTEMPTS = 10
_RESET_PAUSE_S = 0.2
_OK = 200
_DYING_S = 10.0
"""Wall seconds in which a broken engine may still write down why."""
_STILL_S = 1.0
"""Wall seconds without a word after which a dead leader's children have said all."""
_HEALTHY_S = 5.0
"""The same while the leader lives: vLLM takes seconds to see that its engine core is gone."""


@dataclass(frozen=True)
class Supervision:
    """How engines of one kind are supervised. Durations are wall seconds: they concern operating system processes.

    ``spawn_allowance`` is added to every start's deadline, so that a scaled clock leaves a process its time to appear.
    """

    clock: Clock
    time_scale: float = 1.0
    spawn_allowance: float = 0.0
    memory: GpuMemory = field(default_factory=GpuMemory)
    hooks: LifeHooks = field(default_factory=NoHooks)
    guard: Guard | None = field(default_factory=shared_guard)
    study: str = ""
    launcher: Launcher = field(default_factory=PlainLauncher)
    watchdog: StartWatchdog = field(default_factory=StartWatchdog)
    grace: float = TERM_GRACE_S
    """Between SIGTERM and SIGKILL."""


async def start_engine(
    request: LaunchRequest,
    command: Callable[[int, str], Sequence[str]],
    environment: Mapping[str, str],
    supervision: Supervision,
) -> SupervisedEngine:
    """Start a server and wait until it answers, from our process and for our model.

    Args:
        request: what to start, and its deadline in engine seconds.
        command: gives the argument vector for a port and a served name.
        environment: the whole environment, without marks.
        supervision: how it is watched and ended.

    Raises:
        EngineStartError: it did not become ready; nothing of it is left running.
    """
    check_room(request.folder)
    marker = Marker.new(supervision.study)
    port = free_port()
    served = str(request.arguments.get("served-model-name", f"autotune-{marker.engine_id}"))
    marked = {**environment, **marker.environment()}
    request.folder.mkdir(parents=True, exist_ok=True)
    log = CappedLog(request.folder / "engine.log", Redactor(marked))
    memory_before = await asyncio.to_thread(supervision.memory.wait_until_free)
    began = supervision.clock.now()

    def supervise(child: Child) -> SupervisedProcess:
        return SupervisedProcess(
            child,
            log,
            marker,
            port=port,
            guard=supervision.guard,
            hooks=supervision.hooks,
            memory_used=supervision.memory.used,
            memory_before=memory_before,
        )

    launching = asyncio.ensure_future(asyncio.to_thread(supervision.launcher, list(command(port, served)), marked, log))
    try:
        process = supervise(await asyncio.shield(launching))
    except OSError as error:
        raise EngineStartError(_cannot_run(error)) from error
    except asyncio.CancelledError:
        supervision.launcher.cancel()
        with contextlib.suppress(OSError):
            await asyncio.to_thread(supervise(await launching).stop, 0.0)
        raise
    engine = SupervisedEngine(process, port, served, supervision)
    try:
        await engine.wait_until_ready(request.start_deadline, began)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(process.stop, supervision.grace))
        raise
    return engine


class SupervisedEngine:
    """A running engine of ours."""

    def __init__(self, process: SupervisedProcess, port: int, served: str, supervision: Supervision) -> None:
        self._process = process
        self._port = port
        self._served = served
        self._supervision = supervision
        self._http = EngineHttp(f"http://{LOOPBACK}:{port}")
        self._facts = EngineFacts()
        self._ready = False
        self._stopping = False

    @property
    def url(self) -> str:
        """Base URL on the loopback interface."""
        return self._http.url

    @property
    def served_model(self) -> str:
        """The name that requests carry: its own for each engine, so that no other server can be taken for it."""
        return self._served

    @property
    def process_id(self) -> int:
        """Process id of the leader."""
        return self._process.pid

    @property
    def facts(self) -> EngineFacts:
        """What it said while starting."""
        return self._facts

    @property
    def log_path(self) -> Path:
        """The capped log."""
        return self._process.log.path

    def exited(self) -> bool:
        """True once it ended without being asked."""
        return not self._stopping and self._process.exit_code() is not None

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; tried again while running requests hold blocks."""
        for _ in range(_RESET_ATTEMPTS):
            done = await self._http.reset_prefix_cache()
            if done is None:
                return False
            if done:
                return True
            await asyncio.sleep(_RESET_PAUSE_S)
        return False

    async def diagnose(self, *, hung: bool = False) -> Failure:
        """Why it ended or hangs. An engine that is dying gets a moment to write down why."""
        if not hung:
            await self._wait_for_last_words()
        evidence = Evidence(
            exit_code=self._process.exit_code(),
            was_ready=self._ready,
            stop_requested=self._stopping,
            hung=hung and self._process.exit_code() is None,
            oom_kills=self._process.oom_kills(),
        )
        failure = await asyncio.to_thread(diagnose, self._process.log.text(), evidence)
        if failure.cause is Cause.NONE and not self._stopping:
            return await self._diagnose_living()
        return failure

    async def stop(self) -> StopReport:
        """End it and every descendant, and wait for its GPU memory."""
        self._stopping = True
        end = await asyncio.shield(asyncio.to_thread(self._process.stop, self._supervision.grace))
        return StopReport(
            seconds=end.wall_seconds * self._supervision.time_scale,
            forced=end.forced,
            memory_returned=False if end.left else end.memory_returned,
        )

    async def wait_until_ready(self, deadline: float, began: float) -> None:
        """Wait for an answer from our process for our model.

        Raises:
            EngineStartError: it died, hangs, ran out of time, or somebody else answers on its port.
        """
        clock = self._supervision.clock
        give_up = began + deadline + self._supervision.spawn_allowance * self._supervision.time_scale
        watchdog = self._supervision.watchdog.watch(self._process)
        while True:
            if self._process.exit_code() is not None:
                raise EngineStartError(await self._start_failure())
            status = await self._http.health()
            if status is not None and (foreign := await self._is_foreign()) is not None:
                raise EngineStartError(foreign)
            if status == _OK and self._served in (await self._http.models() or ()):
                break
            if await asyncio.to_thread(watchdog.is_stuck):
                raise EngineStartError(await self._start_failure(hung=True))
            if clock.now() > give_up:
                raise EngineStartError(await self._start_failure(timed_out=True))
            await asyncio.sleep(_POLL_S)
        self._ready = True
        seconds = clock.now() - began
        server_info = await self._http.server_info()
        self._facts = read_facts(self._process.log.text(), server_info, seconds)

    async def _is_foreign(self) -> Failure | None:
        """Why the answer on our port is not our engine's; None when it is, or when nobody can tell."""
        pids = [process.identity.pid for process in await asyncio.to_thread(self._process.look)]
        if await asyncio.to_thread(listens, pids, self._port) is not False:
            names = await self._http.models()
            if names is None or self._served in names:
                return None
            found = f"the server on port {self._port} serves {', '.join(names) or 'nothing'}"
        else:
            found = f"port {self._port} belongs to another process"
        advice = "Another server answers on the engine's port: start again on a fresh port."
        return Failure(Cause.PORT_IN_USE, FailureKind.FAULT, Phase.LAUNCH, found, advice)

    async def _start_failure(self, *, timed_out: bool = False, hung: bool = False) -> Failure:
        if not (timed_out or hung):
            await self._wait_for_last_words()
        evidence = Evidence(
            exit_code=self._process.exit_code(),
            timed_out=timed_out,
            hung=hung,
            oom_kills=self._process.oom_kills(),
        )
        return await asyncio.to_thread(diagnose, self._process.log.text(), evidence)

    async def _wait_for_last_words(self) -> None:
        """Let a dying engine print its traceback: until its processes are gone, or the log is still for a second."""
        began = time.monotonic()
        grown, still_since = self._process.log.grown, began
        while time.monotonic() - began < _DYING_S:
            if not await asyncio.to_thread(self._process.look):
                await asyncio.sleep(0.05)
                return
            now = time.monotonic()
            if self._process.log.grown != grown:
                grown, still_since = self._process.log.grown, now
            elif now - still_since > (_HEALTHY_S if self._process.exit_code() is None else _STILL_S):
                return
            await asyncio.sleep(_POLL_S)

    async def _answers(self) -> bool:
        return await self._http.health() == _OK

    async def _diagnose_living(self) -> Failure:
        """The log shows nothing and the process runs: held by a signal, mute, or fine."""
        held = next((p for p in self._process.look() if p.stopped), None)
        mute = not await self._answers()
        if held is None and not mute:
            return Failure(Cause.NONE, FailureKind.NONE, Phase.SERVING, "", "Nothing is wrong.")
        line = f"process {held.identity.pid} is stopped" if held is not None else "/health does not answer with 200"
        advice = "The engine lives and does not answer: end it and start it again."
        return Failure(Cause.ENGINE_HANG, FailureKind.FAULT, Phase.SERVING, line, advice)


def _cannot_run(error: OSError) -> Failure:
    return Failure(
        Cause.DEPENDENCY_ERROR,
        FailureKind.FAULT,
        Phase.LAUNCH,
        str(error),
        "The command cannot be run: install vLLM, or name it with --vllm-command.",
        environment=True,
    )


def server_arguments(arguments: Arguments, port: int, served: str) -> dict[str, object]:
    """The arguments that every engine gets: loopback only, its own port, its own name."""
    own: dict[str, object] = {"host": LOOPBACK, "port": port}
    if "served-model-name" not in arguments:
        own["served-model-name"] = served
    return {**own, **{name: value for name, value in arguments.items() if name not in {"host", "port"}}}
