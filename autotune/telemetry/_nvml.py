"""The way to NVML: loading it, telling in one sentence why not, and reading one value at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from autotune.telemetry.device import DeviceError

T = TypeVar("T")

_FATAL = frozenset(
    {
        "NVMLError_Uninitialized",
        "NVMLError_DriverNotLoaded",
        "NVMLError_GpuIsLost",
        "NVMLError_ResetRequired",
        "NVMLError_LibRmVersionMismatch",
    }
)
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_FIRST_OWN_RELEASE_WITHOUT_MODULE = 12
"""From this major version on, the ``pynvml`` distribution no longer ships a module of that name."""


def load() -> ModuleType:
    """The ``pynvml`` module of nvidia-ml-py, NVML initialised; balance with ``release``.

    Raises:
        DeviceError: no module, library, driver or permission; the sentence says which.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"The Python module pynvml cannot be imported ({error}): install nvidia-ml-py into this environment."
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DeviceError(_explain(type(error).__name__, error)) from error
    return nvml


def release(nvml: ModuleType) -> None:
    """Give NVML back; a library that is gone already is no error."""
    try:
        nvml.nvmlShutdown()
    except nvml.NVMLError:
        return


@contextmanager
def session() -> Iterator[ModuleType]:
    """NVML for the length of a ``with`` block."""
    nvml = load()
    try:
        yield nvml
    finally:
        release(nvml)


def read(nvml: ModuleType, call: Callable[[], T]) -> T | None:
    """One value, or None where this device, driver or module does not give it.

    Raises:
        DeviceError: the GPU or the driver is gone, so that no value can be read any more.
    """
    try:
        value = call()
    except AttributeError:
        return None
    except nvml.NVMLError as error:
        if type(error).__name__ in _FATAL:
            raise DeviceError(_explain(type(error).__name__, error)) from error
        return None
    return None if isinstance(value, int) and value in _NOT_AVAILABLE else value


def text(value: str | bytes | None) -> str | None:
    """A string of NVML, which older modules give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def nvml_problem() -> str | None:
    """Why NVML cannot be used here, as one sentence with the remedy; None when it can."""
    try:
        with session() as nvml:
            count = read(nvml, nvml.nvmlDeviceGetCount)
    except DeviceError as error:
        return str(error)
    if not count:
        return "NVML works but sees no GPU: pass one into this machine or container (e.g. docker run --gpus all)."
    return None


def pynvml_conflict(site_packages: Path | None = None) -> str | None:
    """Warns of the deprecated ``pynvml`` distribution, whose old releases shadow nvidia-ml-py's module.

    Args:
        site_packages: folder of another environment, such as vLLM's; this one by default.
    """
    found = distributions(path=[str(site_packages)]) if site_packages else distributions()
    for distribution in found:
        if (distribution.name or "").lower() != "pynvml":
            continue
        major = distribution.version.partition(".")[0]
        if major.isdigit() and int(major) >= _FIRST_OWN_RELEASE_WITHOUT_MODULE:
            return None
        return (
            f"The deprecated distribution pynvml {distribution.version} is installed and may shadow nvidia-ml-py's "
            "module: pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py."
        )
    return None


def _explain(kind: str, error: Exception) -> str:
    match kind:
        case "NVMLError_LibraryNotFound":
            return "No NVML library (libnvidia-ml.so.1) here: install the NVIDIA driver, or run where a GPU is."
        case "NVMLError_DriverNotLoaded":
            return "The NVIDIA driver is not loaded: load it (modprobe nvidia) or reboot after installing it."
        case "NVMLError_LibRmVersionMismatch":
            return "The NVIDIA library and the loaded driver differ in version: reboot to load the updated driver."
        case "NVMLError_NoPermission":
            return "NVML refuses access to the GPU: give this user permission on /dev/nvidia*."
        case "NVMLError_GpuIsLost":
            return "The GPU has fallen off the bus: reboot, and check power and cooling if it happens again."
        case "NVMLError_ResetRequired":
            return "The GPU needs a reset: reboot, or nvidia-smi --gpu-reset when nothing uses it."
        case _:
            return f"NVML failed ({error}): check that nvidia-smi works on this machine."
