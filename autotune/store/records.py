"""What goes into the store and comes out: plain frozen records, detached from any session."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import JsonValue

from autotune.spec import Arguments, LoadLevel, Slo, Workload

JsonObject = Mapping[str, JsonValue]
"""A JSON object. Numbers that are not finite are stored as null."""


def utc_now() -> datetime:
    """The moment, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """A study. ``fingerprints`` name what must not change between runs: space, workload, slo, model, gpu."""

    name: str
    definition: JsonObject
    fingerprints: Mapping[str, str]
    engine_kind: str
    engine_version: str
    host: str = field(default_factory=platform.node)
    created_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial. ``outcome`` None: it began and was not seen to end. ``timings`` are engine seconds by phase."""

    number: int
    arguments: Arguments
    role: str = "search"
    outcome: str | None = None
    reason: str = ""
    timings: Mapping[str, float] = field(default_factory=dict)
    document: JsonObject = field(default_factory=dict)
    started_at: datetime = field(default_factory=utc_now)
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """A finished probe. ``started`` and ``ended`` are engine seconds.

    ``misses`` counts requests per SLO target (``{"p99_latency": 3}``), ``percentiles`` are seconds
    (``{"latency": {"50": 1.2, "99": 8.1}}``), ``telemetry`` is a summary by column.
    """

    trial_number: int
    index: int
    purpose: str
    level: JsonObject
    started: float
    ended: float
    requests: int
    failed: int
    misses: Mapping[str, int] = field(default_factory=dict)
    percentiles: JsonObject = field(default_factory=dict)
    summary: JsonObject = field(default_factory=dict)
    telemetry: JsonObject = field(default_factory=dict)
    verdict: str = ""
    valid: bool = True
    invalid_reason: str = ""
    recorded_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Why an engine of a trial failed; ``cause``, ``kind`` and ``phase`` are the engine room's words."""

    trial_number: int
    cause: str
    kind: str
    phase: str
    line: str
    advice: str
    arguments: Arguments = field(default_factory=dict)
    recorded_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something worth telling later."""

    kind: str
    text: str
    detail: JsonObject = field(default_factory=dict)
    recorded_at: datetime = field(default_factory=utc_now)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that decides what a configuration does, apart from its arguments.

    ``model_revision`` is a commit or a digest of the weights' files, empty when unknown; ``model_family`` is the
    architecture. ``driver`` is empty on engines without a GPU, except that on a CPU it names the host; on the
    simulated engine ``engine_version`` must name the version of its physics. ``load`` None: the capacity was sought.
    ``aim`` says what else decided which figures were taken, empty for capacity and throughput.
    """

    gpu: str
    driver: str
    engine_kind: str
    engine_version: str
    model: str
    model_revision: str
    model_family: str
    workload: Workload
    slo: Slo
    load: LoadLevel | None = None
    aim: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredConfiguration:
    """What a configuration did once. ``document`` holds whatever a later study needs to reuse it."""

    circumstances: Circumstances
    arguments: Arguments
    outcome: str
    study: str
    trial_number: int
    reason: str = ""
    capacity_rps: float | None = None
    output_tokens_per_s: float | None = None
    requests: int = 0
    document: JsonObject = field(default_factory=dict)
    recorded_at: datetime = field(default_factory=utc_now)
