"""What the rest of the program asks of an engine, real or simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from autotune.base.clock import Clock
from autotune.engine.failure import Failure
from autotune.spec import Arguments


class EngineKind(StrEnum):
    """Which engine ran; simulated figures are never shown without that word."""

    VLLM = "vllm"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One engine to start. ``folder`` receives ``engine.log``; deadlines are engine seconds."""

    model: str
    """What ``vllm serve`` is given: a folder or a repository id."""
    arguments: Arguments
    folder: Path
    start_deadline: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a started engine says of itself; None where it did not say."""

    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    weights_gib: float | None = None
    graphs_gib: float | None = None
    start_seconds: Mapping[str, float] = field(default_factory=dict)
    """Engine seconds by start-up phase: imports, weights, compile, profile, graphs, total."""
    resolved: Arguments = field(default_factory=dict)
    """Values that unset arguments took, as far as the engine tells (max-num-seqs, ...)."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """How an engine ended: ``seconds`` until no process of it was left and its memory was back."""

    seconds: float
    forced: bool
    """True when SIGKILL was needed."""
    memory_returned: bool | None
    """False when GPU memory stayed taken; None where nobody can tell."""


class EngineStartError(Exception):
    """The engine did not become ready; nothing of it is left running."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(str(failure))


class RunningEngine(Protocol):
    """A ready engine of ours: its process, on its port, serving its model."""

    @property
    def url(self) -> str:
        """Base URL on the loopback interface, without a path."""
        ...

    @property
    def served_model(self) -> str:
        """The name that requests must carry."""
        ...

    @property
    def process_id(self) -> int:
        """Process id of the leader of the engine's session."""
        ...

    @property
    def facts(self) -> EngineFacts:
        """What the engine said while starting."""
        ...

    @property
    def log_path(self) -> Path:
        """The capped log."""
        ...

    def exited(self) -> bool:
        """True once the engine ended without being asked: always a failure, whatever its exit code."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False when the engine refused or cannot."""
        ...

    async def diagnose(self, *, hung: bool = False) -> Failure:
        """Why it ended (or hangs): from its log, its exit code and the phase."""
        ...

    async def stop(self) -> StopReport:
        """End it and every descendant, wait for its GPU memory. Safe to call twice."""
        ...


class Engine(Protocol):
    """A way to start engines for one study."""

    @property
    def kind(self) -> EngineKind:
        """Real or simulated."""
        ...

    @property
    def version(self) -> str:
        """Version of the engine, e.g. ``0.24.0``."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock on which this engine lives."""
        ...

    def check(self, arguments: Arguments) -> list[str]:
        """Reasons why this installation would refuse the arguments; empty when it takes them."""
        ...

    async def start(self, request: LaunchRequest) -> RunningEngine:
        """Start an engine and wait until it is ready.

        Raises:
            EngineStartError: it died, or was not ready in time.
        """
        ...
