"""The parent's end of one worker process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from array import array
from typing import IO

from autotune.base.errors import EnvironmentProblemError
from autotune.load._wire import Message, encode, receive

_START_TIMEOUT = 60.0
_END_TIMEOUT = 5.0
_MOST_WORDS = 65536


class WorkerProcess:
    """Starts, talks to and ends one worker."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._words: IO[bytes] | None = None
        """What the worker prints: a file without a name, so that no kill leaves it behind."""

    async def start(self, setup: Message) -> None:
        """Start the process and wait for its greeting.

        Raises:
            EnvironmentProblemError: it did not come up.
        """
        ours, theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the worker
        try:
            # A process group of its own: the terminal's Ctrl-C is for the parent to act on.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "autotune.load._worker",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        self.post(setup)
        try:
            greeting = await asyncio.wait_for(self.receive(), _START_TIMEOUT)
        except TimeoutError as error:
            raise EnvironmentProblemError(
                "load worker: no greeting within 60 s.", "Is this machine overloaded?"
            ) from error
        if greeting is None:
            raise self.lost()

    def post(self, message: Message) -> None:
        """Send a message; silently dropped when the worker is gone (the reader will notice)."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> Message | array[float] | None:
        """The next message; None when the worker is gone."""
        return None if self._reader is None else await receive(self._reader)

    def lost(self) -> EnvironmentProblemError:
        """The error of a worker that ended by itself, with its last words."""
        words = ""
        if self._words is not None:
            # Read without moving the position: the worker, which may still write, shares it.
            file = self._words.fileno()
            printed = os.pread(file, _MOST_WORDS, max(0, os.fstat(file).st_size - _MOST_WORDS))
            lines = printed.decode(errors="replace").strip().splitlines()
            words = f": {lines[-1]}" if lines else ""
        return EnvironmentProblemError(f"load worker ended unexpectedly{words}.", "Report this with --debug's output.")

    async def close(self) -> None:
        """Let the worker end, by force if it does not. Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), _END_TIMEOUT)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
            self._process = None
        if self._words is not None:
            self._words.close()
            self._words = None
