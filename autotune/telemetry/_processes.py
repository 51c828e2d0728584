"""One cheap pass over ``/proc``: who is whose child, in which session, at what cost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process: parent, session, start in ticks since boot, CPU seconds, resident bytes."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    cpu_seconds: float
    resident_bytes: int


def parse_stat(line: str) -> ProcessStat:
    """Read a line of ``/proc/PID/stat`` (proc(5)); the command's name may hold spaces and brackets."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    return ProcessStat(
        pid=int(head.partition("(")[0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        resident_bytes=int(fields[21]) * _PAGE,
    )


def read_processes(proc: Path = _PROC) -> dict[int, ProcessStat]:
    """All processes that can be seen; one that ends during the pass is left out."""
    found: dict[int, ProcessStat] = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        try:
            line = (proc / entry.name / "stat").read_text(errors="replace")
        except OSError:
            continue
        stat = parse_stat(line)
        found[stat.pid] = stat
    return found


def tree(processes: Mapping[int, ProcessStat], roots: Iterable[int]) -> set[int]:
    """The roots that live, their descendants, and every member of a session that a root leads.

    Sessions matter because a worker whose parent died belongs to process 1 but stays in its session.
    """
    leaders = set(roots)
    children: dict[int, list[int]] = {}
    for stat in processes.values():
        children.setdefault(stat.parent, []).append(stat.pid)
    pending = [pid for pid, stat in processes.items() if pid in leaders or stat.session in leaders]
    members: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in members:
            members.add(pid)
            pending.extend(children.get(pid, ()))
    return members


def process_tree(pid: int) -> set[int]:
    """Process ids of ``pid``, its descendants and its session, now; empty when all are gone."""
    return tree(read_processes(), [pid])
