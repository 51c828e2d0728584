"""The main job on a real vLLM (CPU build) with a tiny model. Needs AUTOTUNE_VLLM_PYTHON, a Python that has vLLM."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

PYTHON = os.environ.get("AUTOTUNE_VLLM_PYTHON", "")
TINY_MODEL = Path(__file__).parents[1] / "tiny_model.py"
# One thread computes, so that two cores leave one to the client: a starved client's probes are void.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
# A P90 needs a tenth of the requests of a P99: what is tested is the job on a real engine, not the figures.
STUDY = """
name: real
gpu: cpu
model: tiny
engine: vllm
workload: {input_tokens: 64, output_tokens: 32}
slo: {p90_latency: 60s}
load: {concurrency: 8}
arguments: {load-format: dummy, enforce-eager: true}
space:
  max-num-seqs: [2, 8, 32]
  max-num-batched-tokens: [256, 2048]
  stream-interval: [1, 4]
  async-scheduling:
budget: {trials: 3}
"""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.alone,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not PYTHON, reason="AUTOTUNE_VLLM_PYTHON names no Python with vLLM"),
]


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_real_search_ends_with_a_verdict_and_a_configuration_that_vllm_takes(cli) -> None:
    model = cli.folder / "tiny"
    subprocess.run([sys.executable, TINY_MODEL, model], check=True)
    (cli.folder / "study.yaml").write_text(STUDY)
    command = f"{PYTHON} -m vllm.entrypoints.openai.api_server"
    done = cli.run("search", "--study", "study.yaml", "--vllm-command", command, timeout=1400, **ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" not in done.stdout + done.stderr
    result = cli.result("real")
    assert result["engine"]["kind"] == "vllm"
    assert result["verdict"]["decision"] in ("tuned", "keep-default")
    measured = [t for t in result["trials"] if t["outcome"] == "measured" and t["launched"]]
    assert len(measured) >= 6
    for trial in measured:
        assert trial["output_tokens_per_s"] is not None
        assert trial["probes"][0]["telemetry"]["engine.generation_tokens"]["delta"] > 0
        assert trial["engine_facts"]["resolved"]
    assert measured[0]["output_tokens_per_s"] > 0
    assert cli.engines("real") == []

    best = cli.folder / "studies" / "real" / "best.yaml"
    assert Path(yaml.safe_load(best.read_text())["model"]).name == "tiny"
    port = free_port()
    server = subprocess.Popen(
        [
            PYTHON,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--config",
            best,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env={**os.environ, **ENVIRONMENT},
        cwd=cli.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        cli.wait_for(lambda: answers(port) or server.poll() is not None, "the server of best.yaml", 300)
        assert server.poll() is None
    finally:
        server.terminate()
        server.wait(60)


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        time.sleep(0.5)
        return False
