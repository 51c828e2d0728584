"""Finding a model: an alias, a Hugging Face id, or a folder."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog._config_json import shape_from_folder
from autotune.catalog._data import data_folder, first_problem
from autotune.catalog.model import ModelShape


@cache
def _catalogue() -> tuple[ModelShape, ...]:
    path = data_folder() / "models.yaml"
    models = []
    for alias, facts in read_yaml_mapping(path).items():
        try:
            models.append(ModelShape.model_validate({"alias": alias, **(facts if isinstance(facts, dict) else {})}))
        except ValidationError as error:
            raise UsageError(f"{path}: {alias}: {first_problem(error)}.", "Correct the file.") from error
    return tuple(models)


def list_models() -> list[ModelShape]:
    """All models of the catalogue, in the file's order."""
    return list(_catalogue())


def load_model(name: str) -> ModelShape:
    """The model called ``name``: an alias or Hugging Face id of the catalogue, a folder, or an id in the local cache.

    Nothing is downloaded.

    Raises:
        UsageError: not found, or a folder whose ``config.json`` is not a decoder's.
    """
    folder = Path(name).expanduser()
    try:
        is_folder = folder.is_dir()
    except OSError as error:
        raise UsageError(f"model: '{name[:40]}...': {error.strerror}.", "Give an alias, an id or a folder.") from error
    if is_folder:
        return shape_from_folder(folder, alias=folder.resolve().name, repository=str(folder))
    models = list_models()
    wanted = name.strip().casefold()
    for model in models:
        if wanted in {model.alias.casefold(), model.repository.casefold(), *(a.casefold() for a in model.aliases)}:
            return model
    if folder.is_absolute() or name.startswith((".", "~")) or folder.exists():
        raise UsageError(f"model: '{name}' is not a folder.", "Give the folder that holds config.json.")
    cached = cached_snapshot(name)
    if cached is not None:
        return shape_from_folder(cached, alias=name.rsplit("/", 1)[-1].casefold(), repository=name)
    known = [model.alias for model in models]
    if name.count("/") == 1:
        raise UsageError(
            f"model: '{name}' is neither in the catalogue nor in the Hugging Face cache.",
            f"Download it first (hf download {name}), or give a folder or an alias (autotune models lists them).",
        )
    raise UsageError(
        f"model: '{name}' is not in the catalogue.", f"{did_you_mean(name, known)} A folder with config.json works too."
    )


def cached_snapshot(repository: str) -> Path | None:
    """The snapshot folder of a Hugging Face id in the local cache, revision ``main`` first; None if absent."""
    owner, _, model = repository.partition("/")
    if not owner or not model or ".." in repository or "/" in model:
        return None
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = hub / f"models--{owner}--{model}"
    reference = folder / "refs" / "main"
    candidates = [folder / "snapshots" / reference.read_text().strip()] if reference.is_file() else []
    if (folder / "snapshots").is_dir():
        by_age = sorted((folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        candidates += by_age
    return next((path for path in candidates if (path / "config.json").is_file()), None)
