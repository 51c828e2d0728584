from __future__ import annotations

import gc

import pytest
from optuna.trial import TrialState

from autotune.base.errors import EnvironmentProblemError, NoFeasibleConfigurationError
from autotune.search.confirmation import CONFIRMATION_BLOCKS
from autotune.search.context import Refusal
from autotune.spec import Arguments
from autotune.store.result import Decision, Outcome, Role, StudyDocument
from autotune.trial import TrialOrder


def peak_at(seqs: int, drift: float = 0.0):
    """Output tok/s that is best at one value of max-num-seqs; rounds differ by ``drift``."""

    def answer(order: TrialOrder) -> float:
        chosen = int(order.arguments.get("max-num-seqs", 256))
        shift = 1 + drift * (order.block or 0)
        return shift * 300 * min(chosen, seqs) / max(chosen, seqs)

    return answer


async def test_a_better_configuration_is_found_confirmed_and_named_with_its_gain(bench, executor) -> None:
    result = await bench.run(executor(peak_at(32))).run()
    assert result.verdict.decision is Decision.TUNED
    assert result.best is not None
    assert result.best.confirmed
    truth = result.best.output_tokens_per_s / (300 * 32 / 256)
    assert result.verdict.gain_percent == pytest.approx(100 * (truth - 1), rel=1e-6)
    roles = [t.role for t in result.trials]
    assert roles[:3] == [Role.BASELINE] * 3
    assert sum(r is Role.SEARCH for r in roles) >= 6
    blocks = {t.block for t in result.trials if t.role is Role.CONFIRMATION}
    assert blocks == set(range(CONFIRMATION_BLOCKS))


async def test_confirmation_is_interleaved_so_that_drift_falls_on_all(bench, executor) -> None:
    ran = executor(peak_at(32, drift=0.2))
    result = await bench.run(ran).run()
    firsts = [next(o.arguments for o in ran.orders if o.block == block) for block in range(CONFIRMATION_BLOCKS)]
    assert len({str(sorted(a.items())) for a in firsts}) > 1
    low, high = result.verdict.interval_95
    # Every round is faster than the one before by the same factor for all: paired by rounds it cancels.
    assert high - low < 1.0


async def test_a_default_that_nothing_beats_is_kept(bench, executor) -> None:
    result = await bench.run(executor(peak_at(256))).run()
    assert result.verdict.decision is Decision.KEEP_DEFAULT
    assert result.best is not None
    assert result.best.label.startswith("vllm-default")
    assert result.best.arguments == {}


async def test_a_default_that_cannot_start_is_a_finding_and_its_fitted_form_the_rival(bench, executor) -> None:
    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if "max-model-len" not in order.arguments:
            return Outcome.INFEASIBLE, "oom_kv_cache"
        return peak_at(32)(order)

    result = await bench.run(executor(answer)).run()
    first, second = result.trials[:2]
    assert (first.outcome, first.reason) == (Outcome.INFEASIBLE, "oom_kv_cache")
    assert second.label == "vllm-default, context fitted"
    assert result.verdict.decision is Decision.TUNED
    assert result.verdict.gain_percent is not None
    assert any("cannot run" in text for text in bench.notices.texts)


async def test_outcomes_reach_optuna_with_both_constraints_in_order(bench, executor) -> None:
    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if order.arguments.get("max-num-seqs") == 64:
            return Outcome.INFEASIBLE, "oom_runtime"
        return 0.0 if int(order.arguments.get("max-num-seqs", 256)) < 8 else 100.0

    bench.trials = 12
    run = bench.run(executor(answer))
    await run.run()
    seen = set()
    for trial in run.record.trials():
        assert trial.state is TrialState.COMPLETE
        named = {k: v for k, v in trial.constraints.items() if not k.isdigit()}
        assert set(named) == {"slo", "memory"}
        assert trial.system_attrs["constraints"] == [named["slo"], named["memory"]]
        outcome = trial.user_attrs["outcome"]
        seen.add((outcome, named["memory"] > 0, named["slo"] > 0, trial.value > 0))
    assert ("infeasible", True, False, False) in seen
    assert ("measured", False, False, True) in seen
    assert all(not (value and (memory or slo)) for _, memory, slo, value in seen)


async def test_a_fault_is_retried_and_never_learned(bench, executor) -> None:
    failed: list[int] = []

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if order.role is Role.BASELINE and not failed:
            failed.append(order.number)
            return Outcome.FAULT, "port_in_use"
        return peak_at(32)(order)

    run = bench.run(executor(answer))
    result = await run.run()
    states = {t.number: t.state for t in run.record.trials()}
    assert states[failed[0]] is TrialState.FAIL
    assert result.verdict.decision is Decision.TUNED


async def test_the_same_fault_again_and_again_stops_the_study_with_its_remedy(bench, executor) -> None:
    ran = executor(lambda order: (Outcome.FAULT, "engine_crash"))
    with pytest.raises(EnvironmentProblemError, match="engine_crash") as caught:
        await bench.run(ran).run()
    assert caught.value.remedy == "Mend it."
    assert len(ran.orders) == 3


async def test_nothing_feasible_is_said_with_the_reasons(bench, executor) -> None:
    with pytest.raises(NoFeasibleConfigurationError, match="oom_weights"):
        await bench.run(executor(lambda order: (Outcome.INFEASIBLE, "oom_weights"))).run()
    document = StudyDocument.read(bench.folder / "s")
    assert document.verdict.decision is Decision.NO_FEASIBLE_CONFIGURATION
    assert document.best is None


async def test_a_doomed_proposal_costs_no_engine(bench, executor) -> None:
    def refuse(arguments: Arguments) -> Refusal | None:
        return Refusal("oom_kv_cache", "too much") if int(arguments.get("max-num-seqs", 256)) > 16 else None

    bench.refuse = refuse
    ran = executor(peak_at(16))
    result = await bench.run(ran).run()
    assert all(int(o.arguments.get("max-num-seqs", 0)) <= 16 for o in ran.orders if o.role is Role.SEARCH)
    refused = [t for t in result.trials if not t.launched and t.outcome is Outcome.INFEASIBLE]
    assert refused
    assert {t.reason for t in refused} == {"oom_kv_cache"}


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs."""


@pytest.mark.parametrize("travels", [False, True], ids=["stays", "travels"])
@pytest.mark.parametrize("deaths", [1, 4])
async def test_a_killed_study_resumes_and_ends_like_an_undisturbed_one(
    bench, executor, tmp_path, deaths, travels
) -> None:
    """On the same machine, or on another one each time, where only its folder came along."""
    undisturbed = await type(bench)(tmp_path / "calm").run(executor(peak_at(32))).run()
    launched: list[str] = []

    def kill_on(count: int):
        def answer(order: TrialOrder) -> float:
            if len(launched) == count:
                raise Killed
            launched.append(f"{order.role}:{order.block}:{sorted(order.arguments.items())}")
            return peak_at(32)(order)

        return answer

    for death in range(deaths):
        with pytest.raises(Killed):
            await bench.run(executor(kill_on(2 + 3 * death))).run()
        if travels:
            gc.collect()
            (bench.folder / "autotune.db").unlink()
    result = await bench.run(executor(kill_on(10_000))).run()
    assert result.verdict == undisturbed.verdict
    assert result.best is not None
    assert undisturbed.best is not None
    assert result.best.arguments == undisturbed.best.arguments
    key = lambda t: (t.role, t.block or 0, str(sorted(t.arguments.items())), t.output_tokens_per_s)  # noqa: E731
    assert sorted(map(key, result.trials)) == sorted(map(key, undisturbed.trials))
    assert len(launched) == len(set(launched)), "a finished trial was run again"
    told = bench.run(executor(peak_at(32))).record.trials()
    assert [t.user_attrs["arguments"] for t in told if t.state is TrialState.COMPLETE] == [
        t.arguments for t in result.trials if t.outcome is not Outcome.FAULT
    ]


async def test_a_machine_that_is_too_busy_slows_the_simulated_clock_instead_of_ending_the_study(
    bench, executor
) -> None:
    slow: list[float] = []
    ran = executor(lambda order: peak_at(32)(order) if len(slow) > 2 else (Outcome.FAULT, "probes_void"))
    ran.scales = [20.0, 10.0, 5.0]
    ran.slow_down = lambda: slow.append(ran.scales[0]) or ran.scales.pop(0) if ran.scales else None
    with pytest.raises(EnvironmentProblemError, match="failed 3 times"):
        await bench.run(ran).run()
    assert slow == [20.0, 10.0, 5.0]
    resumed = await bench.run(ran).run()
    assert resumed.verdict.decision is Decision.TUNED


def faulting_proposals(reasons: list[str]):
    """Searched configurations meet these faults in turn, then none."""
    left = list(reasons)

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if order.role is Role.SEARCH and left:
            return Outcome.FAULT, left.pop(0)
        return peak_at(32)(order)

    return answer


async def test_a_proposal_that_met_a_transient_fault_is_run_again(bench, executor) -> None:
    ran = executor(faulting_proposals(["engine_crash"]))
    run = bench.run(ran)
    result = await run.run()
    proposals = [o for o in ran.orders if o.role is Role.SEARCH]
    assert proposals[0].arguments == proposals[1].arguments
    assert [run.record.trials()[o.number].state for o in proposals[:2]] == [TrialState.FAIL, TrialState.COMPLETE]
    assert sum(t.role is Role.SEARCH and t.launched and t.outcome is not Outcome.FAULT for t in result.trials) == 6
    assert any("engine_crash" in text and "run again" in text for text in bench.notices.texts)


@pytest.mark.parametrize(
    ("faults", "launches"),
    [
        (["engine_crash", "engine_crash"], 2),
        (["engine_crash", "port_in_use"], 3),
        (["engine_crash", "port_in_use", "engine_hang"], 3),
    ],
)
async def test_a_fault_that_comes_back_ends_its_configuration_and_not_the_study(
    bench, executor, faults: list[str], launches: int
) -> None:
    ran = executor(faulting_proposals(faults))
    result = await bench.run(ran).run()
    proposals = [o for o in ran.orders if o.role is Role.SEARCH]
    first = proposals[0].arguments
    assert [o.arguments == first for o in proposals].count(True) == launches
    assert result.verdict.decision is Decision.TUNED
    succeeded = launches > len(faults)
    assert any("is left" in text for text in bench.notices.texts) is not succeeded


async def test_three_equal_faults_in_a_row_of_different_proposals_stop_the_study(bench, executor) -> None:
    ran = executor(faulting_proposals(["engine_crash"] * 3))
    with pytest.raises(EnvironmentProblemError, match="3 trials in a row failed with engine_crash"):
        await bench.run(ran).run()
    assert len({str(o.arguments) for o in ran.orders if o.role is Role.SEARCH}) == 2


async def test_an_environment_fault_stops_the_study_at_once_with_its_remedy(bench, executor) -> None:
    ran = executor(faulting_proposals(["disk_full"]))
    run_order = ran.run

    async def run_with_environment(order: TrialOrder):
        document = await run_order(order)
        return document.model_copy(update={"environment": document.outcome is Outcome.FAULT})

    ran.run = run_with_environment
    with pytest.raises(EnvironmentProblemError, match="disk_full") as caught:
        await bench.run(ran).run()
    assert caught.value.remedy == "Mend it."
    assert sum(o.role is Role.SEARCH for o in ran.orders) == 1


async def test_a_configuration_that_cannot_run_is_never_launched_again(bench, executor) -> None:
    """Neither when it is proposed again, nor in later rounds of its confirmation."""

    def answer(order: TrialOrder) -> float | tuple[Outcome, str]:
        if order.arguments.get("max-num-seqs") == 16:
            return Outcome.INFEASIBLE, "oom_activation"
        if order.role is Role.CONFIRMATION and order.arguments.get("max-num-seqs") == 32:
            return Outcome.INFEASIBLE, "oom_runtime"
        return peak_at(32)(order)

    bench.trials = 15
    ran = executor(answer)
    result = await bench.run(ran).run()
    failed = [str(sorted(t.arguments.items())) for t in result.trials if t.launched and t.outcome is Outcome.INFEASIBLE]
    assert failed
    assert len(failed) == len(set(failed))
    assert {"oom_activation", "oom_runtime"} == {t.reason for t in result.trials if t.outcome is Outcome.INFEASIBLE}
    assert result.best is not None
    assert result.best.arguments.get("max-num-seqs") != 32
