"""The simulated GPU's memory ledger: a folder with one file per process that holds memory.

Named by the environment variable ``AUTOTUNE_SIM_GPU_STATE``; without it nothing is shared between engines. Files of
processes that are gone count for nothing, as the driver frees a dead process's memory.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from autotune.base.files import write_atomically

STATE_VARIABLE = "AUTOTUNE_SIM_GPU_STATE"


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Memory that one process holds on the simulated GPU."""

    pid: int
    create_time: float
    used_bytes: int


def state_folder() -> Path | None:
    """The ledger's folder, None when nothing is shared."""
    path = os.environ.get(STATE_VARIABLE)
    return Path(path) if path else None


def hold(folder: Path, used_bytes: int, pid: int | None = None) -> Path:
    """Enter memory for a process (this one by default); gone when it dies or with :func:`release`."""
    process = psutil.Process(pid)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{process.pid}.json"
    write_atomically(
        path, json.dumps({"pid": process.pid, "create_time": process.create_time(), "bytes": used_bytes}) + "\n"
    )
    return path


def release(folder: Path, pid: int | None = None) -> None:
    """Take a process's entry away."""
    (folder / f"{pid or os.getpid()}.json").unlink(missing_ok=True)


def entries(folder: Path) -> list[MemoryEntry]:
    """Entries of processes that are alive."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            document = json.loads(path.read_text())
            entry = MemoryEntry(int(document["pid"]), float(document["create_time"]), int(document["bytes"]))
        except (OSError, ValueError, KeyError):
            continue
        if _alive(entry):
            found.append(entry)
    return found


def busy_bytes(folder: Path) -> int:
    """Memory held by other live processes."""
    return sum(entry.used_bytes for entry in entries(folder) if entry.pid != os.getpid())


def _alive(entry: MemoryEntry) -> bool:
    try:
        process = psutil.Process(entry.pid)
        return abs(process.create_time() - entry.create_time) < 0.1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
