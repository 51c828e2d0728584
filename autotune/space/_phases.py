"""The phases of a start and of serving as requirements on memory, linear in the unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from autotune.space._belief import Vector
from autotune.space._demand import Demand


class Unknown(IntEnum):
    """What the memory of an engine hangs on, by its place in the belief's vector."""

    TOTAL = 0
    """GiB of the GPU as CUDA sees it."""
    CONTEXT = 1
    """GiB taken before the engine looks at what is free."""
    WEIGHTS = 2
    """Factor on our estimate of the weights."""
    ACTIVATION = 3
    """Factor on our estimate of the profile run's peak."""
    GRAPHS = 4
    """Factor on our estimate of the CUDA graphs."""
    SET_ASIDE = 5
    """What the engine sets aside for graphs before it captures them, as a factor on the same estimate."""
    OVERHEAD = 6
    """GiB of libraries and workspaces."""
    RUNTIME = 7
    """GiB that only load brings to light."""
    KV = 8
    """Factor on our estimate of a token's KV cache: padding, layers of several kinds."""


#: Unknowns that belong to the GPU rather than to the model.
OF_GPU = (Unknown.TOTAL, Unknown.CONTEXT, Unknown.OVERHEAD, Unknown.RUNTIME)


@dataclass(frozen=True, slots=True)
class Phase:
    """A requirement: ``coefficients . unknowns + constant >= 0``, else the engine fails with ``cause``."""

    cause: str
    coefficients: Vector
    constant: float


def vector(row: dict[Unknown, float]) -> Vector:
    """Coefficients as a vector."""
    values = np.zeros(len(Unknown))
    for unknown, value in row.items():
        values[unknown] = value
    return values


def kv_row(asked: Demand, graphs_counted: bool) -> dict[Unknown, float]:
    """The KV cache that the engine finds (communication buffers come off as a constant)."""
    return {
        Unknown.TOTAL: asked.utilization,
        Unknown.WEIGHTS: -asked.weights,
        Unknown.ACTIVATION: -asked.activation,
        Unknown.SET_ASIDE: -asked.graphs if graphs_counted else 0.0,
        Unknown.OVERHEAD: -1.0,
    }


def phases(asked: Demand, graphs_counted: bool, fragmentation: float) -> list[Phase]:
    """The requirements in the order in which a start meets them.

    ``gpu-memory-utilization`` is a share of the total, compared with what is free at the start. The KV cache is
    what remains of that share after weights, the profile run's peak, overhead and (from vLLM 0.21) an estimate
    of the CUDA graphs; graphs and load must then fit into what is left of the whole GPU.
    """
    free = {Unknown.TOTAL: 1.0, Unknown.CONTEXT: -1.0}
    loaded = {**free, Unknown.WEIGHTS: -asked.weights}
    profiled = {**loaded, Unknown.ACTIVATION: -asked.activation, Unknown.OVERHEAD: -1.0}
    peak = asked.loaded_activation * (1 + fragmentation)
    buffers = asked.communication
    if asked.fixed_kv is None:
        outside = 1.0 - asked.utilization
        busy = [Phase("gpu_memory_busy", vector({Unknown.TOTAL: outside, Unknown.CONTEXT: -1.0}), 0.0)]
        needed = {**kv_row(asked, graphs_counted), Unknown.KV: -asked.needed_kv}
        kv_cache = Phase("oom_kv_cache", vector(needed), -buffers)
        captured = {
            Unknown.TOTAL: outside,
            Unknown.CONTEXT: -1.0,
            Unknown.ACTIVATION: asked.activation,
            Unknown.GRAPHS: -asked.graphs,
            Unknown.SET_ASIDE: asked.graphs if graphs_counted else 0.0,
        }
        beside = 0.0
    else:
        busy = []
        kv_cache = Phase("oom_kv_cache", vector({Unknown.KV: -asked.needed_kv}), asked.fixed_kv)
        captured = {**loaded, Unknown.OVERHEAD: -1.0, Unknown.GRAPHS: -asked.graphs}
        beside = -asked.fixed_kv - buffers
    serving = {
        **captured,
        Unknown.ACTIVATION: captured.get(Unknown.ACTIVATION, 0.0) - peak,
        Unknown.RUNTIME: -1.0,
    }
    return [
        *busy,
        Phase("oom_weights", vector(loaded), -buffers),
        Phase("oom_activation", vector(profiled), -buffers),
        kv_cache,
        Phase("oom_cudagraph", vector(captured), beside),
        Phase("oom_runtime", vector(serving), beside),
    ]
