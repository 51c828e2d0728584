"""The smaller parts of the engine room: log, environment, ports, facts, arguments, installations."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.engine import CommandStyle, VllmInstallation, detect_vllm
from autotune.engine._environment import engine_environment
from autotune.engine._facts import read_facts
from autotune.engine._log import LINE_BYTES, CappedLog
from autotune.engine._marker import Marker
from autotune.engine._ports import free_port, listens
from autotune.engine._procfs import ProcessIdentity, is_alive, look_at, own_identity, send_signal
from autotune.engine._redaction import Redactor
from autotune.engine._room import check_room
from autotune.engine.api import EngineStartError
from autotune.engine.catalogue import catalogue_from, load_catalogue, parse_help

DATA = Path(__file__).parent / "data"


def fill(log: CappedLog, data: bytes) -> None:
    reading, writing = os.pipe()
    log.drain(reading)
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(data)
    log.finish()


def test_log_keeps_head_and_tail(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "engine.log", Redactor({}), head_bytes=2000, tail_bytes=3000)
    lines = [f"line {number:05d}" for number in range(5000)]
    fill(log, "\n".join(lines).encode())
    kept = (tmp_path / "engine.log").read_text().splitlines()
    assert kept == log.text().splitlines()
    cut = next(index for index, line in enumerate(kept) if line.startswith("[autotune]"))
    assert kept[:cut] == lines[:cut]
    assert kept[cut + 1 :] == lines[-(len(kept) - cut - 1) :]
    assert str(5000 - len(kept) + 1) in kept[cut]
    assert log.grown == len("\n".join(lines))


def test_log_cuts_long_lines_and_progress_bars(tmp_path: Path) -> None:
    log = CappedLog(tmp_path / "engine.log", Redactor({}))
    bar = b"\r".join(b"%d%%" % percent for percent in range(101))
    fill(log, b"a" * 100_000 + b"z\n" + bar + b"\nno end of line \xff")
    first, second, third = log.text().splitlines()
    assert len(first) < LINE_BYTES
    assert first.endswith("z")
    assert second == "100%"
    assert third == "no end of line \ufffd"


def test_log_holds_no_secrets(tmp_path: Path) -> None:
    environment = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz", "MY_API_KEY": "topsecret!", "PATH": "/usr/bin:/bin"}
    log = CappedLog(tmp_path / "engine.log", Redactor(environment))
    fill(
        log,
        b"non-default args: {'model': 'm', 'api_key': ['k-123456']}\nAuthorization: Bearer abc.def-1234\n"
        b"env topsecret! and hf_abcdefghijklmnopqrstuvwxyz, path /usr/bin:/bin\nhf_QQQQQQQQQQQQQQQQQQQQ\n",
    )
    text = log.text()
    for secret in ("k-123456", "abc.def-1234", "topsecret!", "hf_abc", "hf_QQQ"):
        assert secret not in text
    assert "/usr/bin:/bin" in text


def test_environment_is_scrubbed(tmp_path: Path) -> None:
    outer = {
        "PATH": "/bin",
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_SERVICE_HOST": "10.0.0.1",
        "VLLM_GATEWAY_SERVICE_PORT_HTTP": "80",
        "VLLM_PORT_8000_TCP_ADDR": "10.0.0.1",
        "MASTER_ADDR": "x",
        "RANK": "3",
        "LOCAL_WORLD_SIZE": "8",
        "VLLM_API_KEY": "k",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "AUTOTUNE_ENGINE_ID": "outer",
    }
    environment = engine_environment(outer, model=str(tmp_path), devices="MIG-1", extra={"A": "b"})
    assert set(environment) & set(outer) == {"PATH", "VLLM_LOGGING_LEVEL", "VLLM_CPU_KVCACHE_SPACE"}
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert environment["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["A"] == "b"
    remote = engine_environment({}, model="org/model", devices=None, extra={})
    assert "HF_HUB_OFFLINE" not in remote
    assert "CUDA_VISIBLE_DEVICES" not in remote


def test_whose_port() -> None:
    port = free_port()
    assert listens([os.getpid()], port) is None
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert listens([os.getpid()], port) is True
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            assert listens([other.pid], port) is False


def test_marker_survives_the_environment() -> None:
    marker = Marker.new("study one")
    assert Marker.read(marker.environment()) == marker
    assert Marker.read({}) is None
    assert Marker.read({**marker.environment(), "AUTOTUNE_TUNER": "x:y:z"}) is None


def test_a_signal_never_reaches_another_process() -> None:
    me = own_identity()
    assert is_alive(me)
    assert not is_alive(ProcessIdentity(me.pid, me.create_time + 1))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        state = look_at(other.pid)
        assert state is not None
        later = ProcessIdentity(other.pid, state.identity.create_time + 5)
        assert not send_signal(later, signal.SIGKILL)
        assert other.poll() is None


def test_facts_of_a_gpu_start() -> None:
    log = """
(EngineCore pid=9) INFO 11-30 12:00:00 [gpu_model_runner.py:1] Model loading took 7.5556 GiB memory and 3.25 seconds
(EngineCore pid=9) INFO 11-30 12:00:00 [monitor.py:1] torch.compile took 21.40 s in total
(EngineCore pid=9) INFO 11-30 12:00:00 [gpu_worker.py:1] Available KV cache memory: 4.37 GiB
(EngineCore pid=9) INFO 11-30 12:00:00 [kv_cache_utils.py:1] GPU KV cache size: 31,824 tokens
(EngineCore pid=9) INFO 11-30 12:00:00 [gpu_model_runner.py:1] Graph capturing finished in 17 secs, took 0.61 GiB
(EngineCore pid=9) INFO 11-30 12:00:00 [core.py:1] init engine (profile, create kv cache, warmup model) took 62.10 s
"""
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 256}, "model_config": {"dtype": "torch.float16"}}}
    facts = read_facts(log, info, 90.0)
    assert facts.kv_cache_tokens == 31824
    assert facts.kv_cache_gib == pytest.approx(4.37)
    assert facts.weights_gib == pytest.approx(7.5556)
    assert facts.graphs_gib == pytest.approx(0.61)
    assert facts.start_seconds == {"weights": 3.25, "compile": 21.4, "graphs": 17.0, "engine": 62.1, "total": 90.0}
    assert facts.resolved == {"max-num-seqs": 256, "dtype": "float16"}


def test_facts_of_a_silent_engine() -> None:
    facts = read_facts("", {}, 2.0)
    assert facts.kv_cache_tokens is None
    assert facts.weights_gib is None
    assert facts.resolved == {}


HELP = """usage: vllm serve [model_tag] [options]

options:
  --headless            Run in headless mode. (default: False)
  --enable-prefix-caching, --no-enable-prefix-caching
                        Whether to enable prefix caching. (default: None)
  --gpu-memory-utilization GPU_MEMORY_UTILIZATION, --device-memory-utilization GPU_MEMORY_UTILIZATION
                        The fraction.
  --dtype {auto,half}   Data type.
  --max-num-seqs MAX_NUM_SEQS
"""


def test_arguments_from_help() -> None:
    catalogue = catalogue_from(parse_help(HELP))
    assert "max-num-seqs" in catalogue.names
    assert "device-memory-utilization" in catalogue.names
    assert catalogue.check({"max-num-seqs": 4, "enable-prefix-caching": False, "dtype": "half"}) == []
    (wrong_name,) = catalogue.check({"max-num-sequences": 4})
    assert "max-num-seqs" in wrong_name
    (wrong_choice,) = catalogue.check({"dtype": "float8"})
    assert "auto, half" in wrong_choice
    (no_switch,) = catalogue.check({"enable-prefix-caching": "True"})
    assert "switch" in no_switch
    (only_on,) = catalogue.check({"headless": False})
    assert "leave it out" in only_on


def fake_script(folder: Path, body: str) -> Path:
    script = folder / "vllm"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return script


def test_a_script_that_tells_its_version_and_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = "\n".join(f"  --argument-{letter} VALUE" for letter in "abcdefghijklmnopqrstuvwxyz")
    (tmp_path / "help.txt").write_text(f"options:\n{many}\n")
    script = fake_script(
        tmp_path,
        f'if [ "$1" = --version ]; then echo 0.12.3; else cat {tmp_path}/help.txt; fi; echo "$@" >> {tmp_path}/calls',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    installation = detect_vllm()
    assert installation == VllmInstallation((str(script),), "0.12.3", CommandStyle.SERVE)
    assert detect_vllm(f"{script} serve") == installation
    assert installation.launch_command("m", ["--x"]) == [str(script), "serve", "m", "--x"]
    for _ in range(2):
        catalogue = load_catalogue(installation, tmp_path / "cache")
        assert "argument-a" in catalogue.names
    assert (tmp_path / "calls").read_text().count("--help") == 1


@pytest.mark.parametrize("command", ["/absent/vllm", "ls"])
def test_commands_that_are_no_vllm(command: str) -> None:
    with pytest.raises(EnvironmentProblemError):
        detect_vllm(command)


def test_a_command_with_an_unclosed_quotation_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="No closing quotation"):
        detect_vllm("sh -c 'echo")


def test_no_vllm_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblemError, match="vllm-command"):
        detect_vllm()


def test_full_disks_are_seen_before_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_room(tmp_path / "not" / "there" / "yet", tmp_path)
    monkeypatch.setattr("autotune.engine._room.SHARED_MEMORY_MIB", 10**12)
    with pytest.raises(EngineStartError) as caught:
        check_room(tmp_path, tmp_path)
    assert caught.value.failure.environment
