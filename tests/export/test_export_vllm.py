from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import UsageError
from autotune.export import FORMATS, ExportOptions, configuration_of, read_best, write_best
from autotune.export.testing import sample_configuration
from autotune.store.result import EngineDocument, StudyDocument


def _argv_as_vllm_makes_it(text: str, no_forms: set[str]) -> list[str]:
    """The rules of vLLM's reader: flat keys, true a flag, false its --no- form or nothing, else ``str(value)``."""
    argv: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if isinstance(value, bool):
            if value:
                argv.append(f"--{key}")
            elif f"--no-{key}" in no_forms:
                argv.append(f"--no-{key}")
        elif isinstance(value, list):
            argv += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            argv += [f"--{key}", json.dumps(value)]
        else:
            argv += [f"--{key}", str(value)]
    return argv


def test_vllm_reads_the_flags_that_were_measured() -> None:
    text = FORMATS.get("vllm").render(sample_configuration(), ExportOptions())
    argv = _argv_as_vllm_makes_it(text, {"--no-enable-prefix-caching", "--no-enable-chunked-prefill"})
    assert argv == [
        "--model", "Qwen/Qwen3-4B",
        "--max-num-seqs", "24",
        "--gpu-memory-utilization", "0.95",
        "--enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--compilation-config", '{"cudagraph_mode": "FULL"}',
        "--served-model-name", "it's $(mine) & yours",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["1e5", "null", "yes", "0x10", "12:30", "", "ä", "a: b # c", "- x", "2026-11-30"])
def test_text_stays_text(value: str) -> None:
    configuration = sample_configuration()
    changed = FORMATS.get("vllm").render(
        type(configuration)(
            model=value or "m",
            arguments={"served-model-name": value},
            environment={},
            withheld=(),
            provenance=configuration.provenance,
        ),
        ExportOptions(),
    )
    assert yaml.safe_load(changed) == {"model": value or "m", "served-model-name": value}


def test_the_files_of_a_study_are_read_back(document: StudyDocument, tmp_path: Path) -> None:
    paths = write_best(document, tmp_path)
    assert [p.name for p in paths] == ["best.yaml", "best.env"]
    best = read_best(tmp_path / "best.yaml")
    assert best.model == "Qwen/Qwen3-4B"
    assert best.arguments == {"max-model-len": 2048, "max-num-seqs": 24, "enable-prefix-caching": False}
    assert best.environment == {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    assert best.provenance == configuration_of(document).provenance
    assert best.provenance is not None
    assert best.provenance.definition["arguments"]["api-key"] == "(withheld)"


def test_comments_say_what_was_measured(document: StudyDocument, tmp_path: Path) -> None:
    write_best(document, tmp_path)
    text = (tmp_path / "best.yaml").read_text()
    assert "# Measured at the objective (confirmed on fresh engines): 1.494 req/s, 149.3 output tok/s" in text
    assert "# Measured there: P50 latency 5.99 s, P99 latency 9.22 s, from 3840 requests" in text
    assert "# Verdict: tuned; capacity +39.5 % (95 % interval +32.4 to +44.9 %) against vLLM's defaults" in text
    assert "# Objective: p99_latency <= 10s" in text


def test_simulated_figures_are_called_so_at_the_top(document: StudyDocument, tmp_path: Path) -> None:
    simulated = document.model_copy(update={"engine": EngineDocument(kind="simulated", version="0.24.0")})
    write_best(simulated, tmp_path)
    head = (tmp_path / "best.yaml").read_text().splitlines()[:3]
    assert any(line.startswith("# SIMULATED") for line in head)
    best = read_best(tmp_path / "best.yaml")
    assert best.provenance is not None
    assert best.provenance.simulated


def test_without_a_best_there_is_no_file_and_no_stale_one(document: StudyDocument, tmp_path: Path) -> None:
    write_best(document, tmp_path)
    assert write_best(document.model_copy(update={"best": None}), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_written_by_hand_has_no_provenance(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("model: a/b\nmax-num-seqs: 8\n")
    best = read_best(path)
    assert best.provenance is None
    assert best.environment == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-num-seqs: 8\n", "no 'model:'"),
        ("- a\n", "no 'model:'"),
        ("model: a/b\nx: {y: 1}\n", "'x' is not a plain value"),
        ("model: a/b\nx: null\n", "'x' is not a plain value"),
        ("model: [a\nb: c\n", "line 2: not valid YAML"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "best.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        read_best(path)
    assert "\n" not in str(caught.value)


def test_missing_files_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_best(tmp_path / "best.yaml")


def test_bad_environment_lines_are_named(tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text("model: a/b\n")
    (tmp_path / "best.env").write_text("# fine\nA=1\nexport B=2\n")
    with pytest.raises(UsageError, match=r"best\.env, line 3"):
        read_best(tmp_path / "best.yaml")


_READ = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.engine.arg_utils import AsyncEngineArgs
parsed = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--config", sys.argv[1]])
names = ("model", "max_num_seqs", "max_model_len", "enable_prefix_caching", "disable_log_stats")
print(json.dumps({name: getattr(parsed, name) for name in names}))
"""


@pytest.mark.vllm
@pytest.mark.skipif("AUTOTUNE_VLLM_PYTHON" not in os.environ, reason="AUTOTUNE_VLLM_PYTHON names no vLLM")
def test_the_installed_vllm_takes_the_file(document: StudyDocument, tmp_path: Path) -> None:
    write_best(document, tmp_path)
    done = subprocess.run(
        [os.environ["AUTOTUNE_VLLM_PYTHON"], "-c", _READ, str(tmp_path / "best.yaml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "model": "Qwen/Qwen3-4B",
        "max_num_seqs": 24,
        "max_model_len": 2048,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
