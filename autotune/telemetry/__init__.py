"""NVML, engine metrics, host: devices with one life cycle."""

from autotune.telemetry._nvml import nvml_problem, pynvml_conflict
from autotune.telemetry._processes import process_tree
from autotune.telemetry.data import ColumnSummary, DeviceHealth, Row, Summary, Telemetry
from autotune.telemetry.device import Device, DeviceError, Sample
from autotune.telemetry.engine_metrics import EngineMetricsDevice
from autotune.telemetry.gpus import (
    GpuInfo,
    GpuProcess,
    detect_gpu,
    driver_cuda_version,
    gpu_memory_used,
    gpu_processes,
    list_gpus,
)
from autotune.telemetry.host import HostDevice
from autotune.telemetry.nvml_device import NvmlDevice
from autotune.telemetry.prometheus import MetricPoint, parse_metrics
from autotune.telemetry.recorder import Recorder
from autotune.telemetry.throttle import decode_reasons

__all__ = [
    "ColumnSummary",
    "Device",
    "DeviceError",
    "DeviceHealth",
    "EngineMetricsDevice",
    "GpuInfo",
    "GpuProcess",
    "HostDevice",
    "MetricPoint",
    "NvmlDevice",
    "Recorder",
    "Row",
    "Sample",
    "Summary",
    "Telemetry",
    "decode_reasons",
    "detect_gpu",
    "driver_cuda_version",
    "gpu_memory_used",
    "gpu_processes",
    "list_gpus",
    "nvml_problem",
    "parse_metrics",
    "process_tree",
    "pynvml_conflict",
]
