"""Where the catalogue's YAML files are, and how they are read."""

from __future__ import annotations

from pathlib import Path

import yaml
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


class _UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader that refuses a key given twice: YAML would silently keep the last."""


def _mapping(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[object, object]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", key_node.start_mark)
        seen.add(key)
    return {loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value}


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml_mapping(path: Path) -> dict[str, object]:
    """The mapping in a YAML file.

    Raises:
        UsageError: unreadable, not YAML, or not a mapping with text keys.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)  # noqa: S506
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.", "Give a readable file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not valid YAML: {reason}.", "Correct the file.") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(f"{path}: not a mapping of names to values.", "Write 'name: value' lines.")
    return document


def first_problem(error: ValidationError) -> str:
    """The first complaint of pydantic as ``where: what``."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
    return f"{where}: {what}" if where else what
