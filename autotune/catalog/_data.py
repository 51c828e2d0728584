"""Where the catalogue's YAML files are, and how a mistake in one is told."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

import autotune
from autotune.base.errors import UsageError


def data_folder() -> Path:
    """The folder ``search_spaces``: inside the wheel, or beside the package in a checkout.

    Raises:
        UsageError: neither exists (a broken installation).
    """
    package = Path(autotune.__file__).parent
    for folder in (package / "_data" / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return folder
    raise UsageError("search_spaces: the catalogue is not installed.", "Install vllm-autotune again.")


def first_problem(error: ValidationError) -> str:
    """The first complaint of pydantic as ``where: what``."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
    return f"{where}: {what}" if where else what
