"""Several workloads at once: how their figures become one score, what a trial is asked, and the verdict."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from autotune.base.errors import UsageError
from autotune.search.confirmation import confirmation_rounds
from autotune.search.mix import combined, in_rounds, with_relative
from autotune.search.objective import aim_of
from autotune.search.verdict import conclude, deserves_another_round
from autotune.spec import Combine, LengthSpec, LoadLevel, Objective, Slo, StudySpec, Workload, WorkloadShare
from autotune.store.result import Decision, Outcome, Role, TrialDocument, WorkloadFigures
from autotune.trial import TrialOrder

CHAT = Workload(name="chat", input_tokens=LengthSpec.parse(512), output_tokens=LengthSpec.parse(256))
RAG = Workload(name="rag", input_tokens=LengthSpec.parse(4000), output_tokens=LengthSpec.parse(100))
USUAL = {"chat": 2.0, "rag": 0.5}
"""Capacities of the default, req/s."""


def spec(combine: Combine = Combine.WORST, chat: float = 1.0, **asked: object) -> StudySpec:
    return StudySpec(
        name="s", gpu="t4", model="qwen3-4b", workload=CHAT, slo=Slo.from_mapping({"p99_latency": "10s"}),
        mix=(WorkloadShare(workload=CHAT, weight=chat), WorkloadShare(workload=RAG)), combine=combine, **asked,
    )  # fmt: skip


def parts(chat: float | None, rag: float | None) -> list[WorkloadFigures]:
    given = {"chat": chat, "rag": rag}
    return [
        WorkloadFigures(workload=name, capacity_rps=rate, output_tokens_per_s=100 * rate, target_latency_s=1 / rate)
        for name, rate in given.items()
        if rate is not None
    ]


def trial(chat: float, rag: float | None, number: int = 1, role: Role = Role.SEARCH) -> TrialDocument:
    return TrialDocument(
        number=number, role=role, label="vllm-default" if role is Role.BASELINE else "", arguments={},
        outcome=Outcome.MEASURED, output_tokens_per_s=100 * chat, capacity_rps=chat, workloads=parts(chat, rag),
    )  # fmt: skip


REFERENCE = trial(USUAL["chat"], USUAL["rag"], 0, Role.BASELINE)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (spec(), 0.9),
        (spec(Combine.WEIGHTED), math.sqrt(1.2 * 0.9)),
        (spec(Combine.WEIGHTED, chat=3.0), (1.2**3 * 0.9) ** 0.25),
        (spec(Combine.WEIGHTED, objective=Objective.LATENCY, load=LoadLevel.open(1.0)), math.sqrt(1.2 * 0.9)),
    ],
)
def test_the_score_combines_the_ratios_to_the_default(study: StudySpec, expected: float) -> None:
    found = with_relative(trial(1.2 * USUAL["chat"], 0.9 * USUAL["rag"]), REFERENCE, study, aim_of(study))
    assert found.relative == pytest.approx(expected)
    assert aim_of(study).score.of(found) == found.relative


def test_equal_ratios_combine_to_themselves_and_a_missed_workload_to_nothing() -> None:
    for combine in Combine:
        assert combined([(1.3, 1.0), (1.3, 5.0)], combine) == pytest.approx(1.3)
        assert combined([(1.3, 1.0), (0.0, 5.0)], combine) == 0.0
    missed = trial(3.0, 1.0).model_copy(update={"output_tokens_per_s": 0.0})
    assert with_relative(missed, REFERENCE, spec(), aim_of(spec())).relative is None


def test_one_workload_is_not_relative_to_anything() -> None:
    alone = StudySpec(name="s", gpu="t4", model="qwen3-4b", workload=CHAT, slo=Slo.from_mapping({"p99_latency": "10s"}))
    assert with_relative(trial(1.0, None), REFERENCE, alone, aim_of(alone)).relative is None
    assert alone.workloads == (CHAT,)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"mix": (WorkloadShare(workload=CHAT), WorkloadShare(workload=CHAT))}, "same name"),
        ({"objective": Objective.PARETO}, "front"),
        ({"mix": (WorkloadShare(workload=CHAT, weight=2.0), WorkloadShare(workload=RAG))}, "combine: weighted"),
    ],
)
def test_mixes_that_cannot_be_are_refused(asked: dict[str, object], named: str) -> None:
    base = spec().model_dump(exclude={"objective"})
    with pytest.raises(UsageError, match=named):
        StudySpec.model_validate(base | asked)


def test_the_longest_workload_decides_the_context() -> None:
    assert spec().longest_workload == RAG
    assert spec().workload == CHAT


def table(best_seqs: int, drift: float = 0.0):
    """Capacities relative to the default: chat gains most with few sequences, rag less; rounds drift alike."""

    def answer(order: TrialOrder) -> dict[str, object]:
        seqs = int(order.arguments.get("max-num-seqs", 256))
        shift = 1 + drift * (order.block or 0)
        fit = 1 - abs(math.log2(seqs / best_seqs)) / 16
        rates = {"chat": shift * USUAL["chat"] * fit**2, "rag": shift * USUAL["rag"] * fit}
        return {
            "output_tokens_per_s": 100 * rates["chat"],
            "capacity_rps": rates["chat"],
            "workloads": parts(rates["chat"], rates["rag"]),
        }

    return answer


async def test_the_worst_workload_decides_and_drift_of_the_rounds_cancels(bench, executor) -> None:
    bench.asked = {"mix": spec().mix}
    bench.workload = CHAT
    result = await bench.run(executor(table(16, drift=0.3))).run()
    default = 1 - math.log2(256 / 16) / 16
    seqs = int(result.best.arguments["max-num-seqs"])
    fit = 1 - abs(math.log2(seqs / 16)) / 16
    # The gain of rag is the smaller one: the root of that of chat.
    assert result.verdict.decision is Decision.TUNED
    assert result.verdict.gain_percent == pytest.approx(100 * (fit / default - 1))
    low, high = result.verdict.interval_95
    assert high - low < 0.1
    assert result.best.relative == pytest.approx(fit / default)
    assert {part.workload for part in result.best.workloads} == {"chat", "rag"}
    assert "worst of the workloads +" in result.verdict.text


async def test_each_workload_has_its_own_rate_to_beat(bench, executor) -> None:
    bench.asked = {"mix": spec().mix}
    bench.workload = CHAT
    ran = executor(table(16))
    result = await bench.run(ran).run()
    proposals = [order for order in ran.orders if order.role is Role.SEARCH]
    best = max(t.relative for t in result.trials if t.number < proposals[-1].number and t.role is not Role.CONFIRMATION)
    default = 1 - math.log2(256 / 16) / 16
    asked = proposals[-1].of("rag")
    assert asked.incumbent_rate == pytest.approx(best * USUAL["rag"] * default)
    assert asked.guess_rate != proposals[-1].of("chat").guess_rate
    assert all(order.of("rag").incumbent_rate is None for order in ran.orders if order.role is Role.CONFIRMATION)


async def test_a_mean_needs_every_workload_so_no_trial_is_dropped(bench, executor) -> None:
    bench.asked = {"mix": spec(Combine.WEIGHTED).mix, "combine": Combine.WEIGHTED}
    bench.workload = CHAT
    ran = executor(table(16))
    await bench.run(ran).run()
    assert all(order.must_resolve and order.of("rag").incumbent_rate is None for order in ran.orders)


def judge(rng: np.random.Generator, gain: dict[str, float]) -> Decision:
    """The verdict on a default and a challenger, each figure with 3 % noise and each round with a drift of its own."""
    study = spec()
    aim = aim_of(study)

    def one(number: int, challenger: bool, block: int | None, drift: float = 1.0) -> TrialDocument:
        noise = drift * np.exp(rng.normal(0, 0.03, 2))
        rates = [
            float(usual * factor * (gain[name] if challenger else 1.0))
            for (name, usual), factor in zip(USUAL.items(), noise, strict=True)
        ]
        role = Role.CONFIRMATION if block is not None else Role.SEARCH if challenger else Role.BASELINE
        found = trial(rates[0], rates[1], number, role)
        return found.model_copy(update={"arguments": {"max-num-seqs": 8} if challenger else {}, "block": block})

    def round_of(block: int) -> list[TrialDocument]:
        drift = float(np.exp(rng.normal(0, 0.2)))
        return [one(10 * (block + 1) + index, bool(index), block, drift) for index in (0, 1)]

    search = [one(0, False, None), one(1, True, None)]
    trials = [with_relative(each, search[0], study, aim) for each in search]
    rounds = confirmation_rounds(2)
    for block in range(rounds):
        trials += [with_relative(each, search[0], study, aim) for each in round_of(block)]
    if deserves_another_round(in_rounds(trials, study, aim), aim):
        trials += [with_relative(each, search[0], study, aim) for each in round_of(rounds)]
    return conclude(in_rounds(trials, study, aim), aim).verdict.decision


def test_a_gain_of_one_workload_alone_is_claimed_seldom_and_one_of_both_is_found() -> None:
    repeats = 300
    rng = np.random.default_rng(0)
    false = sum(judge(rng, {"chat": 1.2, "rag": 1.0}) is Decision.TUNED for _ in range(repeats))
    assert false <= stats.binom.ppf(0.999, repeats, 0.05)
    found = sum(judge(rng, {"chat": 1.1, "rag": 1.1}) is Decision.TUNED for _ in range(repeats))
    assert found >= 0.8 * repeats
