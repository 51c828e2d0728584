from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.cli._chat_stream import Piece, describe_error, piece_of
from autotune.cli._launch import choose_engine, launch_command, launch_environment
from autotune.export import read_best, write_best
from autotune.spec import EngineChoice
from autotune.store.result import EngineDocument, StudyDocument

Invoke = Callable[..., Result]
_ROOT = Path(__file__).parents[2]
_PROGRAM = """
import typer
from autotune.cli.serve import chat, serve
app = typer.Typer()
app.command()(serve)
app.command()(chat)
app()
"""


@pytest.fixture(autouse=True)
def _no_vllm_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


@pytest.fixture
def simulated(workplace: Path) -> Path:
    """A best.yaml whose figures were simulated."""
    write_best(StudyDocument.read(workplace / "studies" / "t4-qwen3-4b"), workplace)
    return workplace / "best.yaml"


@pytest.fixture
def real(workplace: Path) -> Path:
    """The same as if a real vLLM had been measured."""
    document = StudyDocument.read(workplace / "studies" / "t4-qwen3-4b")
    engine = EngineDocument(kind="vllm", version="0.24.0")
    write_best(document.model_copy(update={"engine": engine}), workplace)
    return workplace / "best.yaml"


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Path:
    """A program that tells a version, and otherwise prints its words and ends with code 7."""
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo 0.25.1; exit 0; fi\n'
        'printf "%s\\n" "$@" "sampler=$VLLM_USE_FLASHINFER_SAMPLER" "path=$PYTHONPATH"\nexit 7\n'
    )
    script.chmod(0o755)
    return script


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _run(folder: Path, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    bootstrap = f"import sys; sys.path.insert(0, {str(_ROOT)!r})\n{_PROGRAM}"
    return subprocess.run(
        [sys.executable, "-c", bootstrap, *words],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def test_serve_becomes_the_engine_with_exactly_these_words(real: Path, fake_vllm: Path) -> None:
    port = _free_port()
    done = _run(
        real.parent, "serve", "best.yaml", "--port", str(port), "--vllm-command", str(fake_vllm), "--", "--api-key", "x"
    )
    assert done.returncode == 7
    assert done.stdout.splitlines() == [
        "serve", "Qwen/Qwen3-4B",
        "--max-model-len", "2048",
        "--max-num-seqs", "24",
        "--max-num-batched-tokens", "1024",
        "--gpu-memory-utilization", "0.95",
        "--host", "127.0.0.1",
        "--port", str(port),
        "--api-key", "x",
        "sampler=0",
        "path=",
    ]  # fmt: skip
    assert f"Starting vLLM 0.25.1 with best.yaml on http://127.0.0.1:{port}" in done.stderr
    assert "It was measured with vLLM 0.24.0, and this is 0.25.1" in done.stderr


def test_a_file_of_a_simulated_study_starts_the_simulated_engine(simulated: Path) -> None:
    best = read_best(simulated)
    choice = choose_engine(best, EngineChoice.AUTO, None)
    assert choice.installation is None
    assert choice.words == "the SIMULATED engine of NVIDIA T4"
    command = launch_command(best, choice, "127.0.0.1", 8000, (), 60.0)
    assert command[:7] == [sys.executable, "-m", "autotune.simulator", "serve", "Qwen/Qwen3-4B", "--sim-gpu", "t4"]
    assert command[7:9] == ["--time-scale", "60"]
    assert launch_environment(best, choice)["PYTHONPATH"].split(os.pathsep)[0] == str(_ROOT)


def test_a_named_vllm_serves_a_simulated_file_with_a_caution(simulated: Path, fake_vllm: Path) -> None:
    choice = choose_engine(read_best(simulated), EngineChoice.AUTO, str(fake_vllm))
    assert choice.installation is not None
    assert choice.installation.version == "0.25.1"
    assert any("SIMULATED" in caution for caution in choice.cautions)


def test_a_real_file_is_never_simulated_unasked(real: Path) -> None:
    if shutil.which("vllm") is not None:
        pytest.skip("a vLLM is installed here")
    with pytest.raises(EnvironmentProblemError, match="vLLM"):
        choose_engine(read_best(real), EngineChoice.AUTO, None)
    assert choose_engine(read_best(real), EngineChoice.SIMULATED, None).installation is None


def test_a_file_without_provenance_cannot_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: a/b\n")
    with pytest.raises(UsageError, match="does not say on which GPU"):
        choose_engine(read_best(path), EngineChoice.SIMULATED, None)


def test_a_taken_port_is_told_before_the_engine_starts(invoke: Invoke, simulated: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = invoke("serve", str(simulated), "--port", str(server.getsockname()[1]))
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "Choose another with --port" in str(result.exception)


def test_chat_in_the_terminal_on_the_simulated_engine(simulated: Path) -> None:
    done = _run(
        simulated.parent, "chat", "best.yaml", "--terminal", "--time-scale", "100", "--max-tokens", "12",
        stdin="How are you?\n\nexit\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 10
    assert "SIMULATED: its answers have no meaning" in done.stderr
    assert "12 tokens" in done.stderr
    assert "Stopping the engine." in done.stderr


def test_chat_wants_one_of_file_and_url(invoke: Invoke, simulated: Path) -> None:
    for words in (("chat",), ("chat", str(simulated), "--url", "http://127.0.0.1:1")):
        result = invoke(*words)
        assert isinstance(result.exception, UsageError)
        assert "either a best.yaml or --url" in str(result.exception)


def test_chat_without_chainlit_says_how_to_get_it(
    invoke: Invoke, simulated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.cli.serve.has_chainlit", lambda: False)
    result = invoke("chat", str(simulated))
    assert isinstance(result.exception, UsageError)
    assert "vllm-autotune[chat]" in str(result.exception)
    assert "--terminal" in str(result.exception)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("http://127.0.0.1:1", "no server answers there. Is the server"), ("nonsense", "does not tell its models")],
)
def test_chat_with_a_server_that_is_not_there(invoke: Invoke, url: str, complaint: str) -> None:
    result = invoke("chat", "--url", url, "--terminal")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert complaint in str(result.exception)


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ('data: {"choices":[{"delta":{"content":"Hi"}}]}', Piece("Hi", "Hi")),
        ('data: {"choices":[{"delta":{"reasoning":"hm"}}]}', Piece("hm", "")),
        ('data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}', Piece("hm", "")),
        ('data: {"choices":[],"usage":{"completion_tokens":7}}', Piece(output_tokens=7)),
        ('data: {"error":{"message":"boom"}}', Piece(error="boom")),
        ('data: {"choices":[{"delta":{"role":"assistant","content":null}}]}', Piece()),
        ("data: [DONE]", Piece()),
        (": keep-alive", Piece()),
        ("", Piece()),
        ("data: {broken", Piece()),
        ("data: 3", Piece()),
    ],
)
def test_lines_of_a_stream(line: str, piece: Piece) -> None:
    assert piece_of(line) == piece


def test_http_errors_carry_the_servers_own_words() -> None:
    assert describe_error(400, b'{"error": {"message": "too\\nlong"}}') == "The engine refused with HTTP 400: too long"
    assert describe_error(404, b'{"detail": "Not Found"}').startswith("The engine refused with HTTP 404")
    assert describe_error(502, b"<html>") == "The engine refused with HTTP 502: <html>"
