"""What the engine and the GPU say of themselves while a load runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from autotune.telemetry import DeviceError, EngineMetricsDevice, NvmlDevice, list_gpus

Samples = Sequence[tuple[float, dict[str, float | None]]]
"""Looks at a device: CLOCK_MONOTONIC seconds, and values by field name."""

_ENGINE_FIELDS = ("running", "waiting", "kv_cache_usage", "preemptions", "generation_tokens")
_GPU_FIELDS = ("power_w", "sm_clock_mhz", "utilization")
_INTERVAL_S = 0.2
_ENGINE_EVERY = 3


def chosen_gpu() -> str:
    """The GPU that the engine will use: index or UUID."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def gpu_name(gpu: str) -> str:
    """Product name of a GPU, ``cpu`` where NVML does not know it."""
    return next((found.name for found in list_gpus() if gpu in {str(found.index), found.uuid}), "cpu")


class Sampler(threading.Thread):
    """Looks at the GPU five times a second and at the engine's metrics at every third of these."""

    def __init__(self, url: str, gpu: str) -> None:
        super().__init__(daemon=True)
        self.engine: list[tuple[float, dict[str, float | None]]] = []
        self.gpu: list[tuple[float, dict[str, float | None]]] = []
        self._engine_device = EngineMetricsDevice(url, timeout=5.0)
        self._gpu_device = NvmlDevice(gpu)
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until told to end."""
        with contextlib.suppress(DeviceError):  # without NVML every look fails as well, and the columns stay empty
            self._gpu_device.open()
        self._engine_device.open()
        step = 0
        while not self._over.wait(_INTERVAL_S):
            with contextlib.suppress(DeviceError):
                sample = self._gpu_device.sample()
                self.gpu.append((time.monotonic(), {name: sample[name] for name in _GPU_FIELDS}))
            step += 1
            if step % _ENGINE_EVERY == 0:
                with contextlib.suppress(DeviceError):
                    sample = self._engine_device.sample()
                    self.engine.append((time.monotonic(), {name: sample[name] for name in _ENGINE_FIELDS}))
        self._engine_device.close()
        self._gpu_device.close()

    def stop(self) -> None:
        """End and wait for the thread."""
        self._over.set()
        self.join(10)


def _inside(samples: Samples, window: tuple[float, float], field: str) -> list[tuple[float, float]]:
    return [(at, v) for at, values in samples if window[0] <= at <= window[1] and (v := values[field]) is not None]


def mean(samples: Samples, window: tuple[float, float], field: str) -> float:
    """Mean of a field over the looks inside a window; NaN without any."""
    found = [value for _, value in _inside(samples, window, field)]
    return float(np.mean(found)) if found else float("nan")


def growth(samples: Samples, window: tuple[float, float], field: str) -> tuple[float, float]:
    """By how much a counter grew between the first and the last look inside a window, and the seconds between them.

    NaN with fewer than two looks.
    """
    found = _inside(samples, window, field)
    if len(found) < 2:
        return float("nan"), float("nan")
    return found[-1][1] - found[0][1], found[-1][0] - found[0][0]
