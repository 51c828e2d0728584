"""The repository: what was put in comes out, once, and each save is whole."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest
from sqlalchemy.exc import IntegrityError

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.store import Store, StudyRecord
from autotune.store.records import EventRecord, FailureRecord, TrialRecord
from autotune.store.testing import StoreConformance, a_probe, a_study


class TestSqliteFile(StoreConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.address = f"sqlite:///{tmp_path}/new/folder/autotune.db"

    def url(self) -> str:
        return self.address

    def test_the_file_is_set_up_for_a_reader_beside_the_writer(self, tmp_path: Path) -> None:
        with Store.open(self.address) as store:
            store.add_study(a_study())
        connection = sqlite3.connect(tmp_path / "new/folder/autotune.db")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()

    def test_lives_beside_optuna(self) -> None:
        with Store.open(self.address) as store:
            store.add_study(a_study())
            study = optuna.create_study(study_name="t4", storage=self.address)
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
            store.save_trial("t4", TrialRecord(0, {}))
            store.delete_study("t4")
        assert len(optuna.load_study(study_name="t4", storage=self.address).trials) == 3


class TestSqliteInMemory(StoreConformance):
    def url(self) -> str:
        return "sqlite://"


def test_misspelt_study_gets_the_nearest_name() -> None:
    with Store.open("sqlite://") as store:
        with pytest.raises(UsageError, match="holds no studies"):
            store.study("t4-chat")
        store.add_study(a_study("t4-chat"))
        with pytest.raises(UsageError, match="Did you mean t4-chat"):
            store.study("t4-chta")


def test_probe_of_a_trial_that_was_never_saved_is_a_mistake_of_ours() -> None:
    with Store.open("sqlite://") as store:
        store.add_study(a_study())
        with pytest.raises(IntegrityError):
            store.save_probe("t4", a_probe(9, 0))
        with pytest.raises(LookupError):
            store.save_probe("t5", a_probe(0, 0))


def test_a_probe_and_its_times_are_saved_together_or_not_at_all() -> None:
    with Store.open("sqlite://") as store:
        store.add_study(a_study())
        with pytest.raises(IntegrityError):
            store.save_probe("t4", a_probe(9, 0), times={"measure": 5.0}, events=[EventRecord("retry", "again")])
        assert store.times("t4") == {}
        assert store.events("t4") == []


def test_deleting_a_study_takes_all_that_hangs_on_it() -> None:
    with Store.open("sqlite://") as store:
        for name in ("t4", "a10"):
            store.add_study(a_study(name))
            store.save_trial(name, TrialRecord(0, {}))
            store.save_probe(name, a_probe(0, 0), times={"measure": 1.0})
            store.add_failure(name, FailureRecord(0, "oom_runtime", "infeasible", "serving", "CUDA", "Less."))
        store.delete_study("t4")
        store.delete_study("t4")
        assert [study.name for study in store.studies()] == ["a10"]
        assert len(store.probes("a10")) == len(store.failures("a10")) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("autotune.db", "not a database URL"),
        ("sqlite:////proc/no/such.db", "cannot make the folder"),
        ("sqlite:////dev", "unable to open"),
        ("frobnicate://host/db", "no such database"),
    ],
)
def test_a_url_that_cannot_be_opened_is_one_line(url: str, words: str) -> None:
    with pytest.raises(EnvironmentProblemError, match=words) as caught:
        Store.open(url)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough that SQLite reads a header out of it " * 20)
    before = path.read_bytes()
    with pytest.raises(EnvironmentProblemError, match="not a database"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_a_password_is_never_shown() -> None:
    for url in ("postgresql+nosuchdriver://ann:hunter2@db/x", "hunter2 ://"):
        with pytest.raises(EnvironmentProblemError) as caught:
            Store.open(url)
        assert "hunter2" not in str(caught.value)


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    Store.open(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE autotune_schema SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(EnvironmentProblemError, match=r"newer autotune .*version 99"):
        Store.open(f"sqlite:///{path}")


def test_a_full_or_broken_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "autotune.db"
    with Store.open(f"sqlite:///{path}") as store:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE autotune_studies")
        connection.commit()
        connection.close()
        with pytest.raises(EnvironmentProblemError, match="no such table") as caught:
            store.add_study(StudyRecord("x", {}, {}, "vllm", "1"))
        assert "\n" not in str(caught.value)
