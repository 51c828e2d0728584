from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import Result

from autotune.base.errors import EnvironmentProblemError, UsageError

Invoke = Callable[..., Result]


def test_export_prints_what_vllm_takes(invoke: Invoke, workplace: Path) -> None:
    result = invoke("export", "t4-qwen3-4b")
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == {
        "model": "Qwen/Qwen3-4B",
        "max-model-len": 2048,
        "max-num-seqs": 24,
        "max-num-batched-tokens": 1024,
        "gpu-memory-utilization": 0.95,
    }
    assert "SIMULATED" in result.stderr


@pytest.mark.parametrize("name", ["vllm", "compose", "k8s", "shell", "env", "json"])
def test_every_format_goes_to_stdout_or_a_file(invoke: Invoke, workplace: Path, name: str) -> None:
    shown = invoke("export", "t4-qwen3-4b", "--format", name)
    assert shown.exit_code == 0
    assert invoke("export", "t4-qwen3-4b", "--format", name, "--output", "out.file").exit_code == 0
    assert (workplace / "out.file").read_text() == shown.stdout


def test_json_is_one_document(invoke: Invoke, workplace: Path) -> None:
    assert json.loads(invoke("export", "t4-qwen3-4b", "--format", "json").stdout)["simulated"] is True


def test_the_environment_lies_beside_the_file(invoke: Invoke, workplace: Path) -> None:
    result = invoke("export", "t4-qwen3-4b", "--output", "mine.yaml")
    assert "VLLM_USE_FLASHINFER_SAMPLER=0" in (workplace / "mine.env").read_text()
    assert "mine.env" in result.stderr


def test_another_trial_and_another_image(invoke: Invoke, workplace: Path) -> None:
    result = invoke("export", "t4-qwen3-4b", "--trial", "7", "-f", "k8s", "--image", "example/llm:1", "--port", "80")
    deployment, service = yaml.safe_load_all(result.stdout)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "example/llm:1"
    assert container["args"] == ["Qwen/Qwen3-4B", "--max-model-len", "2048", "--max-num-seqs", "32"]
    assert service["spec"]["ports"][0]["port"] == 80


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--format", "yml"), "format: 'yml' is not known"),
        (("--trial", "0"), "trial 0 was not measured"),
        (("--trial", "99"), "no trial 99. It has 0 to 24"),
    ],
)
def test_wrong_wishes_are_usage_errors(invoke: Invoke, workplace: Path, words: tuple[str, ...], complaint: str) -> None:
    result = invoke("export", "t4-qwen3-4b", *words)
    assert isinstance(result.exception, UsageError)
    assert complaint in str(result.exception)
    assert result.stdout == ""


def test_a_file_that_cannot_be_written_is_named(invoke: Invoke, workplace: Path) -> None:
    result = invoke("export", "t4-qwen3-4b", "--output", "absent/out.yaml")
    assert isinstance(result.exception, EnvironmentProblemError)
    assert "absent/out.yaml: cannot be written" in str(result.exception)


def test_report_is_written_into_the_studys_folder_or_elsewhere(invoke: Invoke, workplace: Path) -> None:
    result = invoke("report", "t4-qwen3-4b")
    path = workplace / "studies" / "t4-qwen3-4b" / "report.html"
    assert Path(result.stdout.strip()).resolve() == path
    assert "SIMULATED" in path.read_text()
    invoke("report", "t4-qwen3-4b", "--output", "r.html")
    assert (workplace / "r.html").read_text() == path.read_text()
