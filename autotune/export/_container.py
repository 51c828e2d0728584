"""What the container formats share: where the model lies, how long a start may take, how much shared memory."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath

from autotune.export.configuration import Configuration

_LEAST_START_S = 600.0
"""A first start loads weights, compiles and captures graphs: vLLM itself waits this long for its engine."""
_START_MARGIN = 3.0
_SHARED_MEMORY_GIB = 2
_SHARED_MEMORY_PER_GPU_GIB = 8
"""Ranks of tensor parallelism exchange data through shared memory."""


def container_model(configuration: Configuration) -> str:
    """The model as the engine in the container names it: a local folder is mounted below ``/models``."""
    if configuration.local_model:
        return f"/models/{PurePosixPath(configuration.model).name or 'model'}"
    return configuration.model


def start_allowance_s(configuration: Configuration) -> int:
    """Seconds that a start may take before it counts as failed: thrice what was measured, 10 minutes at least."""
    measured = configuration.provenance.start_s or 0.0
    return math.ceil(max(_LEAST_START_S, _START_MARGIN * measured) / 10) * 10


def shared_memory_gib(configuration: Configuration) -> int:
    """Size of ``/dev/shm``."""
    return _SHARED_MEMORY_GIB if configuration.gpus == 1 else _SHARED_MEMORY_PER_GPU_GIB * configuration.gpus


def resource_name(configuration: Configuration) -> str:
    """A DNS label made of the model's name, e.g. ``llm-qwen3-4b``.

    It must not be ``vllm``: Kubernetes would set ``VLLM_PORT`` for a service of that name, which vLLM reads.
    """
    last = re.split(r"[/\\]", configuration.provenance.model.rstrip("/\\"))[-1]
    label = re.sub(r"[^a-z0-9]+", "-", last.casefold()).strip("-")
    return f"llm-{label or 'model'}"[:50].rstrip("-")
