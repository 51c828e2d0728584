"""YAML without the traps of version 1.1: ``10:50`` is text, not 650; ``on`` and ``no`` are text, not booleans."""

from __future__ import annotations

import re
from typing import Any

import yaml


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


def parse_yaml(text: str) -> Any:
    """The document in ``text``.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)
