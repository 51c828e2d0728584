"""The life of one engine: its launch, its readiness, its end and the return of its memory."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from autotune.engine import EngineFacts
from autotune.engine._facts import read_facts
from autotune.space import to_argv
from autotune.telemetry import gpu_memory_used

from .plan import EnginePlan, Plan
from .startup import LogFollower

_PRELOADED = "preload: ready"

#: Imports first, then waits for a line on stdin: an engine started in advance, so that imports cost no measuring time.
#: With VLLM_WORKER_MULTIPROC_METHOD=fork the modules must not touch the CUDA driver ("Cannot re-initialize CUDA in
#: forked subprocess"); vllm.entrypoints.openai.api_server and vllm.v1.engine.core are safe, torch._inductor is not.
_PRELOADER = f"""
import importlib, sys
entry, modules, arguments = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
for name in filter(None, modules):
    try:
        importlib.import_module(name)
    except Exception as error:
        print("preload:", name, repr(error), flush=True)
print("{_PRELOADED}", flush=True)
sys.stdin.readline()
sys.argv = ["vllm", *arguments]
module, _, function = entry.partition(":")
getattr(importlib.import_module(module), function)()
"""
_PRELOAD_PATIENCE_S = 120.0
_TERM_GRACE_S = 15.0
_MEMORY_PATIENCE_S = 60.0
_MEMORY_SLACK = 256 << 20


def ask(port: int, path: str, method: str = "GET", timeout: float = 5.0) -> tuple[int, str]:
    """Status and body of the engine's answer; status 0 when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def session_members(leader: int) -> list[int]:
    """Living processes of the session that a process leads or led."""
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
    return members


class EngineProcess:
    """One engine process group. ``log`` and what the hook leaves lie in ``folder``."""

    def __init__(self, run: Plan, plan: EnginePlan, folder: Path, gpu: str) -> None:
        self.plan = plan
        self.folder = folder
        self.ready_s = float("nan")
        """Seconds from the launch to ``/health``."""
        self.facts = EngineFacts()
        folder.mkdir(parents=True, exist_ok=True)
        self._run, self._gpu = run, gpu
        self._log = folder / "engine.log"
        self._follower = LogFollower(self._log)
        tail = [run.model, *to_argv({"host": "127.0.0.1", "port": run.port, **run.common_flags, **plan.flags})]
        self.argv = [*run.command, *tail]
        if plan.preload:
            modules = ",".join(run.preload)
            self.argv = [run.command[0], "-c", _PRELOADER, run.entry, modules, run.command[-1], *tail]
        self._process: subprocess.Popen[bytes] | None = None
        self._launched = 0.0
        self._baseline: int | None = None

    @property
    def milestones(self) -> dict[str, float]:
        """Seconds from the launch to each start-up milestone."""
        return self._follower.milestones

    @property
    def pid(self) -> int:
        """The process that leads the group."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs or before its launch."""
        return None if self._process is None else self._process.poll()

    def spawn(self) -> None:
        """Start the process (one with ``preload`` imports and then waits for :meth:`go`)."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._run.env, **self.plan.env},
            )

    def go(self) -> None:
        """Let the engine start; its start-up time counts from here."""
        if self._process is None:
            self.spawn()
        assert self._process is not None
        assert self._process.stdin is not None
        limit = time.monotonic() + _PRELOAD_PATIENCE_S
        while self.plan.preload and self.exit_code is None and time.monotonic() < limit:
            if _PRELOADED.encode() in self._log.read_bytes():
                break
            time.sleep(0.1)
        self._baseline = gpu_memory_used(self._gpu)
        self._launched = time.monotonic()
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    def wait_ready(self) -> bool:
        """Wait for ``/health``, noting when each milestone line appeared; False when it died or took too long."""
        while (now := time.monotonic() - self._launched) < self._run.ready_timeout_s:
            self._follower.look(now)
            if ask(self._run.port, "/health", timeout=1.0)[0] == 200:
                self.ready_s = time.monotonic() - self._launched
                self.facts = read_facts(self._log.read_text(errors="replace"), {}, self.ready_s)
                return True
            if self.exit_code is not None:
                return False
            time.sleep(0.1)
        return False

    def hook(self) -> None:
        """Run the plan's ``before_stop`` command."""
        env = {
            **os.environ,
            "ENGINE_PID": str(self.pid),
            "ENGINE_URL": f"http://127.0.0.1:{self._run.port}",
            "ENGINE_MODEL": self._run.model,
            "OUT_DIR": str(self.folder),
        }
        with contextlib.suppress(subprocess.TimeoutExpired), (self.folder / "before_stop.log").open("wb") as log:
            subprocess.run(
                self.plan.before_stop, env=env, stdout=log, stderr=subprocess.STDOUT, timeout=60, check=False
            )

    def stop(self) -> dict[str, object]:
        """SIGTERM to the group, SIGKILL to what is left of it, then wait for the memory. Returns times in seconds."""
        if self._process is None:
            return {}
        began = time.monotonic()
        died_before = self.exit_code
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TERM_GRACE_S)
        leader_s = time.monotonic() - began
        while session_members(self.pid) and time.monotonic() - began < _TERM_GRACE_S:
            time.sleep(0.05)
        left = session_members(self.pid)
        self.kill()
        samples: list[tuple[float, int]] = []
        memory_back_s: float | None = None
        while (used := gpu_memory_used(self._gpu)) is not None and time.monotonic() - began < _MEMORY_PATIENCE_S:
            samples.append((round(time.monotonic() - began, 2), used))
            if used <= (self._baseline or 0) + _MEMORY_SLACK and not session_members(self.pid):
                memory_back_s = samples[-1][0]
                break
            time.sleep(0.1)
        return {
            "exit_code": self.exit_code,
            "died_before_stop": died_before,
            "leader_gone_s": round(leader_s, 2),
            "killed_by_sigkill": left,
            "memory_back_s": memory_back_s,
            "memory_samples": samples,
        }

    def kill(self) -> None:
        """SIGKILL to the whole group, dead leader or not; nothing before the launch."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The group's number is ours while a member lives or the leader is not waited for.
        if self.exit_code is None or session_members(self.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
