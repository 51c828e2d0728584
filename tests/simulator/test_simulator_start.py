"""Starting: log lines in order, and each way to fail with vLLM's exit code and words."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

MILESTONES = [
    "version .*simulated",
    "Initializing a V1 LLM engine",
    "Loading model from scratch",
    r"Model loading took [\d.]+ GiB and [\d.]+ seconds",
    "Using cache directory: .*torch_compile_cache",
    "torch.compile took",
    r"Available KV cache memory: [\d.]+ GiB",
    r"GPU KV cache size: [\d,]+ tokens",
    r"Maximum concurrency for 2,048 tokens per request: [\d.]+x",
    r"Graph capturing finished in \d+ secs, took [\d.]+ GiB",
    "init engine .profile, create kv cache, warmup model. took",
    "Starting vLLM server on http://127.0.0.1:",
    "Application startup complete.",
]


def test_milestones_in_order_and_a_warm_second_start(launch):
    first = launch("--max-model-len=2k", "--max-model-len=2048", "--gpu-memory-utilization=0.91")
    first.wait_ready()
    at = 0
    for milestone in MILESTONES:
        match = re.compile(milestone).search(first.log, at)
        assert match, milestone
        at = match.end()
    assert "Falling back to torch.float16" in first.log
    assert "Compiling a graph for compile range (1, 2048)" in first.log
    second = launch("--max-model-len=2048", "--gpu-memory-utilization=0.9")
    second.wait_ready()
    assert "Directly load the compiled graph(s)" in second.log, "utilisation is not in the key of the compile cache"
    third = launch("--max-model-len=2048", "--max-num-seqs=32")
    third.wait_ready()
    assert "Compiling a graph" in third.log, "max-num-seqs is"


@pytest.mark.parametrize(
    ("words", "exit_code", "texts"),
    [
        (["--swap-space", "4"], 2, ["vllm serve: error: unrecognized arguments: --swap-space 4"]),
        (["--max-num-seqs=many"], 2, ["vllm serve: error: argument --max-num-seqs: invalid human_int value"]),
        (["--kv-cache-dtype=int3"], 2, ["invalid choice"]),
        (
            ["--max-num-seqs=64", "--max-num-batched-tokens=32"],
            1,
            ["must be greater than or equal to max_num_seqs (64)"],
        ),
        (["--max-model-len=50000"], 1, ["User-specified max_model_len (50000) is greater than the derived"]),
        (["--dtype=bfloat16"], 1, ["Bfloat16 is only supported on GPUs with compute capability of at least 8.0"]),
        (["--quantization=gguf"], 1, ["Unknown quantization method: gguf. Must be one of"]),
        (["--quantization=awq"], 1, ["Cannot find the config file for awq"]),
        (["--tensor-parallel-size=2"], 1, ["World size (2) is larger than the number of available GPUs (1)"]),
        (["--tensor-parallel-size=3"], 1, ["Total number of attention heads (32) must be divisible"]),
        (
            ["--kv-cache-dtype=fp8"],
            1,
            ["Triton reshape-and-cache cannot store kv_cache_dtype=fp8", "EngineCore failed"],
        ),
        (
            [],
            1,
            ["(40960), (5.62 GiB KV cache is needed", "the estimated maximum model length is", "EngineCore failed"],
        ),
        (["--max-model-len=2048", "--gpu-memory-utilization=0.5"], 1, ["No available memory for the cache blocks"]),
        (["--gpu-memory-utilization=1.0"], 1, ["is less than desired GPU memory utilization (1.0, 14.56 GiB)"]),
        (["--block-size=8"], 1, ["block_size"]),
        (["--max-model-len=2048", "--sim-fault=crash-start"], 1, ["CUDA error", "EngineCore failed to start"]),
    ],
)
def test_failures(launch, words, exit_code, texts):
    engine = launch(*words)
    assert engine.wait_exit() == exit_code, engine.log
    for text in texts:
        assert text in engine.log
    if "EngineCore failed" in texts:
        assert "Engine core initialization failed. See root cause above." in engine.log


def test_weights_that_do_not_fit(launch):
    engine = launch("--max-model-len=2048", model="qwen3-14b")
    assert engine.wait_exit() == 1
    assert re.search(
        r"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate .* total capacity of 14.56 GiB", engine.log
    )
    assert "load_model" in engine.log
    assert "Model loading took" not in engine.log


def test_profile_run_out_of_memory(launch):
    engine = launch("--max-model-len=2048", "--max-num-batched-tokens=262144")
    assert engine.wait_exit() == 1
    assert "profile_run" in engine.log
    assert "torch.OutOfMemoryError" in engine.log


def test_unknown_model(launch):
    engine = launch(model="/nowhere/at/all")
    assert engine.wait_exit() == 1
    assert "Invalid repository ID or local directory specified: '/nowhere/at/all'" in engine.log


def test_port_in_use(launch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = launch("--max-model-len=2048", f"--port={taken.getsockname()[1]}")
        assert engine.wait_exit() == 1
    assert "OSError: [Errno 98] Address already in use" in engine.log
    assert "Loading model" not in engine.log, "the port is bound before anything is loaded"


def test_config_file(launch, tmp_path):
    path = tmp_path / "best.yaml"
    path.write_text(
        "model: qwen3-4b\nmax-model-len: 1024\nmax-num-seqs: 8\nenable-prefix-caching: false\nasync-scheduling: true\n"
    )
    engine = launch("--config", str(path), "--max-num-seqs=16")
    engine.wait_ready()
    info = json.loads(engine.get("/server_info")[1])["vllm_config"]
    assert info["model_config"]["max_model_len"] == 1024
    assert info["scheduler_config"]["max_num_seqs"] == 16, "the command line wins over the file"
    assert info["cache_config"]["enable_prefix_caching"] is False


def test_ready_is_not_safe_out_of_memory_under_load(launch):
    engine = launch("--max-model-len=8192", "--gpu-memory-utilization=0.982", "--max-num-batched-tokens=8192")
    engine.wait_ready()
    small = {"prompt": [1] * 10, "max_tokens": 4, "ignore_eos": True}
    assert engine.post("/v1/completions", small)[0] == 200
    status, text = engine.post("/v1/completions", {"prompt": [2] * 8000, "max_tokens": 4, "ignore_eos": True})
    assert status == 500
    assert "EngineCore encountered an issue" in text
    assert engine.wait_exit() == 0, "vLLM exits with 0 after its engine died"
    assert "EngineCore encountered a fatal error." in engine.log
    assert "torch.OutOfMemoryError: CUDA out of memory" in engine.log


def test_a_dead_engine_says_so(launch):
    engine = launch("--max-model-len=2048", "--sim-fault=exit0-after=1", "--time-scale=20")
    body = {"prompt": [1], "max_tokens": 1, "ignore_eos": True}
    engine_ready(engine)
    engine.post("/v1/completions", body)
    assert engine.get("/health")[0] == 503
    assert engine.post("/v1/completions", body)[0] == 500
    assert engine.wait_exit(20) == 0


def test_a_hung_engine_stays_healthy(launch):
    engine = launch("--max-model-len=2048", "--sim-fault=hang-after=1")
    engine.wait_ready()
    body = {"prompt": [1], "max_tokens": 1, "ignore_eos": True}
    assert engine.post("/v1/completions", body)[0] == 200
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        text = json.dumps(body | {"stream": True})
        client.sendall(f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert engine.get("/health")[0] == 200


def engine_ready(engine):
    engine.wait_ready(60)


def test_memory_ledger_and_orphans(launch, tmp_path):
    state = {"AUTOTUNE_SIM_GPU_STATE": str(tmp_path / "gpu")}
    first = launch("--max-model-len=2048", "--sim-child", environment=state)
    first.wait_ready()
    entry = json.loads(next((tmp_path / "gpu").glob("*.json")).read_text())
    assert entry["pid"] != first.process.pid
    assert 12 * 2**30 < entry["bytes"] < 15 * 2**30
    first.process.kill()
    first.process.wait()
    second = launch("--max-model-len=2048", environment=state)
    assert second.wait_exit() == 1
    assert "on startup is less than desired GPU memory utilization" in second.log
    os.kill(entry["pid"], signal.SIGKILL)
    third = launch("--max-model-len=2048", "--sim-child", environment=state)
    third.wait_ready()
    third.process.terminate()
    assert third.wait_exit() == 0
    assert not [p for p in (tmp_path / "gpu").glob("*.json") if p.name != f"{entry['pid']}.json"]


def core_pid(folder: Path) -> int:
    """The process that holds the simulated GPU's memory, as soon as there is one."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in folder.glob("*.json"):
            return int(json.loads(path.read_text())["pid"])
        time.sleep(0.01)
    raise AssertionError("no process holds memory")


def test_a_killed_engine_core_takes_the_server_along(launch, tmp_path):
    state = {"AUTOTUNE_SIM_GPU_STATE": str(tmp_path / "gpu")}
    engine = launch("--max-model-len=2048", "--sim-child", "--time-scale=20", environment=state)
    engine_ready(engine)
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.settimeout(10)
        text = json.dumps({"prompt": [1], "max_tokens": 2000, "ignore_eos": True})
        client.sendall(f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        os.kill(core_pid(tmp_path / "gpu"), signal.SIGKILL)
        assert b" 500 " in client.recv(4096).splitlines()[0], "what was in flight fails"
    assert engine.post("/v1/completions", {"prompt": [1], "max_tokens": 1})[0] == 500
    assert engine.get("/health")[0] == 503
    assert engine.wait_exit() == 0
    # The lines that a real vLLM 0.32 wrote when its engine core was killed.
    assert "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup" in engine.log
    assert "EngineDeadError: EngineCore encountered an issue." in engine.log
    assert "EngineCore encountered a fatal error" not in engine.log, "a killed process says nothing"


def test_an_engine_core_killed_while_starting_fails_the_start(launch, tmp_path):
    state = {"AUTOTUNE_SIM_GPU_STATE": str(tmp_path / "gpu")}
    engine = launch("--max-model-len=2048", "--sim-child", "--sim-fault=never-ready", environment=state)
    os.kill(core_pid(tmp_path / "gpu"), signal.SIGKILL)
    assert engine.wait_exit() == 1
    assert "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}" in (
        engine.log
    )


def test_help_lists_flags_and_version(launch):
    import subprocess
    import sys

    text = subprocess.run(
        [sys.executable, "-m", "autotune.simulator", "serve", "--help=all"], capture_output=True, text=True, check=True
    ).stdout
    for flag in ("--max-num-seqs", "--kv-cache-dtype", "--no-enable-prefix-caching", "--sim-gpu", "--async-scheduling"):
        assert flag in text
    version = subprocess.run(
        [sys.executable, "-m", "autotune.simulator", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert "simulated" in version
