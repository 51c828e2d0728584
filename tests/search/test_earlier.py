"""What an earlier study measured is taken instead of a launch: only when all that decides a figure is equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.search.confirmation import configuration_key
from autotune.search.earlier import EarlierStudies
from autotune.search.feasibility import Judge
from autotune.search.orders import BRIEF
from autotune.spec import LoadLevel, QualityLimits, Workload
from autotune.store import Circumstances, MeasuredConfiguration, Store
from autotune.store.result import AgreementDocument, Decision, Outcome, QualityDocument, Role, TrialDocument
from autotune.store.testing import some_circumstances

HERE = some_circumstances()
DEFAULT = TrialDocument(
    number=0, role=Role.BASELINE, label="vllm-default", arguments={}, outcome=Outcome.MEASURED, effort=1.0,
    output_tokens_per_s=300.0, requests=900,
)  # fmt: skip
TRIED = {"max-num-seqs": 32}


def trial(tokens: float | None = 400.0, **changes: object) -> TrialDocument:
    fields = {
        "number": 7, "role": Role.SEARCH, "arguments": TRIED, "outcome": Outcome.MEASURED, "effort": BRIEF,
        "output_tokens_per_s": tokens, "capacity_rps": 2.0, "p99_latency_s": 9.0, "slo_margin": -0.1, "requests": 450,
    }  # fmt: skip
    return TrialDocument.model_validate(fields | changes)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("sqlite://") as opened:
        yield opened


def keep(store: Store, document: TrialDocument, study: str = "before", circumstances: Circumstances = HERE) -> None:
    store.measured.add(
        MeasuredConfiguration(
            circumstances, document.arguments, document.outcome.value, study, document.number, document.reason,
            document.capacity_rps, document.output_tokens_per_s, document.requests,
            document.model_dump(mode="json", exclude={"probes"}),
        )
    )  # fmt: skip


def found(store: Store, circumstances: Circumstances = HERE, reference: TrialDocument | None = DEFAULT):
    return EarlierStudies(store.measured, circumstances, "now").result(3, TRIED, reference, BRIEF)


def test_an_equal_measurement_becomes_a_trial_that_says_where_it_is_from(store) -> None:
    keep(store, DEFAULT)
    keep(store, trial())
    reused = found(store)
    assert reused is not None
    assert (reused.number, reused.launched, reused.reused_from) == (3, False, "before/7")
    assert "trial 7 of study 'before'" in reused.detail
    assert "450 requests" in reused.detail
    assert (reused.output_tokens_per_s, reused.capacity_rps, reused.p99_latency_s) == (400.0, 2.0, 9.0)
    assert reused.timings.total == 0


def test_a_confirmation_that_came_later_is_preferred_to_the_search_s_figure(store) -> None:
    keep(store, DEFAULT)
    keep(store, trial(440.0))
    keep(store, trial(400.0, number=20, role=Role.CONFIRMATION, block=1))
    reused = found(store)
    assert (reused.role, reused.block, reused.output_tokens_per_s) == (Role.SEARCH, None, 400.0)


@pytest.mark.parametrize(
    "changes", [{"dominated": True}, {"effort": BRIEF / 2}, {"effort": None}, {"outcome": Outcome.FAULT}]
)
def test_figures_that_are_less_than_a_measurement_are_not_reused(store, changes) -> None:
    keep(store, DEFAULT)
    keep(store, trial(**changes))
    assert found(store) is None


def test_rows_of_versions_that_kept_no_trial_are_not_reused(store) -> None:
    keep(store, DEFAULT)
    store.measured.add(MeasuredConfiguration(HERE, TRIED, "measured", "before", 7, output_tokens_per_s=400.0))
    assert found(store) is None


@pytest.mark.parametrize(
    "other",
    [
        some_circumstances(driver="1.0"),
        some_circumstances(engine_version="0.25.0"),
        some_circumstances(model_revision="other"),
        some_circumstances("l4"),
        replace(HERE, load=LoadLevel.closed(4)),
        replace(HERE, aim="pareto of p99_latency at 0.5 USD/h"),
    ],
)
def test_other_circumstances_are_other_measurements(store, other) -> None:
    keep(store, DEFAULT, circumstances=other)
    keep(store, trial(), circumstances=other)
    assert found(store) is None


def test_latencies_of_a_front_are_taken_only_from_the_same_light_load(store) -> None:
    keep(store, DEFAULT)
    keep(store, trial(light_rps=1.0, target_latency_s=3.0))
    assert found(store) is None
    assert found(store, reference=DEFAULT.model_copy(update={"light_rps": 1.1})) is None
    assert found(store, reference=DEFAULT.model_copy(update={"light_rps": 1.0})) is not None


def test_weights_that_are_not_known_are_never_the_same(store) -> None:
    unknown = some_circumstances(model_revision="")
    keep(store, DEFAULT, circumstances=unknown)
    keep(store, trial(), circumstances=unknown)
    assert found(store, unknown) is None
    simulated = replace(unknown, engine_kind="simulated")
    keep(store, DEFAULT, circumstances=simulated)
    keep(store, trial(), circumstances=simulated)
    assert found(store, simulated) is not None


def test_a_study_s_own_rows_are_not_earlier_ones(store) -> None:
    keep(store, DEFAULT, study="now")
    keep(store, trial(), study="now")
    assert found(store) is None


@pytest.mark.parametrize(
    ("then", "usable"), [(300.0, True), (280.0, True), (200.0, False), (450.0, False), (0.0, False)]
)
def test_a_machine_that_drifted_since_makes_figures_unusable(store, then, usable) -> None:
    keep(store, DEFAULT.model_copy(update={"output_tokens_per_s": then}))
    keep(store, trial())
    assert (found(store) is not None) is usable


@pytest.mark.parametrize(("then", "usable"), [(2.0, True), (1.9, True), (1.5, False), (3.0, False)])
def test_at_a_fixed_load_the_latency_shows_a_drift_since_the_output_is_the_load_s(store, then, usable) -> None:
    loaded = replace(HERE, load=LoadLevel.open(1.0))
    keep(store, DEFAULT.model_copy(update={"p50_latency_s": then}), circumstances=loaded)
    keep(store, trial(), circumstances=loaded)
    now = DEFAULT.model_copy(update={"p50_latency_s": 2.0})
    assert (found(store, loaded, now) is not None) is usable


def test_figures_need_a_default_to_compare_with_and_failures_do_not(store) -> None:
    keep(store, trial())
    assert found(store) is None
    keep(store, trial(None, outcome=Outcome.INFEASIBLE, reason="oom_runtime", effort=None))
    reused = found(store, reference=None)
    assert (reused.outcome, reused.reason) == (Outcome.INFEASIBLE, "oom_runtime")


def figure(order) -> float:
    seqs = int(order.arguments.get("max-num-seqs", 256))
    return 300 * min(seqs, 32) / max(seqs, 32) * (1 if order.block is None else 0.98)


async def study(bench, executor, store: Store, name: str):
    """One study of the bench in a folder of its own, with what it measures kept in the store."""
    ran = executor(figure)
    run = replace(bench, folder=bench.folder / name).run(ran)
    circumstances = replace(HERE, engine_kind="simulated")
    run.earlier = EarlierStudies(store.measured, circumstances, name)
    run.keep = lambda document: keep(store, document, name, circumstances) if document.launched else None
    return await run.run(), ran


async def test_a_second_study_launches_only_what_the_first_did_not_measure(bench, executor, store) -> None:
    first, _ = await study(bench, executor, store, "one")
    second, ran = await study(bench, executor, store, "two")
    reused = [t for t in second.trials if t.reused_from]
    known = {configuration_key(t.arguments) for t in first.trials}
    assert reused
    assert all(t.role is Role.SEARCH and not t.launched for t in reused)
    launched = [o for o in ran.orders if o.role is Role.SEARCH]
    assert not known & {configuration_key(o.arguments) for o in launched}
    assert len(launched) == bench.trials, "the budget is for launches"
    assert [o.role for o in ran.orders[:3]] == [Role.BASELINE] * 3
    assert sum(o.role is Role.CONFIRMATION for o in ran.orders) == 9, "confirmed on engines of its own"
    assert second.verdict.decision is Decision.TUNED


async def test_a_space_that_an_earlier_study_used_up_ends_the_search(bench, executor, store) -> None:
    few = {"max-num-seqs": {"low": 16, "high": 32, "log": True}, "max-num-batched-tokens": None}
    bench.trials = 30
    bench.space = {"gpu-memory-utilization": None, "stream-interval": None, "async-scheduling": None, **few}
    first, _ = await study(bench, executor, store, "one")
    second, ran = await study(bench, executor, store, "two")
    assert any("nothing new" in text for text in bench.notices.texts)
    assert not [o for o in ran.orders if o.role is Role.SEARCH]
    known = [configuration_key(t.arguments) for t in second.trials if t.reused_from]
    assert len(known) == len(set(known)), "taken from there once"
    assert set(known) <= {configuration_key(t.arguments) for t in first.trials}


def other_traffic() -> Circumstances:
    longer = Workload.model_validate({"input_tokens": 900, "output_tokens": 128})
    return replace(HERE, engine_kind="simulated", workload=longer, model_family="Qwen3ForCausalLM")


async def test_the_best_of_a_similar_study_is_tried_after_what_is_predicted(bench, executor, store) -> None:
    for number, (seqs, tokens) in enumerate([(16, 300.0), (32, 500.0), (64, 400.0), (8, 200.0)]):
        tried = trial(tokens, number=number, arguments={"max-num-seqs": seqs, "max-model-len": 1280})
        keep(store, tried, "chat", other_traffic())
    lossy = trial(900.0, number=9, arguments={"max-num-seqs": 32, "kv-cache-dtype": "fp8"})
    keep(store, lossy, "chat", other_traffic())
    second, ran = await study(bench, executor, store, "two")
    advised = [t for t in second.trials if t.role is Role.SEARCH and t.label.startswith("similar study")]
    assert [t.label for t in advised] == ["similar study chat"] * 2
    assert [t.arguments for t in advised] == [{"max-model-len": 768, "max-num-seqs": seqs} for seqs in (32, 64)]
    assert [o.number for o in ran.orders if o.role is Role.SEARCH][:2] == [t.number for t in advised]
    again, ran = await study(bench, executor, store, "two")
    assert again.trials == second.trials
    assert not ran.orders


def test_advice_is_for_configurations_of_this_space(bench, executor, store) -> None:
    space = bench.run(executor(figure)).context.space
    for number, arguments in enumerate(
        [{"max-num-seqs": 32, "dtype": "half"}, {"max-num-seqs": 33}, {"max-num-seqs": "many"}, {"max-num-seqs": 4096}]
    ):
        keep(store, trial(100.0 - number, number=number, arguments=arguments), "chat", other_traffic())
    earlier = EarlierStudies(store.measured, replace(HERE, engine_kind="simulated"), "now")
    snapped = [(study, arguments["max-num-seqs"]) for study, arguments in earlier.advice(space)]
    assert snapped == [("chat", 32), ("chat", 64)]


def test_experience_is_of_the_same_gpu_engine_and_model_and_each_outcome_once(store) -> None:
    dead = trial(None, outcome=Outcome.INFEASIBLE, reason="oom_kv_cache")
    keep(store, dead, "chat", replace(other_traffic(), engine_kind="vllm"))
    keep(store, trial(), "a")
    keep(store, trial(), "b")
    keep(store, trial(), "now")
    for other in (some_circumstances("l4"), some_circumstances(engine_version="0.25.0"), some_circumstances(model="x")):
        keep(store, dead, "a", other)
    found = list(EarlierStudies(store.measured, HERE, "now").experience())
    assert [(t.reason, workload.input_tokens.high) for t, workload in found] == [("oom_kv_cache", 900), ("", 512)]


def test_what_failed_in_earlier_studies_is_refused_from_the_first_trial_on(bench, executor, store) -> None:
    context = bench.run(executor(figure)).context
    judge = Judge(context.spec, context.space, context.engine)
    guilty = {"max-num-seqs": 32, "scheduling-policy": "priority"}
    assert judge.refuse(guilty) is None
    for seqs in (8, 16):
        keep(
            store,
            trial(
                None,
                outcome=Outcome.INFEASIBLE,
                reason="unsupported_hardware",
                arguments={"max-num-seqs": seqs, "scheduling-policy": "priority"},
            ),
            "chat",
        )
    for document, workload in EarlierStudies(store.measured, HERE, "now").experience():
        judge.learn(document, workload)
    refusal = judge.refuse(guilty)
    assert refusal is not None
    assert refusal.reason == "unsupported_hardware"
    assert judge.refuse({"max-num-seqs": 32}) is None


def compared(first_tokens: float, limit: float) -> QualityDocument:
    itself = AgreementDocument(first_tokens=1.0, prefix=1.0, logprob_difference=0.0)
    found = AgreementDocument(first_tokens=first_tokens, prefix=0.8, logprob_difference=0.01)
    return QualityDocument(prompts=64, agreement=found, repeat=itself, passed=first_tokens >= limit)


@pytest.mark.parametrize(("limit", "passed"), [(0.9, True), (0.99, False)])
def test_a_reused_comparison_of_the_output_is_judged_by_this_study_s_limits(store, limit, passed) -> None:
    keep(store, DEFAULT)
    keep(store, trial(quality=compared(0.95, 0.9)))
    limits = QualityLimits(first_tokens=limit)
    reused = EarlierStudies(store.measured, HERE, "now", limits).result(3, TRIED, DEFAULT, BRIEF)
    assert reused.quality.passed is passed


def test_what_changed_the_output_too_much_is_not_advised(bench, executor, store) -> None:
    space = bench.run(executor(figure)).context.space
    keep(store, trial(900.0, quality=compared(0.5, 0.9)), "chat", other_traffic())
    keep(store, trial(400.0, arguments={"max-num-seqs": 8}), "chat", other_traffic())
    earlier = EarlierStudies(store.measured, replace(HERE, engine_kind="simulated"), "now")
    assert [arguments["max-num-seqs"] for _, arguments in earlier.advice(space)] == [8]


@pytest.mark.parametrize(
    ("quality", "usable"),
    [(None, False), (QualityDocument(reason="not checked"), False), (compared(0.95, 0.9), True)],
)
def test_what_may_change_the_output_is_measured_again_unless_it_was_compared(store, quality, usable) -> None:
    lossy = TRIED | {"kv-cache-dtype": "fp8"}
    keep(store, DEFAULT)
    keep(store, trial(arguments=lossy, quality=quality))
    earlier = EarlierStudies(store.measured, HERE, "now", lossy=frozenset({"kv-cache-dtype"}))
    assert (earlier.result(3, lossy, DEFAULT, BRIEF) is not None) is usable
    assert EarlierStudies(store.measured, HERE, "now").result(3, lossy, DEFAULT, BRIEF) is not None
