"""A study that is run again: with more trials, after its end, or after it was killed in the confirmation."""

from __future__ import annotations

import pytest

from autotune.report.comparison import comparison, confirmation
from autotune.report.lookup import Standing
from autotune.search.budget import BudgetKeeper
from autotune.search.events import TrialStarted
from autotune.spec import Budget
from autotune.store.result import Decision, Outcome, Role, StudyDocument
from autotune.trial import TrialOrder

USUAL = 256


def peak_at(seqs: int, speed: float = 1.0):
    """Output tok/s that is best at one value of max-num-seqs, on a machine of some speed."""

    def answer(order: TrialOrder) -> float:
        chosen = int(order.arguments.get("max-num-seqs", USUAL))
        return speed * 300 * min(chosen, seqs) / max(chosen, seqs)

    return answer


def confirmed(result: StudyDocument) -> int:
    return sum(t.role is Role.CONFIRMATION for t in result.trials)


@pytest.mark.parametrize("first", [1, 3])
async def test_new_finalists_are_measured_beside_the_default_again(bench, executor, first: int) -> None:
    """The machine is a third faster when the search goes on, which is no gain of what is found then."""
    bench.trials = first
    before = await bench.run(executor(peak_at(32))).run()
    bench.trials = 8
    after = await bench.run(executor(peak_at(32, speed=1.3))).run()
    assert after.best.arguments != before.best.arguments
    best = int(after.best.arguments["max-num-seqs"])
    truth = (min(best, 32) / max(best, 32)) / (32 / USUAL)
    assert after.verdict.gain_percent == pytest.approx(100 * (truth - 1))
    old = {t.block for t in before.trials if t.role is Role.CONFIRMATION}
    new = {t.block for t in after.trials if t.role is Role.CONFIRMATION} - old
    for block in new:
        assert {} in [t.arguments for t in after.trials if t.block == block]
    shown = {c.label: c for c in confirmation(after)}
    assert {block for one in shown.values() for block, _ in one.values} == new
    usual = next(row for row in comparison(after) if row.standing is Standing.DEFAULT)
    assert usual.output_tokens_per_s == pytest.approx(1.3 * 300 * 32 / USUAL)


async def test_finalists_that_stay_are_not_confirmed_again(bench, executor) -> None:
    bench.trials = 2
    before = await bench.run(executor(peak_at(USUAL))).run()
    bench.trials = 4
    after = await bench.run(executor(peak_at(USUAL))).run()
    assert len(after.trials) > len(before.trials)
    assert confirmed(after) == confirmed(before)
    assert after.verdict == before.verdict


async def test_a_search_that_ended_goes_on_only_with_a_larger_budget(bench, executor) -> None:
    def unlimited() -> BudgetKeeper:
        return BudgetKeeper(Budget(time_s=1e9))

    run = bench.run(executor(peak_at(USUAL)))
    run.budget = unlimited()
    before = await run.run()
    assert any("almost nothing" in text or "nothing new" in text for text in bench.notices.texts)
    again = bench.run(ran := executor(peak_at(USUAL)))
    again.budget = unlimited()
    assert (await again.run()).trials == before.trials
    assert not ran.orders


async def test_the_time_of_earlier_runs_counts(bench, executor) -> None:
    now = [0.0]

    def answer(order: TrialOrder) -> float:
        now[0] += 10.0
        return peak_at(32)(order)

    run = bench.run(executor(answer))
    run.budget = BudgetKeeper(Budget(trials=bench.trials), None, lambda: now[0])
    result = await run.run()
    searched = sum(t.launched and t.role is not Role.CONFIRMATION for t in result.trials)
    assert bench.run(executor(answer)).budget.elapsed() == pytest.approx(10.0 * searched, abs=1.0)


async def test_the_eta_is_of_the_trials_that_are_left(bench, executor) -> None:
    left: list[float | None] = []
    before: list[float | None] = []

    class Watching(type(bench.notices)):
        def trial_started(self, event: TrialStarted) -> None:
            if event.role == Role.CONFIRMATION.value:
                left.append(event.eta_seconds)
            else:
                before.append(event.eta_seconds)

    def answer(order: TrialOrder) -> float:
        return 1.0 if "performance-mode" in order.arguments else peak_at(32)(order)

    bench.trials, bench.notices = 1, Watching()
    run = bench.run(executor(answer))
    run.budget.typical_duration = lambda: 10.0
    result = await run.run()
    assert confirmed(result) == 8, "two finalists, four rounds"
    assert left == [10.0 * count for count in range(8, 0, -1)]
    assert before == pytest.approx([10.0 * (baselines + 1 + 9) for baselines in (3, 2, 1, 0)]), "nine at most"


async def test_the_best_is_named_by_a_trial_that_was_measured(bench, executor) -> None:
    faults = ["engine_crash"]

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if order.role is Role.SEARCH and faults:
            return Outcome.FAULT, faults.pop()
        return peak_at(32)(order)

    bench.trials = 1
    result = await bench.run(executor(answer)).run()
    assert result.verdict.decision is Decision.TUNED
    assert result.trial(result.best.number).outcome is Outcome.MEASURED


async def test_a_default_that_misses_now_and_then_is_not_said_to_miss_always(bench, executor) -> None:
    def answer(order: TrialOrder) -> float:
        if "performance-mode" in order.arguments:
            return 1.0
        return 0.0 if not order.arguments and order.block == 1 else peak_at(32)(order)

    bench.trials = 1
    result = await bench.run(executor(answer)).run()
    assert result.verdict.gain_percent is None
    assert "held the objective in 3 of 4 rounds" in result.verdict.text
