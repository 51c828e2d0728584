"""What ``autotune doctor`` looks at; each check gives findings of one line."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autotune.base.errors import EnvironmentProblemError
from autotune.catalog import Gpu, identify_gpu
from autotune.engine.installation import VllmInstallation, detect_vllm
from autotune.engine.orphans import end_orphan, find_orphans
from autotune.spec import EngineChoice
from autotune.telemetry import (
    GpuInfo,
    driver_cuda_version,
    gpu_processes,
    list_gpus,
    nvml_problem,
    pynvml_conflict,
)

_GIB = 2**30
_MIB = 2**20
_TAKEN_GIB = 1.0
"""Memory in use on an idle GPU beyond which somebody else is at work there; a display takes less."""
_WORK_DISK_GIB = 1.0
_MODEL_DISK_GIB = 20.0
_SHM_GIB = 1.0
"""vLLM's processes talk through shared memory; a container's default of 64 MiB is too little."""
_TORCH_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*(?:None|['\"]([\d.]+)['\"])", re.MULTILINE)
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the mount, not a temporary file
_FILES = 4096
_CORES = 2


class State(StrEnum):
    """How bad a finding is. Only a problem stands in the way of what was asked."""

    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``remedy`` says what to do, empty when there is nothing to do."""

    check: str
    state: State
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What the machine is wanted for. ``gpu`` None: whatever there is."""

    gpu: Gpu | None
    wants_any_gpu: bool
    engine: EngineChoice
    vllm_command: str | None
    end_orphans: bool

    @property
    def wants_gpu(self) -> bool:
        """True when a GPU must be here for it."""
        named = self.gpu is not None and self.gpu.kind != "cpu"
        return self.engine is not EngineChoice.SIMULATED and (named or self.wants_any_gpu)

    @property
    def wants_vllm(self) -> bool:
        """True when a vLLM must be here for it."""
        asked = self.engine is EngineChoice.VLLM or self.vllm_command is not None
        return asked or self.wants_gpu


def examine(request: Request) -> list[Finding]:
    """All findings, in the order of the checks."""
    checks: tuple[Callable[[Request], Iterator[Finding]], ...] = (
        _check_gpus,
        _check_vllm,
        _check_orphans,
        _check_ports,
        _check_folders,
        _check_shared_memory,
        _check_host,
    )
    return [finding for check in checks for finding in check(request)]


def _check_gpus(request: Request) -> Iterator[Finding]:
    wanted = request.gpu
    bad = State.PROBLEM if request.wants_gpu else State.WARN
    problem = nvml_problem()
    if problem is not None:
        what, _, remedy = problem.partition(": ")
        yield Finding("nvml", bad, f"{what}.", remedy[:1].upper() + remedy[1:])
        if not request.wants_gpu:
            yield Finding("gpu", State.OK, "No GPU is needed for the simulated engine.")
        return
    gpus = list_gpus()
    if not gpus:
        yield Finding("nvml", bad, "NVML counts GPUs but opens none.", "Give this user permission on /dev/nvidia*.")
        return
    yield Finding("nvml", State.OK, f"NVML works; driver {gpus[0].driver or 'unknown'}.")
    for gpu in gpus:
        yield from _describe_gpu(gpu)
    if wanted is not None and request.wants_gpu and not any(_catalogue_name(gpu) == wanted.name for gpu in gpus):
        here = ", ".join(gpu.name for gpu in gpus)
        yield Finding(
            "gpu", State.PROBLEM, f"No {wanted.title} is here, but {here}.", "Run where it is, or use --gpu auto."
        )
    yield from _check_device_order(len(gpus))


def _describe_gpu(gpu: GpuInfo) -> Iterator[Finding]:
    check = f"gpu {gpu.index}"
    size = "memory unknown" if gpu.memory_total_gib is None else f"{gpu.memory_total_gib:.1f} GiB"
    text = f"{gpu.name}, {size}, {gpu.uuid or 'no UUID'}"
    name = _catalogue_name(gpu)
    if name is None:
        yield Finding(
            check, State.WARN, f"{text}: not in the catalogue.", "Name the nearest of 'autotune gpus' with --gpu."
        )
    else:
        yield Finding(check, State.OK, f"{text}: --gpu {name}.")
    if gpu.mig_uuids:
        yield Finding(
            check,
            State.WARN,
            f"It is split by MIG into {', '.join(gpu.mig_uuids)}.",
            "Choose one with CUDA_VISIBLE_DEVICES, or turn MIG off.",
        )
    if gpu.memory_used_gib is not None and gpu.memory_used_gib > _TAKEN_GIB:
        users = ", ".join(str(process.pid) for process in gpu_processes(gpu.index) or [])
        yield Finding(
            check,
            State.WARN,
            f"{gpu.memory_used_gib:.1f} GiB of its memory are taken (processes: {users or 'not shown'}).",
            "End what uses it: figures would not hold, and engines may not fit.",
        )


def _catalogue_name(gpu: GpuInfo) -> str | None:
    found = identify_gpu(gpu.name, gpu.memory_total_gib or 0.0)
    return None if found is None else found.name


def _check_device_order(count: int) -> Iterator[Finding]:
    order = os.environ.get("CUDA_DEVICE_ORDER")
    if count > 1 and order not in (None, "PCI_BUS_ID"):
        yield Finding(
            "gpu",
            State.WARN,
            f"CUDA_DEVICE_ORDER is {order}: CUDA counts the GPUs otherwise than NVML.",
            "Unset it, or set it to PCI_BUS_ID as autotune does for its engines.",
        )


def _check_pynvml(folder: Path | None = None) -> Iterator[Finding]:
    conflict = pynvml_conflict(folder)
    if conflict is not None:
        what, _, remedy = conflict.partition(": ")
        where = "" if folder is None else f" In {folder}."
        yield Finding("pynvml", State.WARN, f"{what}.{where}", remedy[:1].upper() + remedy[1:])


def _check_vllm(request: Request) -> Iterator[Finding]:
    yield from _check_pynvml()
    try:
        found = detect_vllm(request.vllm_command)
    except EnvironmentProblemError as error:
        state = State.PROBLEM if request.wants_vllm else State.WARN
        what = error.message.removeprefix("vLLM: ")
        yield Finding("vllm", state, what[:1].upper() + what[1:], error.remedy)
        return
    yield Finding("vllm", State.OK, f"vLLM {found.version} ({shlex.join(found.command)}).")
    if found.folder is not None:
        site = found.folder.parent
        yield from _check_pynvml(site)
        yield from _check_cuda(request, found, site)


def _check_cuda(request: Request, vllm: VllmInstallation, site: Path) -> Iterator[Finding]:
    """Does the driver support the CUDA with which vLLM's PyTorch was built? Within a major version any driver does."""
    try:
        match = _TORCH_CUDA.search((site / "torch" / "version.py").read_text())
    except OSError:
        return
    if match is None:
        return
    built, driver = match.group(1), driver_cuda_version()
    if built is None:
        if request.wants_gpu:
            text = f"vLLM {vllm.version} runs on a PyTorch without CUDA: it cannot use the GPU."
            yield Finding("vllm", State.PROBLEM, text, "Name a vLLM built for CUDA with --vllm-command.")
    elif driver is not None and driver[0] < int(built.partition(".")[0]):
        yield Finding(
            "vllm",
            State.PROBLEM if request.wants_gpu else State.WARN,
            f"Its PyTorch wants CUDA {built}, and the driver supports {driver[0]}.{driver[1]}.",
            "Update the NVIDIA driver, or install a vLLM built for the older CUDA.",
        )


def _check_orphans(request: Request) -> Iterator[Finding]:
    orphans = find_orphans()
    if not orphans:
        yield Finding("engines", State.OK, "No engine was left behind.")
    for orphan in orphans:
        study = f" of study '{orphan.study}'" if orphan.study else ""
        count = len(orphan.processes)
        size = "1 process" if count == 1 else f"{count} processes"
        text = f"An engine{study} was left behind (pid {orphan.pid}, {size})"
        if not request.end_orphans:
            yield Finding("engines", State.WARN, f"{text}.", "End it with: autotune doctor --end-orphans")
        elif end_orphan(orphan):
            yield Finding("engines", State.OK, f"{text}; it was ended.")
        else:
            yield Finding("engines", State.PROBLEM, f"{text} and does not end.", "Reboot, or ask its owner to end it.")


def _check_ports(_request: Request) -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            pass
    except OSError as error:
        yield Finding(
            "ports",
            State.PROBLEM,
            f"A port on 127.0.0.1 cannot be opened and reached ({error.strerror or error}).",
            "Bring the loopback interface up, and let this user open ports.",
        )
        return
    yield Finding("ports", State.OK, "Loopback ports can be opened and reached.")


def _check_folders(request: Request) -> Iterator[Finding]:
    here = Path.cwd()
    free = shutil.disk_usage(here).free / _GIB
    if not os.access(here, os.W_OK):
        yield Finding(
            "disk",
            State.PROBLEM,
            f"{here} cannot be written.",
            "Change to a folder of yours, or use --out and --storage.",
        )
    elif free < _WORK_DISK_GIB:
        yield Finding(
            "disk", State.WARN, f"{here} has {free:.2f} GiB left.", "Free at least 1 GiB for logs and results."
        )
    else:
        yield Finding("disk", State.OK, f"{here} can be written and has {free:.0f} GiB left.")
    if request.wants_vllm:
        yield from _check_model_cache()


def _check_model_cache() -> Iterator[Finding]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / _GIB
    if free < _MODEL_DISK_GIB:
        yield Finding(
            "disk",
            State.WARN,
            f"{home}, where models are downloaded to, has {free:.1f} GiB left.",
            "Free some, or set HF_HOME to a larger disk.",
        )


def _check_shared_memory(request: Request) -> Iterator[Finding]:
    folder = _SHARED_MEMORY
    if not folder.exists():
        return
    usage = shutil.disk_usage(folder)
    if usage.free >= _SHM_GIB * _GIB:
        yield Finding("shared memory", State.OK, f"{folder} has {usage.free / _GIB:.1f} GiB left.")
        return
    yield Finding(
        "shared memory",
        State.WARN,
        f"{folder} has {usage.free / _MIB:.0f} of {usage.total / _MIB:.0f} MiB left"
        + (", and vLLM needs it between its processes." if request.wants_vllm else "."),
        "Start the container with --ipc=host or --shm-size=8g.",
    )


def _check_host(_request: Request) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    if cores < _CORES:
        yield Finding(
            "host",
            State.WARN,
            f"{cores} CPU core: load generator and engine will get in each other's way.",
            "Give it at least 2 cores.",
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = soft == resource.RLIM_INFINITY or soft >= _FILES
    if not many:
        yield Finding(
            "host",
            State.WARN,
            f"At most {soft} files may be open, and each request needs one.",
            f"Raise it with ulimit -n {_FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)}.",
        )
    if cores >= _CORES and many:
        yield Finding("host", State.OK, f"{cores} CPU cores, and enough open files.")
