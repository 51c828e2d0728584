"""What a study seeks: the score of a trial, what Optuna is told, the verdict, and the front."""

from __future__ import annotations

import math

import pytest
from optuna.study import StudyDirection
from optuna_dashboard._serializer import serialize_frozen_trial

from autotune.base.errors import UsageError
from autotune.catalog import load_gpu
from autotune.engine import SimulatedEngine
from autotune.search.engines import EngineSelection, check_objective
from autotune.search.objective import COST, OUTPUT, POWER, front, make_aim
from autotune.search.verdict import conclude
from autotune.spec import LoadLevel, Objective, Slo
from autotune.store.result import Decision, Outcome, Role, TrialDocument
from autotune.trial import TrialOrder

SLO = Slo.from_mapping({"p95_ttft": "500ms", "p99_latency": "10s"})
USUAL = 256
"""What an unset max-num-seqs stands for."""


def seqs(order: TrialOrder) -> int:
    return int(order.arguments.get("max-num-seqs", USUAL))


def trial(number: int, **fields: object) -> TrialDocument:
    values = {"role": Role.SEARCH, "arguments": {"max-num-seqs": number}, "outcome": Outcome.MEASURED, **fields}
    return TrialDocument(number=number, **values)  # type: ignore[arg-type]


def test_the_latency_is_named_by_the_first_target() -> None:
    score = make_aim(Objective.LATENCY, SLO).score
    assert (score.heading, score.direction) == ("P95 TTFT, s", "minimize")


def test_what_is_carried_by_nothing_is_worst_in_each_direction() -> None:
    missed = trial(1, output_tokens_per_s=0.0, cost_per_million_tokens=None)
    assert (OUTPUT.told(missed), OUTPUT.merit(missed)) == (0.0, 0.0)
    assert (COST.told(missed), COST.merit(missed)) == (math.inf, 0.0)


def test_an_improvement_of_a_small_figure_is_by_how_much_less_it_is() -> None:
    latency = make_aim(Objective.LATENCY, SLO).score
    for before, after in ((2.0, 1.0), (3.0, 2.4), (1.0, 1.25)):
        merit_percent = 100 * (before / after - 1)
        assert latency.improvement(merit_percent) == pytest.approx(100 * (before - after) / before)
    assert OUTPUT.improvement(12.5) == 12.5


def test_the_front_is_what_nothing_beats_in_both_figures() -> None:
    aim = make_aim(Objective.PARETO, SLO)
    points = {1: (100.0, 1.0), 2: (200.0, 2.0), 3: (150.0, 2.5), 4: (200.0, 1.9), 5: (90.0, 1.0), 6: (80.0, 0.5)}
    trials = [trial(n, output_tokens_per_s=out, target_latency_s=late) for n, (out, late) in points.items()]
    trials.append(trial(7, output_tokens_per_s=0.0, target_latency_s=0.1))
    trials.append(trial(8, output_tokens_per_s=900.0, target_latency_s=0.1, role=Role.CONFIRMATION))
    assert [p.number for p in front(trials, aim)] == [4, 1, 6]
    assert front(trials, make_aim(Objective.CAPACITY, SLO)) == []


def test_a_larger_power_is_more_output_for_each_second_of_latency() -> None:
    assert POWER.merit(trial(1, output_tokens_per_s=100.0, power=50.0)) == 50.0


async def test_the_lowest_latency_is_sought_at_a_fixed_load(bench, executor) -> None:
    """Latency is 1 s plus 10 ms a sequence: the least of them wins, by a gain known in closed form."""
    bench.asked = {"objective": Objective.LATENCY, "load": LoadLevel.closed(4)}

    def answer(order: TrialOrder) -> dict[str, float]:
        return {"output_tokens_per_s": 100.0, "target_latency_s": 1 + 0.01 * seqs(order), "slo_margin": -0.1}

    run = bench.run(executor(answer))
    result = await run.run()
    study = run.record.study
    assert study.directions == [StudyDirection.MINIMIZE]
    assert study.metric_names == ["P99 latency, s"]
    best = min(t.target_latency_s for t in result.trials)
    assert study.best_value == best
    assert result.verdict.decision is Decision.TUNED
    assert result.best.target_latency_s == pytest.approx(best)
    assert result.verdict.gain_percent == pytest.approx(100 * (1 - best / (1 + 0.01 * USUAL)))
    low, high = result.verdict.interval_95
    assert low <= result.verdict.gain_percent <= high <= 100
    assert "P99 latency lower by +" in result.verdict.text


async def test_a_configuration_that_misses_the_slo_is_infinitely_slow_to_optuna(bench, executor) -> None:
    bench.asked = {"objective": Objective.LATENCY, "load": LoadLevel.open(1.0)}

    def answer(order: TrialOrder) -> dict[str, float | None]:
        if seqs(order) < 32:
            return {"output_tokens_per_s": 0.0, "target_latency_s": None, "slo_margin": 0.3}
        return {"output_tokens_per_s": 100.0, "target_latency_s": 2.0, "slo_margin": -0.3}

    bench.trials = 10
    run = bench.run(executor(answer))
    result = await run.run()
    values = {t.number: t.value for t in run.record.trials()}
    missed = {t.number for t in result.trials if not t.output_tokens_per_s}
    assert missed
    assert {n for n, value in values.items() if math.isinf(value)} == missed
    study = run.record.study
    attributes = study._storage.get_study_system_attrs(study._study_id)
    shown = {t.number: serialize_frozen_trial(study._study_id, t, attributes) for t in run.record.trials()}
    assert {n for n, trial in shown.items() if trial["values"] == ["inf"]} == missed, "JSON has no infinity"
    assert all(any(value > 0 for value in shown[n]["constraints"]) for n in missed)
    assert result.verdict.decision is Decision.KEEP_DEFAULT


async def test_cost_ranks_as_capacity_does_and_is_reported(bench, executor) -> None:
    price = 0.36
    bench.asked = {"objective": Objective.COST, "price_per_hour": price}

    def answer(order: TrialOrder) -> dict[str, float]:
        output = 300 * min(seqs(order), 32) / max(seqs(order), 32)
        return {
            "output_tokens_per_s": output,
            "capacity_rps": output / 256,
            "cost_per_million_tokens": price * 1e6 / 3600 / output,
        }

    ran = executor(answer)
    result = await bench.run(ran).run()
    # 0.36 USD an hour is 100 USD per million seconds.
    assert result.best.cost_per_million_tokens == pytest.approx(100 / result.best.output_tokens_per_s)
    ratio = (300 * 32 / USUAL) / result.best.output_tokens_per_s
    assert result.verdict.gain_percent == pytest.approx(100 * (1 - ratio))
    assert any(order.incumbent_rate for order in ran.orders)


async def test_energy_is_not_monotone_in_capacity_so_no_trial_is_dropped(bench, executor) -> None:
    bench.asked = {"objective": Objective.ENERGY}

    def answer(order: TrialOrder) -> dict[str, float]:
        return {"output_tokens_per_s": 100.0, "capacity_rps": 1.0, "energy_per_token_j": 0.5 + 0.001 * seqs(order)}

    ran = executor(answer)
    result = await bench.run(ran).run()
    assert all(order.incumbent_rate is None and order.must_resolve for order in ran.orders)
    least = min(t.energy_per_token_j for t in result.trials)
    assert result.verdict.gain_percent == pytest.approx(100 * (1 - least / (0.5 + 0.001 * USUAL)))


async def test_a_front_has_no_winner_but_a_knee(bench, executor) -> None:
    """Output grows as the root of the sequences, latency linearly: all are on the front, the fewest have most power."""
    bench.asked = {"objective": Objective.PARETO}

    def answer(order: TrialOrder) -> dict[str, float]:
        output, latency = 100 * math.sqrt(seqs(order)), 0.1 * seqs(order)
        return {
            "output_tokens_per_s": output,
            "capacity_rps": output / 256,
            "target_latency_s": latency,
            "light_rps": order.light_rate or output / 512,
            "power": output / latency,
        }

    ran = executor(answer)
    run = bench.run(ran)
    result = await run.run()
    study = run.record.study
    assert study.directions == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    assert study.metric_names == ["output tok/s at the SLO", "P99 latency, s"]
    tried = {seqs(order) for order in ran.orders}
    on_front = [int(p.arguments.get("max-num-seqs", USUAL)) for p in result.front]
    assert (on_front, set(on_front)) == (sorted(on_front, reverse=True), tried)
    assert result.best.arguments["max-num-seqs"] == min(tried)
    assert result.verdict.text.startswith(f"No single winner: {len(on_front)} configurations form the front")
    assert {order.light_rate for order in ran.orders} == {None, 100 * math.sqrt(USUAL) / 512}
    assert ran.orders[0].light_rate is None


@pytest.mark.parametrize(
    ("confirmed", "says"), [(50.0, "best.yaml has the default"), (None, "No configuration holds the objective")]
)
def test_a_front_without_a_confirmed_knee_names_none(confirmed: float | None, says: str) -> None:
    figures = {"output_tokens_per_s": 100.0, "target_latency_s": 2.0, "power": 50.0}
    trials = [
        trial(0, **figures, role=Role.BASELINE, label="vllm-default", arguments={}),
        trial(1, **{**figures, "target_latency_s": 1.0, "power": 100.0}),
    ]
    again = figures if confirmed else {"output_tokens_per_s": 0.0}
    for block in range(4):
        for at in (0, 1):
            arguments = trials[at].arguments
            trials.append(
                trial(10 * (block + 1) + at, **again, role=Role.CONFIRMATION, block=block, arguments=arguments)
            )
    text = conclude(trials, make_aim(Objective.PARETO, SLO)).verdict.text
    assert says in text
    assert "knee" not in text


async def test_a_front_in_the_dashboard_has_numbers_only_and_what_carries_nothing_is_not_on_it(bench, executor) -> None:
    bench.asked = {"objective": Objective.PARETO}

    def answer(order: TrialOrder) -> dict[str, float | None]:
        if seqs(order) < 32:
            return {"output_tokens_per_s": 0.0, "slo_margin": 0.3}
        return {"output_tokens_per_s": 100.0, "target_latency_s": 2.0, "power": 50.0, "slo_margin": -0.3}

    bench.trials = 10
    run = bench.run(executor(answer))
    result = await run.run()
    missed = {t.number for t in result.trials if not t.output_tokens_per_s}
    study = run.record.study
    attributes = study._storage.get_study_system_attrs(study._study_id)
    shown = [serialize_frozen_trial(study._study_id, t, attributes)["values"] for t in run.record.trials()]
    assert missed
    assert all(isinstance(value, float) for values in shown for value in values)
    assert not missed & {t.number for t in study.best_trials}


def test_a_cost_needs_a_price_and_energy_a_gpu(bench, executor) -> None:
    unpriced = load_gpu("h200")
    assert unpriced.price_per_hour is None
    selection = EngineSelection(SimulatedEngine(unpriced), None, 1.0, "as asked")
    bench.asked = {"objective": Objective.COST}
    spec = bench.run(executor(lambda order: 1.0)).context.spec
    with pytest.raises(UsageError, match="--price"):
        check_objective(spec, unpriced, selection)
    check_objective(spec.model_copy(update={"price_per_hour": 2.0}), unpriced, selection)
    check_objective(spec, load_gpu("t4"), selection)
    with pytest.raises(UsageError, match="draws no power"):
        check_objective(spec.model_copy(update={"objective": Objective.ENERGY}), unpriced, selection)
