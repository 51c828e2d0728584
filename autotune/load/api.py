"""What the rest of the program asks of a load generator."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.load.records import RequestRecord
from autotune.spec import LoadLevel, Workload


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server. ``base_url`` without a path, e.g. ``http://127.0.0.1:8000``."""

    base_url: str
    model: str
    vocabulary: int
    """Token ids are drawn below this number."""
    api_key: str | None = field(default=None, repr=False)
    takes_token_ids: bool = True
    """False for a server whose completions endpoint wants text."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load level to run.

    Prompts and arrivals come from ``(seed, stream)`` alone: two engines given the same plan see the same
    requests at the same moments. The run ends after ``max_requests`` requests or ``max_duration`` engine
    seconds of sending (plus the answers still out), or when the observer says so.
    """

    level: LoadLevel
    workload: Workload
    seed: int
    stream: str
    max_requests: int
    max_duration: float
    request_timeout: float
    prompt_stream: str = ""
    """Where token ids come from, if they are to differ from those of a run with equal lengths and arrivals."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A look at a running load. Times are engine seconds on the load's clock."""

    now: float
    started: float
    sent: int
    finished: Sequence[RequestRecord]
    """Every record so far, in order of completion."""
    in_flight: Sequence[float]
    """Scheduled arrivals of the requests still out, in ascending order."""


class LoadObserver(Protocol):
    """Watches a run a few times a second and may end it."""

    def observe(self, progress: LoadProgress) -> bool:
        """Return True to end the run now; requests still out are cancelled, not failed."""
        ...


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """What the load generator cost and whether it kept its schedule."""

    slip_p99: float
    """P99 of sent minus scheduled, engine seconds."""
    loop_lag_max: float
    """Longest time an event loop was not served, wall seconds."""
    cpu_seconds: float
    """CPU time of all client processes during the run."""
    processes: int
    loop_lag_p99: float = 0.0
    """P99 of the event loops' lateness, wall seconds, over samples taken 10 times a second."""

    def problem(self, shortest_limit_s: float, scale: float = 1.0) -> str | None:
        """Why the client spoiled the run; None when it did not.

        It did when its slip or its usual lag is more than 1 % of the shortest objective.

        Args:
            shortest_limit_s: the shortest objective that counts from the arrival, engine seconds.
            scale: engine seconds per wall second of the load's clock.
        """
        allowed = 0.01 * shortest_limit_s
        if self.slip_p99 > allowed:
            return f"the client sent late: P99 slip {self.slip_p99:.3g} s, allowed {allowed:.3g} s"
        if self.loop_lag_p99 * scale > allowed:
            lag = self.loop_lag_p99 * scale
            return f"the client was short of CPU: P99 lag {lag:.3g} s, allowed {allowed:.3g} s"
        return None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A finished run: ``records`` in order of scheduled arrival, cancelled requests included."""

    plan: LoadPlan
    started: float
    ended: float
    records: Sequence[RequestRecord]
    client: ClientHealth
    ended_by_observer: bool
    gaps: array[float] = field(default_factory=lambda: array("f"), repr=False)
    """Spans between consecutive chunks of all answers (inter-chunk latency), engine seconds, pooled."""


class LoadGenerator(Protocol):
    """Sends load to one target. Open it before the first run; close it after the last."""

    async def open(self) -> None:
        """Start the client processes and wait until they are connected."""
        ...

    async def run(self, plan: LoadPlan, observer: LoadObserver | None = None) -> LoadRun:
        """Run one load level to its end. Cancelling the call stops all sending at once."""
        ...

    async def close(self) -> None:
        """End the client processes. Safe to call twice."""
        ...
