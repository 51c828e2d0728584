"""The command line of ``autotune diagnose``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.base.errors import UsageError
from autotune.cli.diagnose import diagnose

CASES = Path(__file__).parent / "data" / "engine_logs"


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(diagnose)
    return app


def test_json_has_the_promised_keys(app: typer.Typer) -> None:
    log = CASES / "oom_kv_cache__v0-2x5090-60000-vs-58384-noise-after.log"
    result = CliRunner().invoke(app, [str(log), "--exit-code", "1", "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["cause"] == "oom_kv_cache"
    assert document["kind"] == "infeasible"
    assert document["phase"] == "kv_cache"
    assert "60000" in document["line"]
    assert "58384" in document["advice"]


def test_flags_of_the_supervisor(app: typer.Typer, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("INFO:     Application startup complete.\n")
    asked = CliRunner().invoke(app, [str(log), "--exit-code", "0", "--was-ready", "--stop-requested", "--json"])
    by_itself = CliRunner().invoke(app, [str(log), "--exit-code", "0", "--was-ready", "--json"])
    assert json.loads(asked.stdout)["cause"] == "none"
    assert json.loads(by_itself.stdout)["cause"] == "engine_crash"


def test_words_for_people(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["-", "--exit-code", "2"], input="vllm: error: unrecognized arguments: --x 4\n")
    assert "invalid_config" in result.stdout
    assert "--x 4" in result.stdout


def test_a_log_that_is_not_there(app: typer.Typer, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "absent.log")])
    assert isinstance(result.exception, UsageError)
