"""Reads one streamed OpenAI answer: bytes in, tokens, times and the outcome out.

The reader is fed whatever the network delivers and gives the same result however the bytes are cut. It is
built for cost: nearly all events of an answer differ from the first token's event in nothing but the
token's text, so after the first one the bytes around the text are known (the *template*) and an event that
matches them is counted without parsing JSON; where one read holds one event, without calling the reader.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias, cast

from autotune.load._shortcut import Shortcut, is_plain_text
from autotune.load.records import ErrorKind, TokenSource

Json: TypeAlias = "Mapping[str, Json] | list[Json] | str | int | float | bool | None"

_FAILED_FINISH = ("abort", "error")
_OUTPUT_FIELDS = ("content", "reasoning", "reasoning_content", "refusal")
_DATA = b"data: "
_EVENT_END = b"\n\n"
_DETAIL_LIMIT = 300
_MAX_LINE = 16 * 2**20
_TEMPLATE_ATTEMPTS = 3


class StreamReader:
    """Incremental reader of one answer.

    Times are whatever clock the caller passes to ``feed``; only the caller knows when bytes arrived.
    ``done`` becomes True at ``[DONE]`` or at a failure: nothing after it changes the result.
    """

    __slots__ = (
        "_attempts",
        "_data_lines",
        "_failure",
        "_finished",
        "_first_silent",
        "_keep_text",
        "_last_silent",
        "_other_events",
        "_prefix",
        "_rest",
        "_settled",
        "_shortcut",
        "_silent",
        "_skip_newline",
        "_suffix",
        "_texts",
        "_usage_output",
        "done",
        "finish_reason",
        "first_token_event",
        "input_tokens",
        "saw_done",
        "times",
    )

    def __init__(self, *, keep_text: bool = False) -> None:
        self.times = array("d")
        """When each event with output arrived."""
        self.first_token_event: int | None = None
        """Number (from 0) of the first event with output."""
        self.finish_reason: str | None = None
        self.input_tokens: int | None = None
        self.done = False
        self.saw_done = False
        self._other_events = 0
        self._finished: float | None = None
        self._usage_output: int | None = None
        self._failure: tuple[ErrorKind, str] | None = None
        self._keep_text = keep_text
        self._texts: list[str] = []
        self._rest = b""
        self._skip_newline = False
        self._data_lines: list[bytes] = []
        self._silent = 0
        self._first_silent: float | None = None
        self._last_silent: float | None = None
        self._settled: tuple[float, float] | None = None
        self._attempts = 0
        self._prefix = self._suffix = b""
        self._shortcut: Shortcut | None = None

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes of the body that arrived at ``now``."""
        if self.done:
            return
        if (
            not self._rest
            and not self._data_lines
            and not self._skip_newline
            and data.startswith(_DATA)
            and data.endswith(_EVENT_END)
            and b"\r" not in data
        ):
            for block in data[: -len(_EVENT_END)].split(_EVENT_END):
                if block.startswith(_DATA) and b"\n" not in block:
                    self._event(block[len(_DATA) :], now)
                else:
                    self._lines(block + _EVENT_END, now)
        else:
            self._lines(data, now)

    @property
    def shortcut(self) -> Shortcut | None:
        """How to recognise a plain token without this reader; None when the next bytes need it."""
        if not self._prefix or self._keep_text or self.done or self._rest or self._data_lines or self._skip_newline:
            return None
        return self._shortcut

    def close(self, now: float) -> None:
        """The body ended at ``now``: read what is left, then judge the answer."""
        if not self.done and (self._rest or self._data_lines):
            self._lines(b"\n\n", now)
        self.done = True
        if self._failure is not None:
            return
        if self.finish_reason in _FAILED_FINISH:
            self._fail(ErrorKind.ABORTED_BY_SERVER, f"finish_reason '{self.finish_reason}'")
        elif self.finish_reason is None and not self.saw_done:
            self._fail(ErrorKind.BROKEN_STREAM, f"the stream ended after {self.chunks} chunks without [DONE]")
        elif self.chunks == 0 and (self._silent == 0 or not self._usage_output):
            self._fail(ErrorKind.BROKEN_STREAM, "the stream ended before the first token")
        else:
            self._settle_silent_tokens()

    @property
    def events(self) -> int:
        """Data events so far, ``[DONE]`` included."""
        return self._other_events + len(self.times)

    @property
    def chunks(self) -> int:
        """Events that carried output."""
        return len(self.times)

    @property
    def first_token(self) -> float | None:
        """When the first output token of any kind arrived."""
        if self._settled is not None:
            return self._settled[0]
        return self.times[0] if self.times else None

    @property
    def last_token(self) -> float | None:
        """When the last output token arrived."""
        if self._settled is not None:
            return self._settled[1]
        return self.times[-1] if self.times else None

    @property
    def finished(self) -> float | None:
        """When the last event arrived."""
        if self.times and (self._finished is None or self.times[-1] > self._finished):
            return self.times[-1]
        return self._finished

    @property
    def gaps(self) -> array[float]:
        """Spans between consecutive events with output."""
        times = self.times
        return array("d", (after - before for before, after in pairwise(times)))

    @property
    def complete(self) -> bool:
        """True when the server said that the answer is whole, though the body may go on."""
        return self.saw_done or self.finish_reason is not None

    @property
    def failure(self) -> tuple[ErrorKind, str] | None:
        """Why the answer is a failure; None when it is not one (so far)."""
        return self._failure

    @property
    def output_tokens(self) -> int:
        """From the last ``usage``; without one, an estimate: the number of events with output."""
        return self.chunks if self._usage_output is None else self._usage_output

    @property
    def token_source(self) -> TokenSource:
        """Where ``output_tokens`` comes from; none for a failed answer."""
        if self._failure is not None:
            return TokenSource.NONE
        return TokenSource.ESTIMATE if self._usage_output is None else TokenSource.USAGE

    @property
    def text(self) -> str:
        """The visible answer, without reasoning; empty unless ``keep_text`` was set."""
        return "".join(self._texts)

    def _lines(self, data: bytes, now: float) -> None:
        """The slow way: lines as the SSE standard has them, ends of LF, CRLF or CR, cut anywhere."""
        buffer = self._rest + data if self._rest else data
        start = 0
        if self._skip_newline and buffer:
            self._skip_newline = False
            start = 1 if buffer[:1] == b"\n" else 0
        while not self.done:
            newline = buffer.find(b"\n", start)
            stop = newline if newline >= 0 else len(buffer)
            carriage = buffer.find(b"\r", start, stop)
            if carriage >= 0:
                after = carriage + 1
                if after == len(buffer):
                    self._skip_newline = True
                elif buffer[after : after + 1] == b"\n":
                    after += 1
                self._line(buffer[start:carriage], now)
                start = after
            elif newline >= 0:
                self._line(buffer[start:newline], now)
                start = newline + 1
            else:
                break
        self._rest = b"" if self.done else buffer[start:]
        if len(self._rest) > _MAX_LINE:
            self._fail(ErrorKind.BROKEN_STREAM, f"a line of more than {_MAX_LINE} bytes")

    def _line(self, line: bytes, now: float) -> None:
        if line.startswith(b"data:"):
            self._data_lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            self._data_lines.append(b"")
        elif not line and self._data_lines:
            lines, self._data_lines = self._data_lines, []
            if len(lines) > 1 and _load(b"\n".join(lines)) is None:
                # Some proxies drop the blank line between events.
                for single in lines:
                    self._event(single, now)
            else:
                self._event(b"\n".join(lines), now)

    def _event(self, payload: bytes, now: float) -> None:
        if self.done:
            return
        if self._prefix and payload.startswith(self._prefix) and payload.endswith(self._suffix):
            text = payload[len(self._prefix) : -len(self._suffix)]
            if is_plain_text(text) and len(payload) > len(self._prefix) + len(self._suffix):
                self._plain_token(text, now)
                return
        self._other_events += 1
        self._finished = now
        if payload.strip() == b"[DONE]":
            self.saw_done = self.done = True
            return
        if not payload.strip():
            return
        event = _load(payload)
        if event is None:
            shown = payload[:80].decode("utf-8", "replace")
            self._fail(ErrorKind.BROKEN_STREAM, f"not a JSON event: {shown!r}")
            return
        self._object(event, payload, now)

    def _object(self, event: Mapping[str, Json], payload: bytes, now: float) -> None:
        if event.get("error") or event.get("object") == "error":
            self._fail(ErrorKind.STREAM_ERROR, error_text(event))
            return
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage(usage)
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.finish_reason = reason
        delta = choice.get("delta")
        body: Mapping[str, Json] = delta if isinstance(delta, dict) else choice
        field = next((name for name in ("text", *_OUTPUT_FIELDS) if _is_text(body.get(name))), None)
        if field is not None or body.get("tool_calls") or body.get("function_call"):
            self._other_events -= 1
            if self.first_token_event is None:
                self.first_token_event = self.events
            self.times.append(now)
            if field in ("text", "content"):
                self._keep(cast("str", body[field]))
            if field is not None and reason is None and not isinstance(usage, dict) and not self._prefix:
                self._learn(payload, field)
        elif "role" not in body or reason is not None:
            self._silent += 1
            self._last_silent = now
            if self._first_silent is None:
                self._first_silent = now

    def _usage(self, usage: Mapping[str, Json]) -> None:
        output, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if isinstance(output, int) and output >= 0:
            self._usage_output = output
        if isinstance(prompt, int) and prompt >= 0:
            self.input_tokens = prompt

    def _plain_token(self, text: bytes, now: float) -> None:
        self.times.append(now)
        if self._keep_text and (b'"content"' in self._prefix[-16:] or b'"text"' in self._prefix[-16:]):
            decoded = _load(b'{"text":"' + text + b'"}')
            if decoded is not None:
                self._keep(str(decoded["text"]))

    def _keep(self, text: str) -> None:
        if self._keep_text:
            self._texts.append(text)

    def _learn(self, payload: bytes, field: str) -> None:
        """Take the bytes around the token's text as the template of the events to come.

        An event of the template differs in the inside of one string, named like the field with the text. Were
        it another string of that name, the text itself would be the same as here: a token all the same.
        """
        if self._attempts >= _TEMPLATE_ATTEMPTS:
            return
        self._attempts += 1
        for marker in (f'"{field}":"'.encode(), f'"{field}": "'.encode()):
            start = payload.find(marker) + len(marker)
            if start >= len(marker):
                end = _string_end(payload, start)
                if end > start:
                    self._prefix, self._suffix = payload[:start], payload[end:]
                    self._shortcut = Shortcut(_DATA + self._prefix, self._suffix + _EVENT_END, self.times.append)
                return

    def _settle_silent_tokens(self) -> None:
        """Decide whether events without text were tokens.

        A special token, or one that ends inside a character, has no text of its own. When the server's
        count equals the number of events, every event was one token, so the first and the last of them
        are the first and the last token. Otherwise only events with output count.
        """
        if self._first_silent is None or self._last_silent is None:
            return
        if self._usage_output == self.chunks + self._silent or self.chunks == 0:
            first, last = (self.times[0], self.times[-1]) if self.times else (self._first_silent, self._last_silent)
            self._settled = min(self._first_silent, first), max(self._last_silent, last)

    def _fail(self, kind: ErrorKind, detail: str) -> None:
        self._failure = (kind, detail[:_DETAIL_LIMIT])
        self.done = True


def error_text(document: Mapping[str, Json]) -> str:
    """The server's own reason in an error document of any of the usual shapes, on one line."""
    error = document.get("error")
    source: Mapping[str, Json] = error if isinstance(error, dict) else document
    message = source.get("message") or source.get("detail") or error or "error without a message"
    text = message if isinstance(message, str) else json.dumps(message)
    return " ".join(text.split())[:_DETAIL_LIMIT]


def _load(payload: bytes) -> dict[str, Json] | None:
    """The JSON object in ``payload``; None when it is anything else."""
    try:
        # Decoding first spares json's guess of the encoding, which costs more than the parsing.
        value = json.loads(payload.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and value != ""


def _string_end(payload: bytes, start: int) -> int:
    """Offset of the quote that ends the JSON string which begins at ``start``."""
    end = payload.find(b'"', start)
    while end > 0:
        backslashes = len(payload[start:end]) - len(payload[start:end].rstrip(b"\\"))
        if backslashes % 2 == 0:
            return end
        end = payload.find(b'"', end + 1)
    return start
