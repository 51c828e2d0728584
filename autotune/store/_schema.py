"""The tables. They share a database with Optuna's and never touch those.

Times named ``*_at`` are wall time in UTC; those named ``started`` and ``ended`` are engine seconds.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import JsonValue
from sqlalchemy import JSON, DateTime, ForeignKey, ForeignKeyConstraint, Index, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA_VERSION = 1
"""Raised when the meaning or the layout of a table changes; a newer database is refused."""

Json = dict[str, JsonValue]
"""A JSON object."""


class Base(DeclarativeBase):
    """Own metadata, apart from Optuna's."""

    type_annotation_map = {Json: JSON, datetime: DateTime(timezone=True), str: Text}  # noqa: RUF012 - SQLAlchemy's form


class SchemaRow(Base):
    """One row: the version of the tables."""

    __tablename__ = "autotune_schema"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int]


class StudyRow(Base):
    """One study; Optuna's study has the same name."""

    __tablename__ = "autotune_studies"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    definition: Mapped[Json]
    fingerprints: Mapped[Json]
    engine_kind: Mapped[str]
    engine_version: Mapped[str]
    host: Mapped[str]
    created_at: Mapped[datetime]


class TrialRow(Base):
    """One trial. ``outcome`` is null while it runs, or for ever if the program was killed."""

    __tablename__ = "autotune_trials"

    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    role: Mapped[str]
    arguments: Mapped[Json]
    outcome: Mapped[str | None]
    reason: Mapped[str]
    timings: Mapped[Json]
    document: Mapped[Json]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


def _trial_key() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["study_id", "trial_number"],
        ["autotune_trials.study_id", "autotune_trials.number"],
        ondelete="CASCADE",
    )


class ProbeRow(Base):
    """One finished probe."""

    __tablename__ = "autotune_probes"
    __table_args__ = (_trial_key(),)

    study_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    trial_number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column("probe_index", primary_key=True, autoincrement=False)
    purpose: Mapped[str]
    level: Mapped[Json]
    started: Mapped[float]
    ended: Mapped[float]
    requests: Mapped[int]
    failed: Mapped[int]
    misses: Mapped[Json]
    percentiles: Mapped[Json]
    summary: Mapped[Json]
    telemetry: Mapped[Json]
    verdict: Mapped[str]
    valid: Mapped[bool]
    invalid_reason: Mapped[str]
    recorded_at: Mapped[datetime]


class FailureRow(Base):
    """Why an engine failed."""

    __tablename__ = "autotune_failures"
    __table_args__ = (_trial_key(),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int]
    trial_number: Mapped[int]
    cause: Mapped[str]
    kind: Mapped[str]
    phase: Mapped[str]
    line: Mapped[str]
    advice: Mapped[str]
    arguments: Mapped[Json]
    recorded_at: Mapped[datetime]


class MeasuredRow(Base):
    """What one configuration did once, under everything that decides it; several rows when repeated."""

    __tablename__ = "autotune_measured"
    __table_args__ = (Index("autotune_measured_likeness", "gpu", "engine_kind"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), index=True)
    gpu: Mapped[str] = mapped_column(String(200))
    driver: Mapped[str]
    engine_kind: Mapped[str] = mapped_column(String(50))
    engine_version: Mapped[str]
    model: Mapped[str]
    model_revision: Mapped[str]
    model_family: Mapped[str]
    workload: Mapped[Json]
    slo: Mapped[Json]
    arguments: Mapped[Json]
    outcome: Mapped[str]
    reason: Mapped[str]
    capacity_rps: Mapped[float | None]
    output_tokens_per_s: Mapped[float | None]
    requests: Mapped[int]
    document: Mapped[Json]
    study: Mapped[str]
    trial_number: Mapped[int]
    recorded_at: Mapped[datetime]


class TimeRow(Base):
    """Engine seconds that a study spent in a phase."""

    __tablename__ = "autotune_times"

    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"), primary_key=True)
    phase: Mapped[str] = mapped_column(String(50), primary_key=True)
    seconds: Mapped[float]


class EventRow(Base):
    """Something worth telling later: a resume, a retry, a probe that was thrown away."""

    __tablename__ = "autotune_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    text: Mapped[str]
    detail: Mapped[Json]
    recorded_at: Mapped[datetime]
