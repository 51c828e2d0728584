"""How an engine's start-up time divides into phases, read from its log while it is written."""

from __future__ import annotations

import re
from pathlib import Path

from autotune.engine import EngineFacts

#: Log lines of vLLM's V1 engine that mark the end of a start-up phase, or how it was done.
MILESTONES: dict[str, re.Pattern[str]] = {
    "arguments": re.compile(r"non-default args: "),
    "core_init": re.compile(r"Initializing a V1 LLM engine"),
    "weights": re.compile(r"Model loading took "),
    "dynamo": re.compile(r"Dynamo bytecode transform time: "),
    "compile": re.compile(r"torch\.compile (?:and initial profiling/warmup run together )?took [\d.]+ s in total"),
    "cache_hit": re.compile(r"Directly load (?:AOT compilation|the compiled graph)"),
    "kv_memory": re.compile(r"Available KV cache memory: "),
    "kv_tokens": re.compile(r"GPU KV cache size: "),
    "graphs": re.compile(r"Graph capturing finished in "),
    "core_ready": re.compile(r"init engine \(profile, create kv cache, warmup model\) took "),
    "serving": re.compile(r"Starting vLLM .*server"),
}

_PHASES = {
    "imports": "core_init",
    "weights": "weights",
    "compile": "kv_memory",
    "graphs": "graphs",
    "warmup": "core_ready",
}


class LogFollower:
    """Notes when each milestone line first appeared."""

    def __init__(self, log: Path) -> None:
        self.milestones: dict[str, float] = {}
        """Seconds since the launch by milestone."""
        self._log = log
        self._offset = 0
        self._partial = ""

    def look(self, now: float) -> None:
        """Read what is new in the log, ``now`` seconds after the launch."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            fresh = log.read()
        self._offset += len(fresh)
        lines = (self._partial + fresh.decode(errors="replace")).split("\n")
        self._partial = lines.pop()
        for line in lines:
            for name, pattern in MILESTONES.items():
                if name not in self.milestones and pattern.search(line):
                    self.milestones[name] = round(now, 2)


def start_columns(milestones: dict[str, float], ready_s: float, facts: EngineFacts, preload: bool) -> dict[str, object]:
    """The start-up split and memory facts of the row.

    Each phase ends at its milestone: imports (both processes) at core_init, weights, compile (with the memory
    profiling) at kv_memory, graphs, warmup (kernels) at core_ready, rest at ``/health``. No line: an empty column.
    """
    columns: dict[str, object] = {}
    before = 0.0
    for phase, milestone in _PHASES.items():
        end = milestones.get(milestone)
        columns[f"start_{phase}_s"] = "" if end is None else f"{end - before:.1f}"
        before = before if end is None else end
    cached = "warm compile cache" if "cache_hit" in milestones else "cold compile cache"
    mode = cached if "compile" in milestones else "no compilation"
    gib = {"kv_gib": facts.kv_cache_gib, "weights_gib": facts.weights_gib, "graphs_gib": facts.graphs_gib}
    return columns | {
        "start_mode": mode + (", imports done before" if preload else ""),
        "start_rest_s": f"{ready_s - before:.1f}",
        "start_total_s": f"{ready_s:.1f}",
        "kv_tokens": "" if facts.kv_cache_tokens is None else facts.kv_cache_tokens,
        **{name: "" if value is None else f"{value:.2f}" for name, value in gib.items()},
    }
