from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest

from autotune.base.clock import WallClock
from autotune.engine.api import EngineStartError
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.spec import LengthSpec, LoadLevel, Slo, Workload
from autotune.store.result import Outcome, QualityDocument, Role, TrialDocument
from autotune.trial import TrialOrder, TrialRunner, TrialSetup

WORKLOAD = Workload(input_tokens=LengthSpec.parse(50), output_tokens=LengthSpec.parse(100))
SERVERS, SERVICE, LIMIT = 8, 2.0, 4.0


def true_capacity() -> float:
    """Largest rate of the M/D/8 queue at which at most 1 % wait longer than the limit leaves, by a long simulation."""

    def share(rate: float) -> float:
        rng = random.Random(1)
        free = [0.0] * SERVERS
        at, late, count = 0.0, 0, 200_000
        for _ in range(count):
            at += rng.expovariate(rate)
            begin = max(at, heapq.heappop(free))
            heapq.heappush(free, begin + SERVICE)
            late += begin + SERVICE - at > LIMIT
        return late / count

    low, high = 0.5, SERVERS / SERVICE
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) <= 0.01 else (low, middle)
    return low


def setup(engine, make_generator, load=None, **changes) -> TrialSetup:
    return TrialSetup(
        engine=engine,
        model="m",
        vocabulary=1000,
        workload=WORKLOAD,
        slo=Slo.from_mapping({"p99_latency": f"{LIMIT}s"}),
        load=load,
        seed=0,
        make_generator=make_generator,
        make_devices=lambda running: [],
        **changes,
    )


def order(tmp_path: Path, **changes) -> TrialOrder:
    folder = tmp_path / "0000"
    folder.mkdir(exist_ok=True)
    return TrialOrder(number=0, role=Role.BASELINE, arguments={"max-num-seqs": 8}, folder=folder, **changes)


async def run(
    engine_type, generator_type, running, events, trial, load=None, **generator
) -> tuple[TrialDocument, list]:
    made: list = []

    def make(target):
        made.append(generator_type(target, running, servers=SERVERS, service=SERVICE, **generator))
        return made[-1]

    document = await TrialRunner(setup(engine_type(running), make, load), events).run(trial)
    return document, made


async def test_the_capacity_of_a_queue_is_found(
    engine_type, generator_type, running, events, tmp_path, read_rows
) -> None:
    document, (generator,) = await run(engine_type, generator_type, running, events, order(tmp_path, guess_rate=1.0))
    truth = true_capacity()
    assert document.outcome is Outcome.MEASURED
    # One queue, one seed; the accuracy over many systems is tested where the search lives.
    assert document.capacity_rps == pytest.approx(truth, rel=0.15)
    assert document.output_tokens_per_s == pytest.approx(document.capacity_rps * 100)
    assert document.total_tokens_per_s == pytest.approx(document.capacity_rps * 150)
    assert document.p99_latency_s is not None
    assert document.p99_latency_s <= LIMIT
    assert document.slo_margin is not None
    assert document.slo_margin <= 0
    assert (running.stops, generator.closed) == (1, 1)
    lines = read_rows(tmp_path / "0000" / "requests.csv.gz")
    assert {line.split(",")[0] for line in lines[1:]} == {str(p.index) for p in document.probes}
    assert (tmp_path / "0000" / "telemetry.csv.gz").exists()


async def test_a_configuration_that_cannot_beat_the_incumbent_is_dropped_early(
    engine_type, generator_type, running, events, tmp_path
) -> None:
    full, _ = await run(engine_type, generator_type, running, events, order(tmp_path, guess_rate=1.0))
    trial = TrialOrder(
        number=1,
        role=Role.SEARCH,
        arguments={},
        folder=tmp_path / "0000",
        incumbent_rate=3 * true_capacity(),
        must_resolve=False,
    )
    dropped, _ = await run(engine_type, generator_type, running, events, trial)
    assert dropped.dominated
    assert len(dropped.probes) <= 2
    assert dropped.requests < full.requests / 2


async def test_probes_see_common_prompts_and_confirmation_unseen_ones(
    engine_type, generator_type, running, events, tmp_path
) -> None:
    _, (first,) = await run(engine_type, generator_type, running, events, order(tmp_path, guess_rate=1.0))
    _, (again,) = await run(engine_type, generator_type, running, events, order(tmp_path, guess_rate=1.0))
    confirming = TrialOrder(
        number=2, role=Role.CONFIRMATION, arguments={}, folder=tmp_path / "0000", block=1, guess_rate=1.0
    )
    _, (fresh,) = await run(engine_type, generator_type, running, events, confirming)
    streams = [[p.stream for p in g.plans] for g in (first, again, fresh)]
    assert streams[0] == streams[1]
    assert set(streams[0]) & set(streams[2]) == {"warm-up"}
    assert len(set(streams[0])) == len(streams[0])


async def test_a_fixed_load_is_measured_as_it_is(engine_type, generator_type, running, events, tmp_path) -> None:
    document, (generator,) = await run(
        engine_type, generator_type, running, events, order(tmp_path), load=LoadLevel.closed(SERVERS)
    )
    # Eight users on eight servers: each answer takes exactly the service time.
    assert document.p99_latency_s == pytest.approx(SERVICE)
    assert document.output_tokens_per_s == pytest.approx(SERVERS / SERVICE * 100, rel=0.05)
    assert document.capacity_rps is None
    assert [p.level for p in generator.plans[1:]] == [LoadLevel.closed(SERVERS)]


async def test_a_fixed_load_that_misses_the_objective_counts_nothing(
    engine_type, generator_type, running, events, tmp_path
) -> None:
    document, _ = await run(
        engine_type, generator_type, running, events, order(tmp_path), load=LoadLevel.closed(3 * SERVERS)
    )
    assert document.output_tokens_per_s == 0
    assert document.slo_margin is not None
    assert document.slo_margin > 0


async def test_an_engine_that_does_not_start_is_an_outcome(engine_type, running, events, tmp_path) -> None:
    failure = Failure(
        Cause.OOM_KV_CACHE, FailureKind.INFEASIBLE, Phase.KV_CACHE, "ValueError: To serve", "Lower the length."
    )
    engine = engine_type(running, EngineStartError(failure))
    seen = []
    trial = setup(engine, lambda target: None, on_failure=lambda order, failure: seen.append(failure))
    document = await TrialRunner(trial, events).run(order(tmp_path))
    assert (document.outcome, document.reason) == (Outcome.INFEASIBLE, "oom_kv_cache")
    assert document.advice == "Lower the length."
    assert seen == [failure]


@pytest.mark.parametrize("die_after", [3, 120])
async def test_an_engine_that_dies_under_load_is_stopped_and_named(
    engine_type, generator_type, running, events, tmp_path, die_after
) -> None:
    document, _ = await run(
        engine_type, generator_type, running, events, order(tmp_path, guess_rate=1.0), die_after=die_after
    )
    assert (document.outcome, document.reason) == (Outcome.INFEASIBLE, "oom_runtime")
    assert running.stops == 1


async def test_a_server_that_answers_only_errors_is_a_fault_with_its_words(
    engine_type, generator_type, running, events, tmp_path
) -> None:
    document, _ = await run(engine_type, generator_type, running, events, order(tmp_path), fail_all=True)
    assert document.outcome is Outcome.FAULT
    assert "500: no" in document.detail
    assert running.stops == 1


def test_an_answer_whose_news_is_late_is_not_a_miss(running) -> None:
    """The parent hears of answers later than they come: what looks overdue may have been answered in time."""
    from autotune.load.api import ClientHealth, LoadPlan, LoadProgress, LoadRun
    from autotune.load.records import RequestRecord, TokenSource
    from autotune.stats.probe import ProbeJudge
    from autotune.telemetry import Recorder
    from autotune.trial.watch import ProbeWatch

    records = [
        RequestRecord(i, i / 2, i / 2, i / 2 + 0.1, i / 2 + 3, i / 2 + 3, 50, 100, TokenSource.USAGE, 100)
        for i in range(400)
    ]
    judge = ProbeJudge(Slo.from_mapping({"p99_latency": f"{LIMIT}s"}))
    recorder = Recorder([], clock=WallClock())
    watch = ProbeWatch(judge, running, recorder, hang_after=1e9, report=lambda *_: None, news_delay=10.0)
    for now in (60.0, 120.0, 180.0):
        heard = [r for r in records if r.finished <= now - 9]
        out = [r.scheduled for r in records if r.scheduled <= now and r.finished > now - 9]
        watch.observe(LoadProgress(now, 0.0, len(heard) + len(out), heard, out))
        assert watch.verdict is not None
        assert watch.verdict.misses == 0
    plan = LoadPlan(LoadLevel.open(2.0), WORKLOAD, 0, "s", 400, 1e9, 120.0)
    run = LoadRun(plan, 0.0, 203.0, records, ClientHealth(0.0, 0.0, 0.0, 1), False)
    assert watch.conclude(run).misses == 0


class Asked:
    """A quality check that remembers whom it was asked about, and may see the engine die."""

    def __init__(self, running, *, dies: bool = False) -> None:
        self.running = running
        self.dies = dies
        self.orders: list[TrialOrder] = []

    async def examine(self, trial: TrialOrder, running) -> QualityDocument:
        self.orders.append(trial)
        self.running.dead = self.dies
        return QualityDocument(prompts=64, passed=True)


@pytest.mark.parametrize(
    ("service", "is_reference", "asked"), [(SERVICE, False, True), (3 * LIMIT, False, False), (3 * LIMIT, True, True)]
)
async def test_the_output_is_checked_where_the_objective_held_and_of_the_reference_in_any_case(
    engine_type, generator_type, running, events, tmp_path, service, is_reference, asked
) -> None:
    check = Asked(running)
    made = setup(
        engine_type(running),
        lambda target: generator_type(target, running, servers=SERVERS, service=service),
        LoadLevel.closed(SERVERS),
        quality=check,
    )
    trial = order(tmp_path, is_reference=is_reference)
    document = await TrialRunner(made, events).run(trial)
    assert check.orders == ([trial] if asked else [])
    assert (document.quality is not None) is asked
    assert bool(document.output_tokens_per_s) is (service < LIMIT)


async def test_a_deciding_line_that_is_cut_shows_it(engine_type, running, events, tmp_path) -> None:
    failure = Failure(Cause.OOM_KV_CACHE, FailureKind.INFEASIBLE, Phase.KV_CACHE, "ValueError: " + "long " * 100, "")
    trial = setup(engine_type(running, EngineStartError(failure)), lambda target: None)
    document = await TrialRunner(trial, events).run(order(tmp_path))
    assert len(document.detail) == 300
    assert document.detail.endswith("...")


async def test_an_engine_that_dies_of_the_check_is_a_failure(
    engine_type, generator_type, running, events, tmp_path
) -> None:
    made = setup(
        engine_type(running),
        lambda target: generator_type(target, running, servers=SERVERS, service=SERVICE),
        LoadLevel.closed(SERVERS),
        quality=Asked(running, dies=True),
    )
    document = await TrialRunner(made, events).run(order(tmp_path))
    assert (document.outcome, document.reason) == (Outcome.INFEASIBLE, "oom_runtime")
    assert document.quality is None
