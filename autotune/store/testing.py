"""For tests: what a store must do on every database, and records to do it with."""

from __future__ import annotations

import math
from datetime import timedelta

from autotune.spec import Slo, Workload
from autotune.store.records import (
    Circumstances,
    EventRecord,
    FailureRecord,
    MeasuredConfiguration,
    ProbeRecord,
    StudyRecord,
    TrialRecord,
    utc_now,
)
from autotune.store.store import Store


def a_study(name: str = "t4") -> StudyRecord:
    """A study."""
    return StudyRecord(name, {"gpu": "t4", "trials": 20}, {"space": "ab12", "slo": "cd34"}, "vllm", "0.24.0")


def a_probe(trial_number: int, index: int, **changes: object) -> ProbeRecord:
    """A finished probe of ten requests; ``changes`` go into its summary."""
    return ProbeRecord(
        trial_number=trial_number,
        index=index,
        purpose="seek",
        level={"loop": "open", "rate": 1.5},
        started=100.0 * index,
        ended=100.0 * index + 60,
        requests=10,
        failed=1,
        misses={"p99_latency": 2},
        percentiles={"latency": {"50": 1.25, "99": 9.5}},
        summary={"output_tokens_per_s": 150.0, **changes},  # type: ignore[dict-item]
        telemetry={"gpu0.power_w": {"mean": 66.5, "delta": None}},
        verdict="pass",
    )


def some_circumstances(gpu: str = "t4", **changes: str) -> Circumstances:
    """A T4 with Qwen3-4B on vLLM, and what ``changes`` say."""
    fields = {
        "driver": "580.95.05",
        "engine_kind": "vllm",
        "engine_version": "0.24.0",
        "model": "Qwen/Qwen3-4B",
        "model_revision": "1cfa9a7",
        "model_family": "Qwen3ForCausalLM",
    } | changes
    return Circumstances(
        gpu=gpu,
        workload=Workload.model_validate({"input_tokens": 512, "output_tokens": "64:128", "burstiness": math.inf}),
        slo=Slo.from_mapping({"p99_latency": "10s"}),
        load=None,
        **fields,
    )


class StoreConformance:
    """What a store must do. Subclass it as ``TestMyDatabase`` and give the URL of an empty database."""

    def url(self) -> str:
        """URL of a database without our tables, anew for each test."""
        raise NotImplementedError

    def open_with_study(self) -> Store:
        """An open store with one study of one trial."""
        store = Store.open(self.url())
        store.add_study(a_study())
        store.save_trial("t4", TrialRecord(0, {"max-num-seqs": 64, "enforce-eager": True, "kv-cache-dtype": "auto"}))
        return store

    def test_study_comes_back_as_it_was(self) -> None:
        with Store.open(self.url()) as store:
            record = a_study()
            assert store.find_study("t4") is None
            assert store.add_study(record) == record
            assert store.study("t4") == record
            assert store.studies() == [record]

    def test_study_that_is_there_already_is_not_changed(self) -> None:
        with self.open_with_study() as store:
            before = store.study("t4")
            other = StudyRecord("t4", {"gpu": "a10"}, {}, "simulated", "1")
            assert store.add_study(other) == before
            assert store.study("t4") == before

    def test_trial_is_replaced_and_keeps_its_start_and_probes(self) -> None:
        with self.open_with_study() as store:
            store.save_probe("t4", a_probe(0, 0))
            (running,) = store.trials("t4")
            assert running.outcome is None
            ended = TrialRecord(
                0,
                running.arguments,
                outcome="infeasible",
                reason="oom_runtime",
                timings={"start": 30.5},
                document={"capacity_rps": None},
                started_at=running.started_at + timedelta(hours=1),
                finished_at=utc_now(),
            )
            store.save_trial("t4", ended)
            (found,) = store.trials("t4")
            assert found.started_at == running.started_at
            assert (found.outcome, found.reason, found.timings) == ("infeasible", "oom_runtime", {"start": 30.5})
            assert found.finished_at == ended.finished_at
            assert found.arguments == {"max-num-seqs": 64, "enforce-eager": True, "kv-cache-dtype": "auto"}
            assert len(store.probes("t4", 0)) == 1

    def test_probes_come_back_as_they_were_and_in_order(self) -> None:
        with self.open_with_study() as store:
            store.save_trial("t4", TrialRecord(1, {}))
            probes = [a_probe(0, 0), a_probe(0, 1), a_probe(1, 0)]
            for probe in reversed(probes):
                store.save_probe("t4", probe)
            assert store.probes("t4") == probes
            assert store.probes("t4", 0) == probes[:2]

    def test_saving_a_probe_again_counts_its_time_once(self) -> None:
        with self.open_with_study() as store:
            for verdict in ("undecided", "pass"):
                store.save_probe(
                    "t4",
                    ProbeRecord(0, 0, "seek", {}, 0, 1, 1, 0, verdict=verdict),
                    times={"measure": 60.0},
                    events=[EventRecord("note", "once")],
                )
            assert [probe.verdict for probe in store.probes("t4")] == ["pass"]
            assert store.times("t4") == {"measure": 60.0}
            assert len(store.events("t4")) == 1

    def test_times_add_up_over_runs(self) -> None:
        with self.open_with_study() as store:
            store.add_times("t4", {"start": 10.0, "stop": 1.0})
            store.add_times("t4", {"start": 2.5})
            assert store.times("t4") == {"start": 12.5, "stop": 1.0}

    def test_numbers_that_are_not_finite_become_null(self) -> None:
        with self.open_with_study() as store:
            store.save_probe("t4", a_probe(0, 0, margin=math.inf, gap=[math.nan, 1.0]))
            summary = store.probes("t4")[0].summary
            assert summary["margin"] is None
            assert summary["gap"] == [None, 1.0]

    def test_failures_and_events(self) -> None:
        with self.open_with_study() as store:
            failure = FailureRecord(0, "oom_kv_cache", "infeasible", "kv_cache", "ValueError: …", "Less.", {"a": 1})
            event = EventRecord("resume", "The study went on.", {"trials": 3})
            store.add_failure("t4", failure)
            store.add_event("t4", event)
            assert store.failures("t4") == store.failures("t4", 0) == [failure]
            assert store.failures("t4", 1) == []
            assert store.events("t4") == [event]

    def test_measured_configuration_is_found_by_all_that_decides_it(self) -> None:
        with Store.open(self.url()) as store:
            here = some_circumstances()
            measured = MeasuredConfiguration(here, {"max-num-seqs": 8}, "measured", "t4", 3, capacity_rps=0.5)
            store.measured.add(measured)
            assert store.measured.find(here, {"max-num-seqs": 8}) == [measured]
            assert store.measured.find(here, {"max-num-seqs": 9}) == []
            assert store.measured.find(some_circumstances(driver="590.1"), {"max-num-seqs": 8}) == []
            assert store.measured.history(engine_kind="vllm", gpu="t4") == [measured]
            assert store.measured.history(engine_kind="simulated") == []

    def test_opening_twice_shares_the_data(self) -> None:
        url = self.url()
        if url == "sqlite://":
            return
        with Store.open(url) as first, Store.open(url) as second:
            first.add_study(a_study())
            assert second.study("t4") == first.study("t4")
