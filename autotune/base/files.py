"""Files that are either the old or the new version after a crash, never half of one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomically(path: Path, data: str | bytes) -> None:
    """Replace ``path`` by ``data``; the parent folder must exist.

    The bytes reach the disk before the name points at them, so a reader (or a machine that comes back
    after a power loss) sees one of the two versions whole.
    """
    payload = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(_permissions_of_new_files())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _permissions_of_new_files() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document atomically, keys in the given order."""
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
