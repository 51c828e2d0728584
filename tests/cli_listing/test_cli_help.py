from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

_SPEC = importlib.util.spec_from_file_location("cli_listing_app", Path(__file__).with_name("conftest.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _MODULE
_SPEC.loader.exec_module(_MODULE)


def _commands() -> list[tuple[str, Any]]:
    root: Any = typer.main.get_command(_MODULE.build_app())
    found = []
    for name, command in root.commands.items():
        found.append((name, command))
        found += [(f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()]
    return found


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_help_text_has_an_example_that_names_the_command(name: str, command: Any) -> None:
    assert command.help is not None
    assert f"Example: autotune {name}" in command.help


@pytest.mark.parametrize(("name", "command"), _commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_option_is_explained(name: str, command: Any) -> None:
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"
