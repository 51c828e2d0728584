"""Which weights a model's name stands for at this moment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autotune.catalog.models import cached_snapshot, load_model

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


def model_revision(name: str) -> str:
    """The commit of a Hugging Face model in the local cache, or a digest of a folder; empty where neither is here.

    A folder's digest covers its configuration, and name, size and time of the files with weights: a copy of a folder
    is another revision, an edited one too.

    Raises:
        UsageError: no such model.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _digest(folder)
    snapshot = cached_snapshot(load_model(name).repository)
    return "" if snapshot is None else snapshot.name


def _digest(folder: Path) -> str:
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS):
        facts = path.stat()
        found.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return found.hexdigest()[:40]
