from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from typer.testing import Result

from autotune.base.errors import EnvironmentProblemError, UsageError

Invoke = Callable[..., Result]
_PROGRAM = """
import typer
from autotune.cli.dashboard import dashboard
typer.run(dashboard)
"""


@contextmanager
def _running(folder: Path, *words: str) -> Iterator[str]:
    """The dashboard as a process of its own; gives its address and ends it with Ctrl-C's signal."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "--port", "0", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert found is not None, first + process.communicate(timeout=60)[1]
        yield found.group()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A folder with a study in its database and an artifact of its trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    (tmp_path / "studies" / "artifacts").mkdir(parents=True)
    url = f"sqlite:///{tmp_path}/studies/autotune.db"
    study = optuna.create_study(storage=url, study_name="t4-qwen3-4b")
    trial = study.ask()
    log = tmp_path / "engine.log"
    log.write_text("a log line")
    upload_artifact(
        artifact_store=FileSystemArtifactStore(tmp_path / "studies" / "artifacts"),
        file_path=str(log),
        study_or_trial=trial,
    )
    study.tell(trial, 1.0)
    return tmp_path


def test_the_dashboard_shows_studies_and_artifacts(storage: Path) -> None:
    with _running(storage, "--no-browser") as address, httpx.Client(base_url=address, trust_env=False) as client:
        assert "optuna" in client.get("/dashboard").text.casefold()
        (study,) = client.get("/api/studies").json()["study_summaries"]
        assert study["study_name"] == "t4-qwen3-4b"
        (trial,) = client.get(f"/api/studies/{study['study_id']}").json()["trials"]
        (artifact,) = trial["artifacts"]
        content = client.get(f"/artifacts/{study['study_id']}/{trial['trial_id']}/{artifact['artifact_id']}")
        assert content.text == "a log line"


def test_a_missing_database_is_not_made(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("dashboard", "--port", "0", "--no-browser")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "sqlite:///studies/autotune.db: there is no such database. Run 'autotune search' first" in str(
        result.exception
    )
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_database_is_left_alone(invoke: Invoke, tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    before = path.read_bytes()
    result = invoke("dashboard", "--storage", f"sqlite:///{path}", "--no-browser")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "no studies can be read from it" in str(result.exception)
    assert path.read_bytes() == before


def test_bad_urls_are_refused_without_their_password(invoke: Invoke) -> None:
    result = invoke("dashboard", "--storage", "not a url")
    assert isinstance(result.exception, UsageError)
    result = invoke("dashboard", "--storage", "postgresql://me:verysecret@127.0.0.1:1/x", "--no-browser")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "verysecret" not in str(result.exception)


def test_a_taken_port_is_named(invoke: Invoke, storage: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"sqlite:///{storage}/studies/autotune.db"
        result = invoke("dashboard", "--storage", url, "--port", str(port), "--no-browser")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert f"127.0.0.1:{port} cannot be listened on (Address already in use)" in str(result.exception)


def test_a_missing_artifact_folder_is_named(invoke: Invoke, storage: Path) -> None:
    url = f"sqlite:///{storage}/studies/autotune.db"
    result = invoke("dashboard", "--storage", url, "--artifacts", "absent", "--port", "0", "--no-browser")
    assert isinstance(result.exception, UsageError)
    assert "--artifacts absent: there is no such folder" in str(result.exception)
