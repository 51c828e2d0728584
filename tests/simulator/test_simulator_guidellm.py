"""GuideLLM works against the simulated engine. Needs ``guidellm`` on PATH or its path in AUTOTUNE_GUIDELLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUIDELLM = os.environ.get("AUTOTUNE_GUIDELLM") or shutil.which("guidellm")
TINY_MODEL = Path(__file__).parents[1] / "tiny_model.py"

pytestmark = pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed")


def test_guidellm_reads_every_token(launch, tmp_path):
    subprocess.run([sys.executable, str(TINY_MODEL), str(tmp_path / "tokenizer")], check=True)
    server = launch("--max-model-len=2048", "--served-model-name", "m", "--time-scale=20")
    server.wait_ready(90)
    words = ["run", "--backend", f"kind=openai_http,target={server.url},model=m"]
    words += ["--tokenizer", f"kind=hf_auto,model={tmp_path / 'tokenizer'}", "--profile", "kind=concurrent,streams=4"]
    words += ["--constraint", "kind=max_requests,count=20", "--disable-console"]
    words += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=32"]
    words += ["--output", f"kind=json,path={tmp_path / 'out.json'}"]
    finished = subprocess.run(
        [str(GUIDELLM), *words],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    metrics = json.loads((tmp_path / "out.json").read_text())["benchmarks"][0]["metrics"]
    assert metrics["request_totals"]["successful"] == 20
    assert metrics["request_totals"]["errored"] == 0
    assert metrics["output_token_count"]["successful"]["mean"] == 32
