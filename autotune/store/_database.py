"""Opening a database, and transactions that outlast other processes' locks."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from autotune.base.errors import EnvironmentProblemError
from autotune.store._schema import SCHEMA_VERSION, Base, SchemaRow

T = TypeVar("T")

BUSY_TIMEOUT_S = 60.0
"""How long SQLite itself waits for another writer, wall seconds."""

_WRITES = "autotune_writes"
_ONLY_ROW = 1
_RACES = 2
"""Collisions of two processes' inserts that are tried again; a third is a mistake of ours."""
_OPENING_PATIENCE_S = 120.0


class Database:
    """One database with our tables in it.

    Args:
        url: a SQLAlchemy URL.
        patience_s: wall seconds for which a transaction is tried again while another process holds a lock. A
            finished probe is worth a long wait.
    """

    def __init__(self, url: str, patience_s: float = 600.0) -> None:
        self._patience = patience_s
        self._url = _read_url(url)
        self.shown = self._url.render_as_string(hide_password=True)
        self._is_prepared = False
        self._engine = self._connect()
        self._writer = self._engine.execution_options(**{_WRITES: True})
        try:
            self._prepare()
        except EnvironmentProblemError:
            self._engine.dispose()
            raise
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise _cannot_open(self.shown, _first_line(error)) from error

    def write(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in one transaction; its result is on disk before this returns.

        ``work`` may be called again when a lock, a deadlock or a race with another process undid its first try,
        so it must do nothing but talk to the session.

        Raises:
            EnvironmentProblemError: the database stayed locked or unreachable for the whole patience, or is broken.
        """
        return self._attempt(work, self._writer, self._patience)

    def read(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` in one transaction that does not write."""
        return self._attempt(work, self._engine, self._patience)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _attempt(self, work: Callable[[Session], T], engine: Engine, patience: float) -> T:
        deadline = time.monotonic() + patience
        pause = 0.05
        races = 0
        while True:
            try:
                with Session(engine, expire_on_commit=False) as session, session.begin():
                    return work(session)
            except IntegrityError:
                races += 1
                if races > _RACES:
                    raise
            except DatabaseError as error:
                if isinstance(error, ProgrammingError):
                    raise
                if not self._is_passing(error):
                    raise self._broken(error) from error
                if time.monotonic() + pause > deadline:
                    raise self._still_locked(error, patience) from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2.0, pause * 2)

    def _is_passing(self, error: DatabaseError) -> bool:
        """True for what another process causes, or a server's restart, and time heals."""
        if self._url.get_backend_name() != "sqlite":
            return isinstance(error, OperationalError) and self._is_prepared
        # SQLITE_BUSY and SQLITE_LOCKED.
        return any(text in str(error.orig) for text in ("database is locked", "table is locked"))

    def _still_locked(self, error: DatabaseError, patience: float) -> EnvironmentProblemError:
        return EnvironmentProblemError(
            f"storage {self.shown}: out of reach for {patience:.0f} s ({_first_line(error)}).",
            "End what locks it (for a file, fuser shows it) and run the same command again: what was finished is kept.",
        )

    def _broken(self, error: DatabaseError) -> EnvironmentProblemError:
        if not self._is_prepared:
            return _cannot_open(self.shown, _first_line(error))
        return EnvironmentProblemError(
            f"storage {self.shown}: {_first_line(error)}.",
            "Free disk space or repair the database, then run the same command again: what was finished is kept.",
        )

    def _connect(self) -> Engine:
        if self._url.get_backend_name() != "sqlite":
            return self._create_engine({})
        if _is_in_memory(self._url):
            engine = self._create_engine({"check_same_thread": False}, in_memory=True)
        else:
            _make_parent_folder(self._url, self.shown)
            engine = self._create_engine({"timeout": BUSY_TIMEOUT_S, "check_same_thread": False})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _create_engine(self, arguments: dict[str, object], *, in_memory: bool = False) -> Engine:
        try:
            return create_engine(
                self._url,
                connect_args=arguments,
                pool_pre_ping=self._url.get_backend_name() != "sqlite",
                poolclass=StaticPool if in_memory else None,
                json_serializer=_to_json,
            )
        except NoSuchModuleError as error:
            raise _cannot_open(self.shown, "SQLAlchemy knows no such database") from error
        except ModuleNotFoundError as error:
            raise EnvironmentProblemError(
                f"storage {self.shown}: the driver module {error.name} is not installed.",
                "Install it, e.g. pip install 'vllm-autotune[postgres]'.",
            ) from error
        except (ArgumentError, TypeError) as error:
            raise _cannot_open(self.shown, _first_line(error)) from error

    def _prepare(self) -> None:
        """Make the tables, or check that those there are ours to use; two processes may do this at once."""
        tries = _RACES
        while True:
            try:
                version = self._attempt(_create_tables, self._writer, min(self._patience, _OPENING_PATIENCE_S))
                break
            except (IntegrityError, ProgrammingError):
                # On a server two creators collide; the second finds the tables made.
                tries -= 1
                if tries < 0:
                    raise
        if version > SCHEMA_VERSION:
            raise EnvironmentProblemError(
                f"storage {self.shown}: it was written by a newer autotune (its tables have version {version}, "
                f"this one knows {SCHEMA_VERSION}).",
                "Upgrade autotune, or choose another database with --storage.",
            )
        self._is_prepared = True


def _create_tables(session: Session) -> int:
    connection = session.connection()
    Base.metadata.create_all(connection)
    version: int | None = session.scalar(select(SchemaRow.version))
    if version is not None:
        return version
    session.add(SchemaRow(id=_ONLY_ROW, version=SCHEMA_VERSION))
    return SCHEMA_VERSION


def _read_url(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:
        # The text itself is not repeated: it may hold a password.
        raise EnvironmentProblemError(
            "storage: this is not a database URL.", "Write e.g. sqlite:///studies/autotune.db."
        ) from error


def _is_in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:") or url.query.get("mode") == "memory"


def _make_parent_folder(url: URL, shown: str) -> None:
    parent = Path(str(url.database)).parent
    if str(url.database).startswith("file:"):
        return
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_open(shown, f"cannot make the folder {parent}: {error.strerror}") from error


def _set_up_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # The driver must not begin transactions of its own: _begin_sqlite chooses how.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA journal_mode")
    row = cursor.fetchone()
    if row is not None and row[0] == "delete":
        _switch_to_wal(cursor.execute)
    cursor.close()


def _switch_to_wal(execute: Callable[[str], object]) -> None:
    """Readers (a dashboard) and the writer then do not block each other; some file systems cannot."""
    try:
        execute("PRAGMA journal_mode = WAL")
    except Exception as error:
        if "locked" not in str(error):
            raise


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once: a reader that turns writer later fails without waiting for the lock."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _to_json(value: object) -> str:
    return json.dumps(_finite(value), allow_nan=False, default=str)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _first_line(error: BaseException) -> str:
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(original).strip().splitlines() or [type(original).__name__])[0].rstrip(".")


def _cannot_open(shown: str, why: str) -> EnvironmentProblemError:
    return EnvironmentProblemError(
        f"storage {shown}: cannot be opened ({why}).", "Name another database with --storage, or repair this one."
    )
