"""Turning records into rows and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar, cast

from autotune.store._schema import EventRow, FailureRow, Json, ProbeRow, StudyRow, TrialRow
from autotune.store.records import EventRecord, FailureRecord, ProbeRecord, StudyRecord, TrialRecord

V = TypeVar("V")


def as_json(mapping: Mapping[str, V]) -> Json:
    """A copy as the JSON type of the tables; the engine's serialiser makes what is left JSON."""
    return cast("Json", dict(mapping))


def as_utc(moment: datetime) -> datetime:
    """SQLite forgets time zones; all of ours are UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def study_row(record: StudyRecord) -> StudyRow:
    """A new row."""
    return StudyRow(
        name=record.name,
        definition=as_json(record.definition),
        fingerprints=as_json(record.fingerprints),
        engine_kind=record.engine_kind,
        engine_version=record.engine_version,
        host=record.host,
        created_at=record.created_at,
    )


def study_record(row: StudyRow) -> StudyRecord:
    """The record of a row."""
    return StudyRecord(
        name=row.name,
        definition=row.definition,
        fingerprints={key: str(value) for key, value in row.fingerprints.items()},
        engine_kind=row.engine_kind,
        engine_version=row.engine_version,
        host=row.host,
        created_at=as_utc(row.created_at),
    )


def trial_row(study_id: int, record: TrialRecord) -> TrialRow:
    """A row to merge."""
    return TrialRow(
        study_id=study_id,
        number=record.number,
        role=record.role,
        arguments=as_json(record.arguments),
        outcome=record.outcome,
        reason=record.reason,
        timings=as_json(record.timings),
        document=as_json(record.document),
        started_at=record.started_at,
        finished_at=record.finished_at,
    )


def trial_record(row: TrialRow) -> TrialRecord:
    """The record of a row."""
    return TrialRecord(
        number=row.number,
        arguments=cast("dict[str, bool | int | float | str]", row.arguments),
        role=row.role,
        outcome=row.outcome,
        reason=row.reason,
        timings=cast("dict[str, float]", row.timings),
        document=row.document,
        started_at=as_utc(row.started_at),
        finished_at=None if row.finished_at is None else as_utc(row.finished_at),
    )


def probe_row(study_id: int, record: ProbeRecord) -> ProbeRow:
    """A row to merge."""
    return ProbeRow(
        study_id=study_id,
        trial_number=record.trial_number,
        index=record.index,
        purpose=record.purpose,
        level=as_json(record.level),
        started=record.started,
        ended=record.ended,
        requests=record.requests,
        failed=record.failed,
        misses=as_json(record.misses),
        percentiles=as_json(record.percentiles),
        summary=as_json(record.summary),
        telemetry=as_json(record.telemetry),
        verdict=record.verdict,
        valid=record.valid,
        invalid_reason=record.invalid_reason,
        recorded_at=record.recorded_at,
    )


def probe_record(row: ProbeRow) -> ProbeRecord:
    """The record of a row."""
    return ProbeRecord(
        trial_number=row.trial_number,
        index=row.index,
        purpose=row.purpose,
        level=row.level,
        started=row.started,
        ended=row.ended,
        requests=row.requests,
        failed=row.failed,
        misses=cast("dict[str, int]", row.misses),
        percentiles=row.percentiles,
        summary=row.summary,
        telemetry=row.telemetry,
        verdict=row.verdict,
        valid=row.valid,
        invalid_reason=row.invalid_reason,
        recorded_at=as_utc(row.recorded_at),
    )


def failure_row(study_id: int, record: FailureRecord) -> FailureRow:
    """A new row."""
    return FailureRow(
        study_id=study_id,
        trial_number=record.trial_number,
        cause=record.cause,
        kind=record.kind,
        phase=record.phase,
        line=record.line,
        advice=record.advice,
        arguments=as_json(record.arguments),
        recorded_at=record.recorded_at,
    )


def failure_record(row: FailureRow) -> FailureRecord:
    """The record of a row."""
    return FailureRecord(
        trial_number=row.trial_number,
        cause=row.cause,
        kind=row.kind,
        phase=row.phase,
        line=row.line,
        advice=row.advice,
        arguments=cast("dict[str, bool | int | float | str]", row.arguments),
        recorded_at=as_utc(row.recorded_at),
    )


def event_row(study_id: int, record: EventRecord) -> EventRow:
    """A new row."""
    return EventRow(
        study_id=study_id,
        kind=record.kind,
        text=record.text,
        detail=as_json(record.detail),
        recorded_at=record.recorded_at,
    )


def event_record(row: EventRow) -> EventRecord:
    """The record of a row."""
    return EventRecord(row.kind, row.text, row.detail, as_utc(row.recorded_at))
