"""Log lines without what loggers, containers and launchers put in front of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """Severity that the innermost logger gave a line."""

    PLAIN = 0
    """No logger wrote it: a print, a traceback, a shell."""
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


_LEVELS = {
    "DEBUG": Level.DEBUG,
    "INFO": Level.INFO,
    "WARNING": Level.WARNING,
    "WARN": Level.WARNING,
    "ERROR": Level.ERROR,
    "CRITICAL": Level.CRITICAL,
    "FATAL": Level.CRITICAL,
    # glog calls much an error that is none: TensorFlow's complaints at import, rendezvous that are tried again.
    "I": Level.INFO,
    "W": Level.WARNING,
    "E": Level.PLAIN,
    "F": Level.CRITICAL,
}
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # vLLM's own formatter, new and old: "ERROR 11-30 12:00:00 [core.py:12] x", "INFO 11-30 12:00:00 config.py:5] x"
        rf"{_LEVEL} (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)? \[?(?P<origin>[\w./-]+:\d+)\] ?",
        # collectors that name a level of their own: "INFO 2025-11-19T20:16:36.09Z [resource.labels.x: y] "
        rf"{_LEVEL} \d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)? (?:\[[^\]]*\] )?",
        # containers: "2025-11-19T20:16:36.09Z stderr F ", "2025-11-19 20:16:36,096 ", "[2025-11-19 20:16:36] "
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?[ :]+",
        # syslog: "Nov 30 12:00:00 host vllm[123]: "
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+?(?:\[\d+\])?: ",
        # compose and kubectl: "vllm-1  | ", "[pod/vllm-0/vllm] "
        r"[\w.-]+ +\| (?=\S)",
        r"\[pod/[^\]]+\] ",
        # glog, as torch and XLA use it: "[W1130 17:00:26.3 socket.cpp:207] ", "E0000 00:00:17.1 12 cuda_dnn.cc:8310] "
        r"\[?(?P<glog>[IWEF])\d{4} \d\d:\d\d:[\d.]+(?: +\d+)? \S+:\d+\] ?",
        # processes: "(EngineCore_DP0 pid=71) ", "(RayWorkerWrapper pid=7, ip=10.0.0.1) ", "[rank0]: "
        r"\((?P<source>[A-Za-z][\w:.-]*(?: rank=\d+)? pid=\d+(?:, ip=[^)]*)?)\) ?",
        r"\[(?P<rank>rank\d+)\]: ?",
        # exception groups: "  | "
        r" *(?:\| |\|$)",
        # Python's and uvicorn's loggers: "ERROR:    x", "ERROR:root:x", "INFO - x"
        rf"{_LEVEL}:(?:[\w.]+:| +)",
        rf"(?:[\w.]+ - )?{_LEVEL} - ",
        rf"\[{_LEVEL}\] ",
    )
)


_LONGEST = 2500
"""Characters of a line that are read: what a message says stands at its start, dumps of whole configurations follow."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: ``text`` is what was said, ``raw`` the line as found."""

    number: int
    """Position in the log, from 0."""
    raw: str
    text: str
    level: Level
    source: str
    """The process that wrote it as far as the prefixes tell, or an empty string."""
    stamp: str
    """vLLM's time stamp ``MM-DD HH:MM:SS``, or an empty string."""
    origin: str
    """``file.py:line`` of the logging call, or an empty string."""

    @property
    def quiet(self) -> bool:
        """True for debug, info and warning lines: advice and echoes, never a failure by themselves."""
        return Level.PLAIN < self.level < Level.ERROR


def strip_prefixes(raw: str) -> tuple[str, Level, str, str, str]:
    """Split a raw line into text, level, source, stamp and origin; the innermost level wins."""
    text = _ANSI.sub("", raw).rstrip("\r\n")
    level, source, stamp, origin = Level.PLAIN, "", "", ""
    stripped = True
    while stripped:
        stripped = False
        for pattern in _PREFIXES:
            match = pattern.match(text)
            if match is None or match.end() == 0:
                continue
            groups = match.groupdict()
            if name := groups.get("level") or groups.get("glog"):
                level = _LEVELS[name]
            source = groups.get("source") or groups.get("rank") or source
            stamp = groups.get("stamp") or stamp
            origin = groups.get("origin") or origin
            text = text[match.end() :]
            stripped = True
            break
    return text, level, source, stamp, origin


_ECHO_START = re.compile(
    r"(?:Received request|Generated response|Request) \S+?:? .*?(?:prompt|output|inputs?): ?(['\"])"
)
_ECHO_END = re.compile(
    r"['\"],? (?:params|sampling_params|prompt_token_ids|output_token_ids|finish_reason|lora_request)"
)
_DUMP = re.compile(r"Dumping (?:input|scheduler) |SchedulerOutput\(")


def read_lines(log: str) -> list[Line]:
    """The lines of a log that may bear evidence; echoes of prompts and outputs come back as INFO lines."""
    return list(_without_echoes(_parse(log)))


def _parse(log: str) -> Iterable[Line]:
    for number, raw in enumerate(log.splitlines()):
        # A progress bar rewrites its line; what was printed last is what a terminal shows.
        shown = raw.rstrip("\r").rsplit("\r", 1)[-1][:_LONGEST]
        text, level, source, stamp, origin = strip_prefixes(shown)
        yield Line(number, shown, text, level, source, stamp, origin)


def _without_echoes(lines: Iterable[Line]) -> Iterable[Line]:
    """Give the continuation of a many-line prompt, and dumps of requests, the level INFO."""
    echoing = False
    for line in lines:
        if echoing and line.level is Level.PLAIN:
            yield _quietened(line)
            echoing = not _ECHO_END.search(line.text)
            continue
        echoing = False
        if line.level in {Level.PLAIN, Level.DEBUG, Level.INFO} and _ECHO_START.match(line.text):
            echoing = not _ECHO_END.search(line.text)
            yield _quietened(line)
        elif _DUMP.match(line.text):
            yield _quietened(line)
        else:
            yield line


def _quietened(line: Line) -> Line:
    return Line(line.number, line.raw, line.text, Level.INFO, line.source, line.stamp, line.origin)
