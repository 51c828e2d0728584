"""Engines forked from a process that has vLLM imported already, or started plainly where that is not possible."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engine._guard import Guard
from autotune.engine._log import CappedLog
from autotune.engine._marker import Marker
from autotune.engine._process import Child, spawn
from autotune.engine._procfs import ProcessIdentity, is_alive, look_at
from autotune.engine._session import Session
from autotune.engine.inside import vllm_zygote

_READY_PATIENCE_S = 180.0
_ANSWER_PATIENCE_S = 20.0
_CODE_PATIENCE_S = 2.0
_UNKNOWN_CODE = 1
_MESSAGE_BYTES = 1 << 16
_MARKS = frozenset({"AUTOTUNE_ENGINE_ID"})


class ColdStartError(Exception):
    """The preloaded process cannot be used; engines are started plainly."""


class _ForkedChild:
    """A process that the preloaded one forked: its exit code comes by message."""

    def __init__(self, pid: int, zygote: Zygote) -> None:
        self._pid = pid
        self._zygote = zygote
        state = look_at(pid)
        self._identity = state.identity if state is not None else None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._pid

    def poll(self) -> int | None:
        """The exit code; 1 where the process is gone and nobody can tell any more."""
        code = self._zygote.exit_code(self._pid, patience=0.0)
        if code is None and not (self._identity is not None and is_alive(self._identity)):
            code = self._zygote.exit_code(self._pid, patience=_CODE_PATIENCE_S)
            return _UNKNOWN_CODE if code is None else code
        return code


class Zygote:
    """Our end of one preloaded process. Its environment is that of all its engines."""

    def __init__(self, python: str, environment: Mapping[str, str], guard: Guard | None) -> None:
        self.environment = dict(environment)
        self._guard = guard
        self._codes: dict[int, int] = {}
        self._started: list[int] = []
        self._arrived = threading.Condition()
        self._ready: dict[str, object] | None = None
        self._closed = False
        self._marker = Marker.new(environment.get("AUTOTUNE_STUDY", ""))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = ours
        with theirs:
            self._process = subprocess.Popen(
                [python, str(Path(vllm_zygote.__file__)), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environment, **self._marker.environment()},
                start_new_session=True,
            )
        state = look_at(self._process.pid)
        self._leader = state.identity if state is not None else ProcessIdentity(self._process.pid, 0.0)
        if guard is not None:
            guard.watch(self._leader, self._marker)
        threading.Thread(target=self._listen, name="zygote", daemon=True).start()

    def fork(self, module: str, command: Sequence[str], environment: Mapping[str, str], output: int) -> Child:
        """Fork a server.

        Raises:
            ColdStartError: the process is gone or does not answer.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._ready is not None or self._closed, _READY_PATIENCE_S):
                raise ColdStartError("imports took too long")
            if self._ready is None or not self._ready.get("ready"):
                raise ColdStartError(str((self._ready or {}).get("error", "it ended while importing")))
            request = {"module": module, "command": list(command), "environment": dict(environment)}
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [output])
            except OSError as error:
                raise ColdStartError(str(error)) from error
            if not self._arrived.wait_for(lambda: bool(self._started) or self._closed, _ANSWER_PATIENCE_S):
                raise ColdStartError("it does not answer")
            if not self._started:
                raise ColdStartError("it ended")
            return _ForkedChild(self._started.pop(0), self)

    def exit_code(self, pid: int, *, patience: float) -> int | None:
        """The exit code of an engine; None where word of it has not come within ``patience`` wall seconds."""
        with self._arrived:
            self._arrived.wait_for(lambda: pid in self._codes or self._closed, patience)
            return self._codes.get(pid)

    @property
    def usable(self) -> bool:
        """False once it ended."""
        return not self._closed and self._process.poll() is None

    def abandon(self) -> None:
        """Have whoever waits for it give up."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()

    def close(self) -> None:
        """End it; engines that it forked are not touched."""
        self._channel.close()
        Session(self._leader, self._marker).end(self._process.poll, grace=2.0)
        self._process.wait()
        if self._guard is not None:
            self._guard.forget(self._leader)

    def _listen(self) -> None:
        while True:
            try:
                data = self._channel.recv(_MESSAGE_BYTES)
            except OSError:
                data = b""
            with self._arrived:
                if not data:
                    self._closed = True
                    self._arrived.notify_all()
                    return
                message = json.loads(data)
                if "ready" in message:
                    self._ready = message
                elif "started" in message:
                    # The number may have been another engine's before.
                    self._codes.pop(int(message["started"]), None)
                    self._started.append(int(message["started"]))
                elif "ended" in message:
                    self._codes[int(message["ended"])] = int(message["code"])
                self._arrived.notify_all()


class WarmLauncher:
    """Launches engines from a preloaded process as long as that works, plainly otherwise.

    Args:
        python: vLLM's Python.
        command: the words in front of ``serve`` or ``--model``, as in a plain start: a Python, ``-m`` and a module.
        guard: ends the preloaded process should this one die.
    """

    def __init__(self, python: str, command: Sequence[str], guard: Guard | None) -> None:
        self._python = python
        self._words = len(command)
        self._module = command[2] if list(command[1:2]) == ["-m"] else "vllm.entrypoints.cli.main"
        self._guard = guard
        self._zygote: Zygote | None = None
        self._given_up = False
        self._cancelled = False
        self._lock = threading.Lock()

    @property
    def warm(self) -> bool:
        """Whether the next start will fork."""
        return not self._given_up

    def give_up(self) -> None:
        """Start plainly from now on."""
        with self._lock:
            self._given_up = True
            self._close()

    def close(self) -> None:
        """End the preloaded process."""
        with self._lock:
            self._close()

    def cancel(self) -> None:
        """Have a start that waits for imports end at once."""
        self._cancelled = True
        zygote = self._zygote
        if zygote is not None:
            zygote.abandon()

    def __call__(self, command: Sequence[str], environment: Mapping[str, str], log: CappedLog) -> Child:
        with self._lock:
            self._cancelled = False
            if not self._given_up:
                try:
                    return self._fork(command, environment, log)
                except (ColdStartError, OSError) as error:
                    if self._cancelled:
                        self._close()
                        raise OSError("the start was cancelled") from error
                    log.note(f"started plainly: {error}")
                    self._given_up = True
                    self._close()
        return spawn(command, environment, log)

    def _fork(self, command: Sequence[str], environment: Mapping[str, str], log: CappedLog) -> Child:
        zygote = self._fitting(environment)
        reading, writing = os.pipe()
        try:
            child = zygote.fork(self._module, ["vllm", *command[self._words :]], environment, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        log.drain(reading)
        return child

    def _fitting(self, environment: Mapping[str, str]) -> Zygote:
        # Imports read the environment: a process serves only engines that would have had the same.
        common = {name: value for name, value in environment.items() if name not in _MARKS}
        if self._zygote is not None and (not self._zygote.usable or self._zygote.environment != common):
            self._close()
        if self._zygote is None:
            self._zygote = Zygote(self._python, common, self._guard)
        return self._zygote

    def _close(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
