"""A small process that outlives the tuner and ends its engines when the tuner was killed.

Run as ``python -m autotune.engine._guard PID CREATE_TIME``. It reads lines of JSON from its standard input, one for
each engine that starts or has ended, and acts when the pipe closes or the tuner is gone: what is registered is ended.
A tuner that leaves in good order has taken all its engines off the list, and the guard just leaves.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import autotune
from autotune.engine._marker import Marker, without_marker
from autotune.engine._procfs import ProcessIdentity, is_alive, own_identity
from autotune.engine._session import Session

_LOOK_EVERY_S = 1.0
_GRACE_S = 10.0


class Guard:
    """The tuner's end: starts the guard with the first engine and tells it of each."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._watched: dict[ProcessIdentity, Marker] = {}
        self._lock = threading.Lock()

    def watch(self, leader: ProcessIdentity, marker: Marker) -> None:
        """Have an engine ended should this process die."""
        with self._lock:
            self._watched[leader] = marker
            if self._process is not None and self._process.poll() is None:
                self._tell(_watch_message(leader, marker))
                return
            # A guard that was killed is started again and told of all.
            self._process = self._start()
            for other, mark in self._watched.items():
                self._tell(_watch_message(other, mark))

    def forget(self, leader: ProcessIdentity) -> None:
        """Nothing of this engine is left."""
        with self._lock:
            self._watched.pop(leader, None)
            self._tell({"forget": [leader.pid, leader.create_time]})

    def _tell(self, message: dict[str, object]) -> None:
        pipe = self._process.stdin if self._process is not None else None
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def _start(self) -> subprocess.Popen[bytes]:
        tuner = own_identity()
        environment = without_marker(os.environ)
        root = str(Path(autotune.__file__).resolve().parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
        return subprocess.Popen(
            [sys.executable, "-m", "autotune.engine._guard", str(tuner.pid), str(tuner.create_time)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


def _watch_message(leader: ProcessIdentity, marker: Marker) -> dict[str, object]:
    return {"watch": [leader.pid, leader.create_time], "mark": marker.environment()}


@functools.cache
def shared_guard() -> Guard:
    """The one guard of this process; it starts with the first engine."""
    return Guard()


def main(arguments: list[str]) -> int:
    """Wait for the tuner's end, then end what it left."""
    tuner = ProcessIdentity(int(arguments[0]), float(arguments[1]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: dict[ProcessIdentity, Session] = {}
    descriptor = sys.stdin.fileno()
    received = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], _LOOK_EVERY_S)
        if ready:
            chunk = os.read(descriptor, 65536)
            if not chunk:
                break
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                _note(sessions, json.loads(line))
        elif not is_alive(tuner):
            break
        else:
            for session in sessions.values():
                session.look()
    threads = [threading.Thread(target=session.end, kwargs={"grace": _GRACE_S}) for session in sessions.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def _note(sessions: dict[ProcessIdentity, Session], message: dict[str, object]) -> None:
    match message:
        case {"watch": [int(pid), float(created)], "mark": dict(environment)}:
            leader = ProcessIdentity(pid, created)
            sessions[leader] = Session(leader, Marker.read(environment))
        case {"forget": [int(pid), float(created)]}:
            sessions.pop(ProcessIdentity(pid, created), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
