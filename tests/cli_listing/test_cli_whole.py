from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from autotune.cli import main


def every_command() -> list[tuple[str, Any]]:
    root: Any = typer.main.get_command(main.app)
    found = []
    for name, command in root.commands.items():
        found.append((name, command))
        found += [(f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()]
    return found


def help_of(name: str) -> str:
    shown = CliRunner().invoke(main.app, [*name.split(), "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown.output).split())


@pytest.mark.parametrize(
    ("name", "command"), every_command(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_help_shows_an_example_and_explains_every_option(name: str, command: Any) -> None:
    text = help_of(name)
    assert re.search(rf"Examples?: (autotune .*)?autotune {name}", text), text
    for parameter in command.params:
        if parameter.name != "help":
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"


def test_what_stands_in_brackets_reaches_the_reader() -> None:
    assert "Folder for the results. [default: studies/NAME]" in help_of("search")
    assert "pip install 'vllm-autotune[chat]'" in help_of("chat")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("serach",), "autotune: No such command 'serach'. Did you mean 'search'? See 'autotune --help'."),
        (("spaces", "show", "--gpu", "t4"), "autotune: No such option: --gpu. See 'autotune spaces show --help'."),
        ((), ""),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_right_help(
    words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["autotune", *words])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == line
