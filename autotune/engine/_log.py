"""The log of an engine, capped: its head and its tail, long lines cut, secrets left out."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path

from autotune.base.files import write_atomically
from autotune.engine._redaction import Redactor

HEAD_BYTES = 512 * 1024
TAIL_BYTES = 512 * 1024
LINE_BYTES = 8192
_READ_BYTES = 65536
_REWRITE_EVERY_S = 5.0


class CappedLog:
    """Reads what an engine prints until its last process closes the pipe.

    The head goes to the file at once. When it is full, the file is rewritten as head, a note and the tail, at most
    every few seconds and at the end: after a kill of the tuner it lacks those seconds at most. ``grown`` counts all
    bytes that were printed, so that silence can be seen.
    """

    def __init__(
        self, path: Path, redactor: Redactor, *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES
    ) -> None:
        self.path = path
        self.grown = 0
        self._redactor = redactor
        self._head_left = head_bytes
        self._tail_bytes = tail_bytes
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._tail_held = 0
        self._dropped = 0
        self._partial = b""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._rewritten = 0.0
        path.write_bytes(b"")

    def drain(self, descriptor: int) -> None:
        """Read a pipe in a thread of its own, and close it at its end."""
        self._thread = threading.Thread(target=self._read, args=(descriptor,), name="engine-log", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """What is kept so far, with a note where lines were left out."""
        with self._lock:
            return self._text()

    def note(self, line: str) -> None:
        """Add a line of the supervisor's own."""
        with self._lock:
            self._add(f"[autotune] {line}\n")

    def finish(self, patience: float = 2.0) -> None:
        """Wait for the end of the pipe and write the file as it stays."""
        if self._thread is not None:
            self._thread.join(patience)
        with self._lock:
            if self._partial:
                self._take_line(self._partial)
                self._partial = b""
            self._write()

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as pipe:
            while chunk := pipe.read(_READ_BYTES):
                with self._lock:
                    self.grown += len(chunk)
                    self._feed(chunk)

    def _feed(self, chunk: bytes) -> None:
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            self._take_line(line)
        if len(self._partial) > 2 * LINE_BYTES:
            # A progress bar only ever returns to the start of its line: what it showed last is enough.
            self._partial = self._partial.rsplit(b"\r", 1)[-1][-2 * LINE_BYTES :]
        if self._dropped and time.monotonic() - self._rewritten > _REWRITE_EVERY_S:
            self._write()

    def _take_line(self, raw: bytes) -> None:
        shown = raw.rstrip(b"\r").rsplit(b"\r", 1)[-1]
        if len(shown) > LINE_BYTES:
            shown = shown[: LINE_BYTES - 1024] + b" [...] " + shown[-1000:]
        self._add(self._redactor.redact(shown.decode("utf-8", "replace")) + "\n")

    def _add(self, line: str) -> None:
        size = len(line)
        if self._head_left >= size and not self._tail:
            self._head_left -= size
            self._head.append(line)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
            return
        self._tail.append(line)
        self._tail_held += size
        while self._tail_held > self._tail_bytes:
            self._tail_held -= len(self._tail.popleft())
            self._dropped += 1
        if not self._dropped:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _text(self) -> str:
        note = [f"[autotune] {self._dropped} lines were left out here\n"] if self._dropped else []
        return "".join([*self._head, *note, *self._tail])

    def _write(self) -> None:
        self._rewritten = time.monotonic()
        if self.path.parent.is_dir():
            write_atomically(self.path, self._text())
