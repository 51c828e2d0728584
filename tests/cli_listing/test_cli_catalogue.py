from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from autotune.base.errors import UsageError
from autotune.cli._check_file import line_of

Invoke = Callable[..., Result]
_STUDIES = Path(__file__).parents[2] / "studies"


def test_gpus_are_listed_with_their_facts(invoke: Invoke) -> None:
    text = invoke("gpus").stdout
    (row,) = [line for line in text.splitlines() if line.strip().startswith("t4 ")]
    assert "NVIDIA T4" in row
    assert "320" in row
    assert "7.5" in row
    assert "memory, GiB" in text


def test_gpus_as_json(invoke: Invoke) -> None:
    names = [gpu["name"] for gpu in json.loads(invoke("gpus", "--json").stdout)["gpus"]]
    assert {"t4", "a10g", "rtx4090", "h200", "cpu"} <= set(names)
    (one,) = json.loads(invoke("gpus", "t4", "--json").stdout)["gpus"]
    assert one["memory_bandwidth_gbs"] == 320


def test_models_are_listed_with_their_facts(invoke: Invoke) -> None:
    (model,) = json.loads(invoke("models", "qwen3-4b", "--json").stdout)["models"]
    assert model["parameters"] == pytest.approx(4.02e9, rel=0.01)
    # 36 layers, keys and values, 8 heads of 128 values of two bytes.
    assert model["kv_bytes_per_token"] == 36 * 2 * 8 * 128 * 2
    text = invoke("models").stdout
    (row,) = [line for line in text.splitlines() if line.strip().startswith("qwen3-4b ")]
    for words in ("Qwen/Qwen3-4B", "4.02", "144", "40,960"):
        assert words in row


@pytest.mark.parametrize("words", [("gpus", "t5"), ("models", "qwen3-5b"), ("spaces", "show", "t5")])
def test_unknown_names_get_the_nearest(invoke: Invoke, words: tuple[str, ...]) -> None:
    result = invoke(*words)
    assert isinstance(result.exception, UsageError)
    assert "Did you mean" in str(result.exception)


def test_spaces_are_listed_and_shown(invoke: Invoke) -> None:
    spaces = json.loads(invoke("spaces", "--json").stdout)["spaces"]
    (t4,) = [space for space in spaces if space["gpu"] == "t4"]
    assert "max-num-seqs" in t4["parameters"]
    shown = json.loads(invoke("spaces", "show", "t4", "--json").stdout)
    assert shown["parameters"] == t4["parameters"]
    text = invoke("spaces", "show", "t4").stdout
    assert "max-num-batched-tokens" in text
    assert "Fixed: max-model-len" in text
    assert "max-num-seqs" in invoke("spaces").stdout


@pytest.mark.parametrize("path", sorted(_STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_studies_are_valid(invoke: Invoke, path: Path) -> None:
    result = invoke("spaces", "check", str(path), "--json")
    assert result.exception is None
    assert json.loads(result.stdout)["kind"] == "study definition"


_STUDY = """\
gpu: t4
model: qwen3-4b
slo:
  p99_latency: 10s
workload:
  input_tokens: 256
  output_tokens: 100
"""


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        (_STUDY + "trails: 20\n", 8, "unknown key 'trails'"),
        (_STUDY.replace("gpu: t4", "gpu: t5"), 1, "'t5'"),
        (_STUDY.replace("10s", "10"), 4, "no unit"),
        (_STUDY.replace("256", "768:256"), 6, "not a token length"),
        (_STUDY + "space:\n  max-num-seqs: {low: 64, high: 8}\n", 9, "max-num-seqs"),
        (_STUDY + "space:\n  max-num-sequences: [8, 64]\n", 9, "max-num-sequences"),
        (_STUDY + "arguments:\n  max-num-seqs: 8\nspace:\n  max-num-seqs: [8, 64]\n", 9, "fixed"),
        (_STUDY + "gpu: t4\n", 8, "given twice"),
        (_STUDY + "load: {rate: -1}\n", 8, "rate"),
        ("max-num-seqs: [8, 64]\nmax-num-sequences: [8, 64]\n", 2, "max-num-sequences"),
    ],
)
def test_invalid_files_are_refused_with_the_line(
    invoke: Invoke, tmp_path: Path, text: str, line: int, complaint: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    result = invoke("spaces", "check", str(path))
    assert isinstance(result.exception, UsageError)
    message = str(result.exception)
    assert complaint in message
    assert f"line {line}" in message
    assert "\n" not in message


def test_spaces_and_gpu_files_are_told_apart(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("max-num-seqs: [8, 64]\n")
    assert "a valid search space; max-num-seqs" in invoke("spaces", "check", str(path), "--gpu", "h200").stdout
    gpu = _STUDIES.parent / "search_spaces" / "gpus" / "t4.yaml"
    assert "a valid GPU; NVIDIA T4, 15 GiB" in invoke("spaces", "check", str(gpu)).stdout


def test_a_missing_file_is_named(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("spaces", "check", str(tmp_path / "absent.yaml"))
    assert isinstance(result.exception, UsageError)
    assert "absent.yaml" in str(result.exception)


def test_lines_are_found_for_the_most_telling_name(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("workload:\n  name: x\n  input_tokens: 1\ninput_tokens: 2\n")
    assert line_of(path, "workload.input_tokens: wrong") == 3
    assert line_of(path, "nothing of it") is None
