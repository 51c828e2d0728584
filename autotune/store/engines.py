"""Engines that were started, so that those left behind by a killed program can be found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime

import psutil
from sqlalchemy import select
from sqlalchemy.orm import Session

from autotune.store._database import Database
from autotune.store._identity import host_identity, is_same_process
from autotune.store._rows import as_utc
from autotune.store._schema import EngineProcessRow
from autotune.store.records import utc_now


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """An engine that was started. ``pid`` leads the session ``session``; ``create_time`` is psutil's.

    Its workers can outlive it: whoever ends an orphan looks for the members of its session, too.
    """

    id: int
    pid: int
    create_time: float
    session: int
    port: int | None
    host: str
    tuner_pid: int
    tuner_create_time: float
    study: str
    trial_number: int | None
    started_at: datetime
    ended_at: datetime | None

    def leader_lives(self) -> bool:
        """True while the very process that was started still runs on this machine."""
        return self.host == host_identity() and is_same_process(self.pid, self.create_time)


class EngineLedger:
    """The table of started engines."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def started(
        self,
        pid: int,
        create_time: float,
        *,
        session: int,
        port: int | None = None,
        study: str = "",
        trial_number: int | None = None,
    ) -> int:
        """Note an engine that this process has just started; returns the number to give to ``ended``."""
        tuner = psutil.Process(os.getpid())
        row = {
            "pid": pid,
            "create_time": create_time,
            "session": session,
            "port": port,
            "host": host_identity(),
            "tuner_pid": tuner.pid,
            "tuner_create_time": tuner.create_time(),
            "study": study,
            "trial_number": trial_number,
            "started_at": utc_now(),
        }

        def work(database: Session) -> int:
            added = EngineProcessRow(**row)
            database.add(added)
            database.flush()
            return added.id

        return self._database.write(work)

    def ended(self, number: int) -> None:
        """Note that nothing of an engine is left. Nothing if it was noted before."""

        def work(database: Session) -> None:
            row = database.get(EngineProcessRow, number)
            if row is not None and row.ended_at is None:
                row.ended_at = utc_now()

        self._database.write(work)

    def unended(self) -> list[EngineProcess]:
        """Engines of this machine that were not noted as ended, oldest first."""

        def work(database: Session) -> list[EngineProcess]:
            query = (
                select(EngineProcessRow)
                .where(EngineProcessRow.ended_at.is_(None), EngineProcessRow.host == host_identity())
                .order_by(EngineProcessRow.id)
            )
            return [_record(row) for row in database.scalars(query)]

        return self._database.read(work)

    def orphans(self) -> list[EngineProcess]:
        """Engines not noted as ended whose starter is dead; whether anything of them runs is for the caller to see.

        Rows of other machines, of other containers and of earlier boots are left out.
        """
        return [e for e in self.unended() if not is_same_process(e.tuner_pid, e.tuner_create_time)]


def _record(row: EngineProcessRow) -> EngineProcess:
    return EngineProcess(
        id=row.id,
        pid=row.pid,
        create_time=row.create_time,
        session=row.session,
        port=row.port,
        host=row.host,
        tuner_pid=row.tuner_pid,
        tuner_create_time=row.tuner_create_time,
        study=row.study,
        trial_number=row.trial_number,
        started_at=as_utc(row.started_at),
        ended_at=None if row.ended_at is None else as_utc(row.ended_at),
    )
