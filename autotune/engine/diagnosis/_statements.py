"""What a log states about trouble: exceptions with their frames, error lines, words of shells and parsers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.engine.diagnosis._lines import Line

_FRAME = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+(?:, in (?P<function>.+))?')
_NATIVE_FRAME = re.compile(r"frame #\d+: ")
_TRACEBACK = "Traceback (most recent call last)"
_NAMED = r"(?:[A-Za-z_][\w]*\.)*(?P<type>[A-Za-z_]\w*)"
_ENDS_LIKE_ERROR = r"(?:Error|Exception|Interrupt|Exit|Failed|Unsupported|OutOfResources|Timeout|Expired|Mismatch)"
_EXCEPTION = re.compile(
    rf"(?:[A-Za-z_]\w*\.)*(?:RayTaskError\()?(?P<type>[A-Z]\w*{_ENDS_LIKE_ERROR}|[A-Z]\w*Error\w*)\)?(?::"
    " (?P<message>.*))?$"
)
_REPR = re.compile(
    rf"(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*{_ENDS_LIKE_ERROR})\((?P<quote>['\"])(?P<message>.*)(?P=quote),?\)"
)
_LAST_OF_TRACEBACK = re.compile(rf"{_NAMED}(?:: (?P<message>.*))?$")
_BETWEEN = re.compile(r"(?:During handling of|The above exception was)")
_ORIGINAL = re.compile(r"original error: (?P<inner>\w+\(.*\))")
_IN_METHOD = re.compile(r"while processing method (?P<method>\w+): (?P<message>.*?),? ?$")
_REQUEST_ONLY = re.compile(
    r"Exception in ASGI application|Error in preprocessing prompt|Error in (?:applying|generating)"
)
_CONTINUATIONS = 14


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame: file, function and the source line shown under it."""

    path: str
    function: str
    code: str = ""


@dataclass(slots=True)
class Statement:
    """One statement of trouble. ``lines`` are the log lines of its message, the first one first."""

    type: str
    """Class of the exception without its module, or an empty string for a plain error line."""
    lines: list[Line]
    texts: list[str]
    frames: list[Frame] = field(default_factory=list)
    request_only: bool = False
    """True when one request failed and the server went on."""

    @property
    def message(self) -> str:
        """The whole message, its lines joined."""
        return "\n".join(self.texts)

    @property
    def number(self) -> int:
        """Position of its first line in the log."""
        return self.lines[0].number


@dataclass(slots=True)
class _Open:
    """What one writer has begun: frames of a traceback, and an exception whose message may go on."""

    frames: list[Frame] = field(default_factory=list)
    in_traceback: bool = False
    header: Statement | None = None
    last: Statement | None = None
    request_only: bool = False


def read_statements(lines: Sequence[Line]) -> list[Statement]:
    """Statements in the order in which they end; writers whose lines interleave are kept apart."""
    reader = _Reader()
    for line in lines:
        reader.feed(line)
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self._found: list[Statement] = []
        self._writers: dict[tuple[str, str], _Open] = {}
        self._request_only_plain = False

    def finish(self) -> list[Statement]:
        for writer in self._writers.values():
            if writer.header is not None:
                writer.header.frames = writer.frames
                self._found.append(writer.header)
        return sorted(self._found, key=lambda statement: statement.number)

    def feed(self, line: Line) -> None:
        if line.quiet:
            self._request_only_plain = False
            plain = self._writers.get((line.source, ""))
            if plain is not None:
                plain.last = None
            return
        key = (line.source, line.origin if line.level else "")
        writer = self._writers.setdefault(key, _Open())
        if line.level:
            self._request_only_plain = bool(_REQUEST_ONLY.match(line.text))
            writer.request_only = writer.request_only and not line.text.startswith("Traceback")
        if _REQUEST_ONLY.match(line.text):
            writer.request_only = True
        text = line.text
        if _TRACEBACK in text:
            self._begin_traceback(writer, line, text.split(_TRACEBACK)[0])
        elif frame := _FRAME.match(text):
            writer.in_traceback = True
            writer.last = None
            writer.frames.append(Frame(frame["path"], (frame["function"] or "").strip()))
        elif _BETWEEN.match(text.strip()):
            writer.last = None
        elif not self._exception(writer, line, text):
            self._other(writer, line, text)

    def _begin_traceback(self, writer: _Open, line: Line, before: str) -> None:
        writer.frames = []
        writer.in_traceback = True
        writer.last = None
        writer.header = None
        if method := _IN_METHOD.search(before):
            writer.frames.append(Frame("", method["method"]))
            writer.header = Statement("", [line], [method["message"]])

    def _exception(self, writer: _Open, line: Line, text: str) -> bool:
        stripped = text.strip() if line.level or not text.startswith("    ") else text
        match = _EXCEPTION.match(stripped)
        if match is None and writer.in_traceback and writer.frames and not text.startswith(" "):
            match = _LAST_OF_TRACEBACK.match(stripped)
        if match is None:
            match = _REPR.match(stripped)
        if match is None:
            return False
        message = match["message"] or ""
        kind = match["type"]
        if original := _ORIGINAL.search(message):
            inner = _REPR.match(original["inner"])
            if inner is not None:
                kind, message = inner["type"], inner["message"]
        statement = Statement(
            kind, [line], [message], writer.frames, request_only=writer.request_only or self._request_only_plain
        )
        self._found.append(statement)
        writer.last = statement
        writer.frames = []
        writer.in_traceback = False
        writer.header = None
        return True

    def _other(self, writer: _Open, line: Line, text: str) -> None:
        if writer.in_traceback:
            if writer.frames and (text.startswith(" ") or line.level):
                last = writer.frames[-1]
                if not last.code and text.strip(" ^~"):
                    writer.frames[-1] = Frame(last.path, last.function, text.strip())
                    return
                if not text.strip(" ^~"):
                    return
            elif _NATIVE_FRAME.match(text):
                return
        last_statement = writer.last
        if last_statement is not None and len(last_statement.lines) < _CONTINUATIONS:
            last_statement.lines.append(line)
            last_statement.texts.append(text.strip())
            # The rest of a message is not a statement by itself unless a logger wrote it.
            if not line.level:
                return
        if line.level and not writer.in_traceback and len(writer.frames) < _CONTINUATIONS:
            # Collectors drop the indentation of frames; what came just before an exception still tells where it was.
            writer.frames.append(Frame("", "", text.strip()))
        if text.strip():
            self._found.append(Statement("", [line], [text.strip()], request_only=writer.request_only))
