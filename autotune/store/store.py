"""The repository: what the rest of the program asks of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.store import _rows
from autotune.store._database import Database
from autotune.store._schema import EventRow, FailureRow, ProbeRow, StudyRow, TimeRow, TrialRow
from autotune.store.measured import MeasuredConfigurations
from autotune.store.records import EventRecord, FailureRecord, ProbeRecord, StudyRecord, TrialRecord


class Store:
    """Studies with their trials, probes, failures, times and events; configurations measured.

    Each call is one transaction, on disk before it returns. While another process holds a lock the call waits
    and tries again, for minutes if need be. Calls block; they may come from several threads. A trial or probe
    that is saved again replaces its earlier version, so a save that was cut off can be repeated.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.measured = MeasuredConfigurations(database)

    @classmethod
    def open(cls, url: str, *, patience_s: float = 600.0) -> Store:
        """Open a database by its SQLAlchemy URL and make the tables if they are not there.

        For SQLite the file and its parent folder are made. ``patience_s`` is how many wall seconds a call waits
        for other processes' locks.

        Raises:
            EnvironmentProblemError: the URL cannot be read, the database not opened, or its tables are newer.
        """
        return cls(Database(url, patience_s))

    @property
    def url(self) -> str:
        """Where the data is, for messages: the password is hidden."""
        return self._database.shown

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_study(self, record: StudyRecord) -> StudyRecord:
        """Add a study, or return the one of this name that is already there, unchanged."""

        def work(session: Session) -> StudyRecord:
            row = session.scalar(select(StudyRow).where(StudyRow.name == record.name))
            if row is None:
                row = _rows.study_row(record)
                session.add(row)
                session.flush()
            return _rows.study_record(row)

        return self._database.write(work)

    def studies(self) -> list[StudyRecord]:
        """All studies, oldest first."""
        return self._database.read(
            lambda session: [_rows.study_record(row) for row in session.scalars(select(StudyRow).order_by(StudyRow.id))]
        )

    def find_study(self, name: str) -> StudyRecord | None:
        """The study of this name, if there is one."""

        def work(session: Session) -> StudyRecord | None:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            return None if row is None else _rows.study_record(row)

        return self._database.read(work)

    def study(self, name: str) -> StudyRecord:
        """The study of this name.

        Raises:
            UsageError: there is none.
        """
        found = self.find_study(name)
        if found is None:
            names = [study.name for study in self.studies()]
            remedy = did_you_mean(name, names) if names else "It holds no studies yet."
            raise UsageError(f"study '{name}' is not in {self.url}.", remedy)
        return found

    def delete_study(self, name: str) -> None:
        """Remove a study with all that hangs on it; measured configurations stay. Nothing if it is not there."""

        def work(session: Session) -> None:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            if row is not None:
                session.delete(row)

        self._database.write(work)

    def save_trial(self, study: str, trial: TrialRecord) -> None:
        """Add a trial, or replace what is known of it; its probes stay."""

        def work(session: Session) -> None:
            row = _rows.trial_row(_id(session, study), trial)
            known = session.get(TrialRow, (row.study_id, row.number))
            if known is not None:
                row.started_at = known.started_at
            session.merge(row)

        self._database.write(work)

    def trials(self, study: str) -> list[TrialRecord]:
        """The study's trials by number."""

        def work(session: Session) -> list[TrialRecord]:
            query = select(TrialRow).where(TrialRow.study_id == _id(session, study)).order_by(TrialRow.number)
            return [_rows.trial_record(row) for row in session.scalars(query)]

        return self._database.read(work)

    def save_probe(
        self,
        study: str,
        probe: ProbeRecord,
        *,
        times: Mapping[str, float] | None = None,
        events: Sequence[EventRecord] = (),
    ) -> None:
        """Keep a finished probe, with the engine seconds by phase and the events since the last one.

        All in one transaction: either everything is there or nothing. When the probe was saved before, times and
        events are not counted again. The trial must have been saved before.
        """

        def work(session: Session) -> None:
            study_id = _id(session, study)
            is_new = session.get(ProbeRow, (study_id, probe.trial_number, probe.index)) is None
            session.merge(_rows.probe_row(study_id, probe))
            if is_new:
                _add_times(session, study_id, times or {})
                session.add_all(_rows.event_row(study_id, event) for event in events)

        self._database.write(work)

    def probes(self, study: str, trial_number: int | None = None) -> list[ProbeRecord]:
        """The probes of a trial, or of all trials, in order."""

        def work(session: Session) -> list[ProbeRecord]:
            query = select(ProbeRow).where(ProbeRow.study_id == _id(session, study))
            if trial_number is not None:
                query = query.where(ProbeRow.trial_number == trial_number)
            query = query.order_by(ProbeRow.trial_number, ProbeRow.index)
            return [_rows.probe_record(row) for row in session.scalars(query)]

        return self._database.read(work)

    def add_failure(self, study: str, failure: FailureRecord) -> None:
        """Keep why an engine failed. The trial must have been saved before."""
        self._database.write(lambda session: session.add(_rows.failure_row(_id(session, study), failure)))

    def failures(self, study: str, trial_number: int | None = None) -> list[FailureRecord]:
        """The failures of a trial, or of all trials, oldest first."""

        def work(session: Session) -> list[FailureRecord]:
            query = select(FailureRow).where(FailureRow.study_id == _id(session, study)).order_by(FailureRow.id)
            if trial_number is not None:
                query = query.where(FailureRow.trial_number == trial_number)
            return [_rows.failure_record(row) for row in session.scalars(query)]

        return self._database.read(work)

    def add_times(self, study: str, seconds_by_phase: Mapping[str, float]) -> None:
        """Add engine seconds to the study's account, by phase: start, warm_up, measure, stop, other."""
        self._database.write(lambda session: _add_times(session, _id(session, study), seconds_by_phase))

    def times(self, study: str) -> dict[str, float]:
        """Engine seconds that the study spent so far, by phase, over all its runs."""

        def work(session: Session) -> dict[str, float]:
            query = select(TimeRow).where(TimeRow.study_id == _id(session, study)).order_by(TimeRow.phase)
            return {row.phase: row.seconds for row in session.scalars(query)}

        return self._database.read(work)

    def add_event(self, study: str, event: EventRecord) -> None:
        """Keep something worth telling later."""
        self._database.write(lambda session: session.add(_rows.event_row(_id(session, study), event)))

    def events(self, study: str) -> list[EventRecord]:
        """The study's events, oldest first."""

        def work(session: Session) -> list[EventRecord]:
            query = select(EventRow).where(EventRow.study_id == _id(session, study)).order_by(EventRow.id)
            return [_rows.event_record(row) for row in session.scalars(query)]

        return self._database.read(work)


def _id(session: Session, study: str) -> int:
    found = session.scalar(select(StudyRow.id).where(StudyRow.name == study))
    if found is None:
        raise LookupError(f"study '{study}' was never added to the store")
    return found


def _add_times(session: Session, study_id: int, seconds_by_phase: Mapping[str, float]) -> None:
    for phase, seconds in seconds_by_phase.items():
        row = session.get(TimeRow, (study_id, phase), with_for_update=True)
        if row is None:
            session.add(TimeRow(study_id=study_id, phase=phase, seconds=seconds))
        else:
            row.seconds += seconds
