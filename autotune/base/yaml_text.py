"""YAML without its traps: ``10:50`` is text, not 650; ``on`` is text, not True; a key given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import UsageError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's scalars for numbers and booleans."""


_SCALARS = {
    "tag:yaml.org,2002:bool": (re.compile(r"true|false", re.IGNORECASE), "tTfF"),
    "tag:yaml.org,2002:int": (re.compile(r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+"), "-+0123456789"),
    "tag:yaml.org,2002:float": (
        re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"),
        "-+0123456789.",
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _SCALARS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern.pattern})$", _pattern.flags), list(_first))


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    digits = loader.construct_scalar(node).replace("_", "")
    return int(digits, 16) if digits.lower().startswith("0x") else int(digits)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"the key '{key}' is given twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UsageError: unreadable, not YAML, or not a mapping with text keys.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.", "Give a readable file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid YAML: {_complaint(error)}.", "Correct the file.") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise UsageError(f"{path}: not a mapping of names to values.", "Write 'name: value' lines.")
    return document


def _complaint(error: Exception) -> str:
    """What is wrong and where, in one line."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}, column {mark.column + 1}: {' '.join(str(problem).split())}"


def parse_yaml(text: str) -> Any:
    """The document in ``text``.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)
