"""Log lines in vLLM's form: process prefix, level, time, place, text."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import TextIO


class EngineLog:
    """Writes to one stream, each line at once. The engine core speaks under a process id of its own, if it has one."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.core_pid = os.getpid()

    def api(self, place: str, text: str, level: str = "INFO") -> None:
        """A line of the API server."""
        self._write(f"(APIServer pid={os.getpid()}) ", level, place, text)

    def core(self, place: str, text: str, level: str = "INFO") -> None:
        """A line of the engine core."""
        self._write(f"(EngineCore pid={self.core_pid}) ", level, place, text)

    def plain(self, text: str) -> None:
        """A line without any prefix."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def core_traceback(self, place: str, title: str, frames: tuple[str, ...], error: str) -> None:
        """An exception of the engine core: once as log lines, once as Python prints it when the process ends."""
        lines = ["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), *error.splitlines()]
        for line in (title, *lines):
            self.core(place, line, "ERROR")
        self.plain("\n".join(f"(EngineCore pid={self.core_pid}) {line}" for line in lines))

    def api_traceback(self, frames: tuple[str, ...], error: str) -> None:
        """An exception that ends the API server."""
        prefix = f"(APIServer pid={os.getpid()}) "
        lines = ["Traceback (most recent call last):", *(f"  {frame}" for frame in frames), *error.splitlines()]
        self.plain("\n".join(prefix + line for line in lines))

    def _write(self, prefix: str, level: str, place: str, text: str) -> None:
        stamp = datetime.now().strftime("%m-%d %H:%M:%S")
        head = f"{prefix}{level} {stamp} [{place}] "
        self.plain("\n".join(head + line for line in text.splitlines() or [""]))
