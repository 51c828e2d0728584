"""The base space of ``search_spaces/base.yaml``."""

from __future__ import annotations

from functools import lru_cache

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog import Rule, data_folder
from autotune.space._definition import Definition, parse_definition
from autotune.spec import ArgumentValue


@lru_cache(maxsize=1)
def base_space() -> tuple[dict[str, Definition], tuple[Rule, ...]]:
    path = data_folder() / "base.yaml"
    document = read_yaml_mapping(path)
    parameters, rules = document.get("parameters"), document.get("rules")
    if document.keys() != {"parameters", "rules"} or not isinstance(parameters, dict) or not isinstance(rules, list):
        raise UsageError(f"{path}: needs 'parameters' and 'rules', and nothing else.", "Restore the file.")
    try:
        book = tuple(Rule.model_validate(rule) for rule in rules)
    except ValidationError as error:
        raise UsageError(f"{path}: {error.errors()[0]['msg']}.", "Correct the rule.") from error
    return {name: parse_definition(name, value) for name, value in parameters.items()}, book


def base_defaults() -> dict[str, ArgumentValue | None]:
    """What unset arguments resolve to before the GPU has its say."""
    return {name: definition.default for name, definition in base_space()[0].items()}
