"""Why an engine failed: causes, and what each means for the search."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """What a failure means."""

    INFEASIBLE = "infeasible"
    """This configuration cannot run here: the search learns it."""
    FAULT = "fault"
    """Not the configuration's doing: retried or reported, never learned."""
    NONE = "none"
    """No failure."""


class Phase(StrEnum):
    """How far the engine had come."""

    LAUNCH = "launch"
    CONFIG = "config"
    LOAD_WEIGHTS = "load_weights"
    PROFILE = "profile"
    KV_CACHE = "kv_cache"
    CUDA_GRAPHS = "cuda_graphs"
    WARM_UP = "warm_up"
    SERVING = "serving"
    STOPPING = "stopping"


class Cause(StrEnum):
    """Root causes that are told apart."""

    OOM_WEIGHTS = "oom_weights"
    OOM_KV_CACHE = "oom_kv_cache"
    OOM_ACTIVATION = "oom_activation"
    OOM_CUDAGRAPH = "oom_cudagraph"
    OOM_RUNTIME = "oom_runtime"
    HOST_OOM = "host_oom"
    GPU_MEMORY_BUSY = "gpu_memory_busy"
    INVALID_CONFIG = "invalid_config"
    UNSUPPORTED_HARDWARE = "unsupported_hardware"
    UNSUPPORTED_MODEL = "unsupported_model"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_CORRUPT = "model_corrupt"
    PORT_IN_USE = "port_in_use"
    STARTUP_TIMEOUT = "startup_timeout"
    ENGINE_HANG = "engine_hang"
    ENGINE_CRASH = "engine_crash"
    DEPENDENCY_ERROR = "dependency_error"
    DRIVER_ERROR = "driver_error"
    NCCL_DISTRIBUTED = "nccl_distributed"
    DISK_FULL = "disk_full"
    PROBES_VOID = "probes_void"
    """Not the engine's doing at all: something else on the machine spoiled every probe."""
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Failure:
    """A diagnosis: ``line`` is the log line that decided it, ``advice`` one sentence for the user."""

    cause: Cause
    kind: FailureKind
    phase: Phase
    line: str
    advice: str
    environment: bool = False
    """True when every other configuration would fail alike, so that the study must stop."""

    def __str__(self) -> str:
        return f"{self.cause} during {self.phase}: {self.line.strip()[:200] or 'nothing in the log'}. {self.advice}"
