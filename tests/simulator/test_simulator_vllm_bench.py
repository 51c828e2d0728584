"""vLLM's own load generator works against the simulated engine. Needs AUTOTUNE_VLLM_PYTHON, a Python that has vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("AUTOTUNE_VLLM_PYTHON")
TINY_MODEL = Path(__file__).parents[1] / "tiny_model.py"
# The CPU wheel's console script does not start (its distribution has another name), its benchmark module does.
BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(PYTHON is None, reason="AUTOTUNE_VLLM_PYTHON names no Python with vLLM"),
]


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_vllm_bench_serve(launch, tmp_path, backend, endpoint):
    subprocess.run([sys.executable, str(TINY_MODEL), str(tmp_path / "tokenizer")], check=True)
    server = launch("--max-model-len=2048", "--served-model-name", "m", "--time-scale=20")
    server.wait_ready(90)
    words = ["--backend", backend, "--endpoint", endpoint, "--base-url", server.url, "--model", "m"]
    words += ["--tokenizer", str(tmp_path / "tokenizer"), "--dataset-name", "random", "--random-input-len", "64"]
    words += ["--random-output-len", "32", "--num-prompts", "40", "--max-concurrency", "8", "--ignore-eos"]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--temperature", "0", "--save-result"]
    words += ["--result-dir", str(tmp_path), "--result-filename", "out.json"]
    finished = subprocess.run(
        [str(PYTHON), "-c", BENCH, *words],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["completed"] == 40
    assert result["failed"] == 0
    assert result["total_output_tokens"] == 40 * 32
    assert 0 < result["p99_ttft_ms"] < result["p99_e2el_ms"]
