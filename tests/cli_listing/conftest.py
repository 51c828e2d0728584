from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from autotune.cli.catalogue import gpus, models, spaces_app
from autotune.cli.dashboard import dashboard
from autotune.cli.export import export
from autotune.cli.report import report
from autotune.cli.serve import chat, serve
from autotune.cli.studies import compare, show, studies

RESULT = Path(__file__).parents[1] / "report" / "data" / "result.json"

Invoke = Callable[..., Result]


def build_app() -> typer.Typer:
    """The commands of this folder, as the program's app has them."""
    app = typer.Typer()
    for command in (export, report, studies, show, compare, gpus, models, dashboard, serve, chat):
        app.command()(command)
    app.add_typer(spaces_app, name="spaces")
    return app


@pytest.fixture
def invoke() -> Invoke:
    """Runs one command; errors for users are found in the result's ``exception``."""
    runner = CliRunner()
    app = build_app()

    def run(*words: str, stdin: str | None = None) -> Result:
        return runner.invoke(app, list(words), input=stdin)

    return run


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one finished study in it, as the current one."""
    folder = tmp_path / "studies" / "t4-qwen3-4b"
    folder.mkdir(parents=True)
    shutil.copy(RESULT, folder / "result.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path
