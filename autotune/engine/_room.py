"""Room that an engine needs before it starts: on the disk for its log, and in shared memory for its processes."""

from __future__ import annotations

import shutil
from pathlib import Path

from autotune.engine.api import EngineStartError
from autotune.engine.failure import Cause, Failure, FailureKind, Phase

LOG_MIB = 64
SHARED_MEMORY_MIB = 32
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_MIB = 2**20


def check_room(folder: Path, shared_memory: Path = _SHARED_MEMORY) -> None:
    """Check the disk under ``folder`` and the shared memory.

    Raises:
        EngineStartError: one of them is full; every other start would fail alike.
    """
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), None)
    if existing is not None and (free := shutil.disk_usage(existing).free) < LOG_MIB * _MIB:
        raise EngineStartError(
            _full(f"{existing} has {free // _MIB} MiB free", "Free space there, or choose another --out.")
        )
    if shared_memory.is_dir() and (free := shutil.disk_usage(shared_memory).free) < SHARED_MEMORY_MIB * _MIB:
        advice = "Remove stale files there, or start the container with a larger --shm-size or --ipc=host."
        raise EngineStartError(_full(f"{shared_memory} has {free // _MIB} MiB free", advice))


def _full(line: str, advice: str) -> Failure:
    return Failure(Cause.DISK_FULL, FailureKind.FAULT, Phase.LAUNCH, line, advice, environment=True)
