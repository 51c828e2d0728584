from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.spec import LengthSpec, LoadLevel, Metric, Objective, Slo, SloTarget, StudySpec, Workload
from autotune.spec.study import parse_budget, parse_load, validated

CHAT = {"input_tokens": "256:768", "output_tokens": 256}


def test_a_target_is_read_with_its_percentile_metric_and_unit() -> None:
    target = SloTarget.parse("p99.9_ttft", "500ms")
    assert (target.metric, target.percentile, target.limit_s) == (Metric.TTFT, 99.9, 0.5)
    assert target.allowed_miss_share == pytest.approx(0.001)
    assert str(target) == "p99.9_ttft <= 500ms"


@pytest.mark.parametrize(
    ("key", "limit"), [("p99_speed", "1s"), ("p100_latency", "1s"), ("p0_latency", "1s"), ("p99_ttft", "5")]
)
def test_wrong_targets_are_refused(key: str, limit: str) -> None:
    with pytest.raises(UsageError):
        SloTarget.parse(key, limit)


def test_an_objective_reads_back_what_it_writes() -> None:
    slo = Slo.from_mapping({"p99_latency": "10s", "p95_tpot": "25ms"})
    assert Slo.from_mapping(slo.to_mapping()) == slo


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_uniform_lengths_read_back(low: int, more: int) -> None:
    spec = LengthSpec.parse(f"{low}:{low + more}")
    assert (spec.low, spec.high, spec.mean) == (low, low + more, low + more / 2)
    assert LengthSpec.parse(str(spec)) == spec


@pytest.mark.parametrize("text", ["0", "768:256", "abc", "-5", "normal:5", "lognormal:0,1", "1:2:3", ""])
def test_wrong_lengths_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match="256:768"):
        LengthSpec.parse(text)


def test_a_lognormal_length_has_the_mean_of_its_formula() -> None:
    # E[X] = median * exp(sigma^2 / 2)
    assert LengthSpec.parse("lognormal:500,0.5").mean == pytest.approx(500 * 1.1331484530668263)


def test_a_load_level_is_one_of_both() -> None:
    assert str(LoadLevel.open(0.5)) == "0.5 req/s"
    with pytest.raises(ValidationError):
        LoadLevel(loop="open", concurrency=4)
    with pytest.raises(UsageError):
        parse_load({"rate": 1, "concurrency": 2})
    with pytest.raises(UsageError):
        parse_load({"rate": "fast"})
    assert parse_load("capacity") is None


def test_a_budget_refuses_unknown_keys_and_zero() -> None:
    assert parse_budget({"time": "2h"}).time_s == 7200
    with pytest.raises(UsageError, match="trials"):
        parse_budget({"trails": 3})
    with pytest.raises(UsageError):
        parse_budget({"trials": 0})


def _study(**changes: object) -> dict[str, object]:
    return {
        "name": "s",
        "gpu": "t4",
        "model": "m",
        "workload": Workload(**CHAT),
        "slo": Slo.from_mapping({"p99_latency": "10s"}),
    } | changes


def test_a_study_spells_arguments_with_dashes_and_refuses_an_argument_both_fixed_and_varied() -> None:
    spec = validated(StudySpec, _study(arguments={"max_num_seqs": 8}))
    assert spec.arguments == {"max-num-seqs": 8}
    with pytest.raises(UsageError, match="max-num-seqs"):
        validated(StudySpec, _study(arguments={"max-num-seqs": 8}, space={"max_num_seqs": [1, 2]}))


def test_only_what_figures_depend_on_is_part_of_a_studys_identity() -> None:
    base = validated(StudySpec, _study())
    assert base.fingerprint() == validated(StudySpec, _study(name="other", budget={"trials": 3})).fingerprint()
    assert base.fingerprint() != validated(StudySpec, _study(seed=1)).fingerprint()
    assert base.fingerprint() != validated(StudySpec, _study(slo=Slo.from_mapping({"p99_latency": "9s"}))).fingerprint()


def _asked(**asked: object) -> StudySpec:
    workload = Workload(input_tokens=LengthSpec.parse(512), output_tokens=LengthSpec.parse(256))
    slo = Slo.from_mapping({"p99_latency": "10s"})
    return StudySpec(name="s", gpu="t4", model="qwen3-4b", workload=workload, slo=slo, **asked)  # type: ignore[arg-type]


def test_a_study_from_before_there_were_objectives_is_still_the_same() -> None:
    """The fingerprints are those of the version without objectives."""
    assert _asked().fingerprint() == "adc0289d763d6b27"
    at_five = _asked(load=LoadLevel.closed(5))
    assert at_five.fingerprint() == "02d442400de7fb74"
    assert at_five.objective is Objective.THROUGHPUT
    old = at_five.model_dump(mode="json", exclude={"objective", "price_per_hour"})
    assert StudySpec.model_validate(old) == at_five
    assert _asked(price_per_hour=2.0).fingerprint() == "adc0289d763d6b27", "a price is no part of a capacity"


def test_another_objective_is_another_asked() -> None:
    asked: list[dict[str, object]] = [
        {},
        {"objective": "cost"},
        {"objective": "cost", "price_per_hour": 2.0},
        {"objective": "pareto"},
        {"load": LoadLevel.closed(5)},
        {"load": LoadLevel.closed(5), "objective": "latency"},
        {"load": LoadLevel.closed(5), "objective": "pareto"},
    ]
    assert len({_asked(**each).fingerprint() for each in asked}) == len(asked)
