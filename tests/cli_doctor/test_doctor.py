"""``autotune doctor`` on machines of every kind, made of a fake NVML and a fake vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.cli import _checks
from autotune.cli.doctor import doctor
from autotune.engine.installation import CommandStyle, VllmInstallation
from autotune.telemetry.testing import FakeGpu, FakeNvml, installed

GIB = 2**30
app = typer.Typer()
app.command()(doctor)


def run(*words: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Exit code, and the state and text of the findings of each check."""
    result = CliRunner().invoke(app, [*words, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    document = json.loads(result.stdout)
    assert document["usable"] is (result.exit_code == 0)
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in document["findings"]:
        assert "\n" not in finding["text"] + finding["remedy"]
        assert finding["state"] == "ok" or finding["remedy"]
        findings.setdefault(finding["check"], []).append(
            (finding["state"], f"{finding['text']} {finding['remedy']}".strip())
        )
    return result.exit_code, findings


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_checks, "find_orphans", list)


@pytest.fixture
def no_gpu() -> Iterator[None]:
    with installed(FakeNvml([], errors={"nvmlInit": "NVMLError_LibraryNotFound"})):
        yield


@pytest.fixture
def t4() -> Iterator[FakeNvml]:
    with installed(FakeNvml([FakeGpu()])) as fake:
        yield fake


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(command: str | None) -> VllmInstallation:
        raise EnvironmentProblemError("vLLM: there is no 'vllm' on PATH.", "Install it.")

    monkeypatch.setattr(_checks, "detect_vllm", detect)


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a vLLM whose PyTorch was built for a CUDA."""

    def make(cuda: str) -> None:
        site = tmp_path / "site-packages"
        (site / "torch").mkdir(parents=True)
        (site / "torch" / "version.py").write_text(
            "from typing import Optional\n\n__version__ = '2.11.0'\n"
            f"debug = False\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = None\n"
        )
        found = VllmInstallation(("/env/bin/vllm",), "0.24.0", CommandStyle.SERVE, folder=site / "vllm")
        monkeypatch.setattr(_checks, "detect_vllm", lambda command: found)

    return make


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_a_laptop_is_good_enough_for_the_simulated_engine() -> None:
    code, findings = run()
    assert code == 0
    assert findings["nvml"] == [
        (
            "warn",
            "No NVML library (libnvidia-ml.so.1) here. Install the NVIDIA driver, or run where a GPU is.",
        )
    ]
    assert findings["vllm"] == [("warn", "There is no 'vllm' on PATH. Install it.")]
    assert {check for check, found in findings.items() for state, _ in found if state == "problem"} == set()


@pytest.mark.usefixtures("no_gpu", "no_vllm")
@pytest.mark.parametrize("gpu", ["t4", "auto"])
def test_a_gpu_that_is_asked_for_and_missing(gpu: str) -> None:
    code, findings = run("--gpu", gpu)
    assert code == 4
    assert findings["nvml"][0][0] == findings["vllm"][0][0] == "problem"


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_a_simulated_t4_needs_no_t4() -> None:
    assert run("--gpu", "t4", "--engine", "simulated")[0] == 0


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_a_real_engine_that_is_missing() -> None:
    assert run("--engine", "vllm")[0] == 4


@pytest.mark.usefixtures("t4")
def test_all_is_well(vllm: Callable[[str], None]) -> None:
    vllm("'13.0'")
    code, findings = run("--gpu", "t4")
    assert code == 0
    assert findings["gpu 0"] == [("ok", "Tesla T4, 15.0 GiB, GPU-11111111-2222-3333-4444-555555555555: --gpu t4.")]
    assert findings["nvml"] == [("ok", "NVML works; driver 580.95.05.")]
    assert findings["vllm"] == [("ok", "vLLM 0.24.0 (/env/bin/vllm).")]
    assert findings["engines"] == [("ok", "No engine was left behind.")]


@pytest.mark.usefixtures("t4")
def test_another_gpu_than_asked_for(vllm: Callable[[str], None]) -> None:
    vllm("'13.0'")
    code, findings = run("--gpu", "h200")
    assert code == 4
    assert findings["gpu"][0][0] == "problem"
    assert "but Tesla T4" in findings["gpu"][0][1]
    assert run("--gpu", "auto")[0] == 0


@pytest.mark.usefixtures("no_vllm")
def test_a_gpu_that_somebody_uses(t4: FakeNvml) -> None:
    t4.gpus[0].memory_used = 9 * GIB
    t4.gpus[0].processes = {77: 8 * GIB}
    _, findings = run()
    assert findings["gpu 0"][1] == (
        "warn",
        "9.0 GiB of its memory are taken (processes: 77). End what uses it: figures would not hold, and engines may "
        "not fit.",
    )


@pytest.mark.usefixtures("no_vllm")
def test_mig_and_a_gpu_outside_the_catalogue() -> None:
    gpu = FakeGpu(name="NVIDIA Frobnicator 9000")
    gpu.instances = [FakeGpu(uuid="MIG-1", parent=gpu)]
    with installed(FakeNvml([gpu])):
        _, findings = run()
    assert "not in the catalogue" in findings["gpu 0"][0][1]
    assert "MIG-1" in findings["gpu 0"][1][1]


@pytest.mark.usefixtures("no_vllm")
def test_devices_counted_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    with installed(FakeNvml([FakeGpu(), FakeGpu()])):
        _, findings = run()
    assert "FASTEST_FIRST" in findings["gpu"][0][1]


@pytest.mark.usefixtures("t4")
@pytest.mark.parametrize(
    ("cuda", "words"),
    [("'14.1'", "wants CUDA 14.1, and the driver supports 13.0"), ("None", "PyTorch without CUDA")],
)
def test_a_vllm_that_cannot_use_the_gpu(vllm: Callable[[str], None], cuda: str, words: str) -> None:
    vllm(cuda)
    code, findings = run("--gpu", "t4")
    assert code == 4
    assert words in findings["vllm"][1][1]


@pytest.mark.usefixtures("t4")
def test_an_older_minor_cuda_is_fine(vllm: Callable[[str], None]) -> None:
    vllm('"13.2"')
    assert run("--gpu", "t4")[0] == 0


@pytest.mark.usefixtures("no_gpu")
def test_old_pynvml_in_vllms_environment(tmp_path: Path, vllm: Callable[[str], None]) -> None:
    vllm("'13.0'")
    info = tmp_path / "site-packages" / "pynvml-11.5.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.0\n")
    _, findings = run()
    assert findings["pynvml"][0][0] == "warn"
    assert "site-packages" in findings["pynvml"][0][1]


@pytest.mark.usefixtures("no_vllm")
def test_a_gpu_that_may_not_be_opened() -> None:
    with installed(FakeNvml([FakeGpu()], errors={"nvmlDeviceGetHandleByIndex": "NVMLError_NoPermission"})):
        code, findings = run("--gpu", "t4")
    assert code == 4
    assert "/dev/nvidia" in findings["nvml"][0][1]


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_a_container_with_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.disk_usage

    def usage(path: Path) -> object:
        total = 64 * 2**20
        return type(real("/"))(total, 0, total) if str(path) == "/dev/shm" else real(path)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    _, findings = run()
    assert findings["shared memory"][0][0] == "warn"
    assert "64 of 64 MiB" in findings["shared memory"][0][1]


ENGINE = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
signal.pause()
"""

TUNER = """
import os, subprocess, sys
from autotune.engine._marker import Marker
engine = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE,
    env=os.environ | Marker.new("t4-study").environment(),
)
engine.stdout.readline()
print(engine.pid, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_an_engine_left_behind_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.engine import orphans

    monkeypatch.setattr(_checks, "find_orphans", orphans.find_orphans)
    monkeypatch.setattr(_checks, "end_orphan", lambda orphan: orphans.end_orphan(orphan, grace=0.1))
    tuner = subprocess.run([sys.executable, "-c", TUNER, ENGINE], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(tuner.stdout)
    try:
        code, findings = run()
        ours = [text for _, text in findings["engines"] if f"pid {pid}," in text]
        assert code == 0
        assert ours == [
            f"An engine of study 't4-study' was left behind (pid {pid}, 1 process). "
            "End it with: autotune doctor --end-orphans"
        ]
        monkeypatch.setattr(
            _checks, "find_orphans", lambda: [orphan for orphan in orphans.find_orphans() if orphan.pid == pid]
        )
        code, findings = run("--end-orphans")
        assert code == 0
        assert findings["engines"][0][1].endswith("it was ended.")
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
    finally:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, 9)


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_lines_for_people() -> None:
    result = CliRunner().invoke(app, [])
    lines = result.stdout.splitlines()
    assert lines[0].startswith("warn    nvml: No NVML library")
    assert all(line.split()[0] in {"ok", "warn", "problem"} for line in lines)


@pytest.mark.usefixtures("no_gpu", "no_vllm")
def test_misspelt_gpu_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="t4"):
        run("--gpu", "t44")
