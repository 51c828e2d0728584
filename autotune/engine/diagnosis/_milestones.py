"""How far an engine had come, from what it says while it starts, serves and stops."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.engine.diagnosis._lines import Level, Line
from autotune.engine.failure import Phase

_MARKS: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (
            Phase.CONFIG,
            r"vLLM API server version|Initializing an? (?:V\d )?LLM engine|Using max model len|Resolved architecture"
            r"|non-default args|Automatically detected platform|This model supports multiple tasks"
            r"|No platform detected",
        ),
        (
            Phase.LOAD_WEIGHTS,
            r"Starting to load model|Loading \w+ checkpoint shards|Loading weights took|Loading model from scratch"
            r"|Time spent downloading weights|Using model weights format|\S+\.(?:safetensors|bin|gguf): +\d+%",
        ),
        (
            Phase.PROFILE,
            r"Model loading took|Loading model weights took|Using cache directory: .* for vLLM's torch\.compile"
            r"|Dynamo bytecode transform|Compiling a graph for|Directly load the compiled graph"
            r"|torch\.compile t(?:akes|ook)"
            r"|Memory profiling|Encoder cache will be initialized",
        ),
        (Phase.KV_CACHE, r"Available KV cache memory|GPU KV cache size|CPU KV cache size|# (?:GPU|CPU|cuda) blocks"),
        (
            Phase.CUDA_GRAPHS,
            r"Capturing (?:the model for CUDA graphs|cudagraphs|CUDA graph)",
        ),
        (
            Phase.WARM_UP,
            r"Graph capturing finished|init engine \(profile|num_gpu_blocks is|Warming up|Supported_?tasks"
            r"|Autotuning process|Engine 000: vllm cache_config_info",
        ),
        (
            Phase.SERVING,
            r"Application startup complete|Starting vLLM (?:API )?server|Uvicorn running on|Avg prompt throughput"
            r'|\S+ - "(?:POST|GET) /(?:v1|health)\S* HTTP/',
        ),
        (
            Phase.STOPPING,
            r"Shutting down|Received (?:signal|SIG)|Application shutdown complete|Finished server process"
            r"|Waiting for application shutdown|\[launcher\] .*\bSIG(?:TERM|INT|KILL)\b",
        ),
    )
)
_READY = re.compile(r"Application startup complete|Uvicorn running on")


@dataclass(frozen=True, slots=True)
class Milestones:
    """The phases of a log in the order in which they were reached."""

    numbers: Sequence[int]
    phases: Sequence[Phase]
    ready_number: int | None
    """Line that said the server was up, or None."""
    stopping_number: int | None
    """First line of an orderly shutdown, or None."""

    def phase_at(self, number: int) -> Phase:
        """The phase that the last milestone before a line announced."""
        index = bisect_right(self.numbers, number) - 1
        while index >= 0 and self.phases[index] is Phase.STOPPING:
            index -= 1
        return self.phases[index] if index >= 0 else Phase.LAUNCH

    @property
    def last_phase(self) -> Phase:
        """How far the engine came, a shutdown left aside."""
        return self.phase_at(self.numbers[-1]) if self.numbers else Phase.LAUNCH

    def reached(self, phase: Phase) -> bool:
        """Whether a phase was announced anywhere."""
        return phase in self.phases


def read_milestones(lines: Sequence[Line]) -> Milestones:
    """Find the milestones among lines that are no errors."""
    numbers: list[int] = []
    phases: list[Phase] = []
    ready: int | None = None
    stopping: int | None = None
    for line in lines:
        if line.level >= Level.WARNING:
            continue
        text = line.text.strip()
        for phase, pattern in _MARKS:
            if pattern.match(text):
                numbers.append(line.number)
                phases.append(phase)
                if phase is Phase.STOPPING and stopping is None:
                    stopping = line.number
                break
        if _READY.match(text):
            ready = line.number
    return Milestones(numbers, phases, ready, stopping)
