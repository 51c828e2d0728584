"""Search spaces: building, overriding, and the way between parameters and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import UsageError
from autotune.catalog import list_gpus, list_models, load_gpu, load_model, load_workload
from autotune.space import IntParameter, SearchSpace, build_space
from autotune.spec import ArgumentValue, Workload

CHAT = Workload(input_tokens="256:768", output_tokens="128:384")
STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))


def t4_space(**wishes: object) -> SearchSpace:
    return build_space(load_gpu("t4"), load_model("qwen3-4b"), CHAT, **wishes)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.name)
def test_every_gpu_and_model_has_a_small_space_whose_baseline_breaks_no_rule(gpu: object) -> None:
    for model in list_models():
        if "Gemma" in model.architecture and gpu.name == "t4":  # type: ignore[attr-defined]
            continue
        space = build_space(gpu, model, CHAT)  # type: ignore[arg-type]
        assert 3 <= len(space.parameters) <= 6
        assert space.check({}) == []
        size = space.size()
        assert size is not None
        assert size < 50_000


def test_gemma_does_not_run_on_a_t4() -> None:
    """No float16 in the model, no bfloat16 in the GPU: vLLM's own message 26."""
    space = build_space(load_gpu("t4"), load_model("gemma-3-4b-it"), CHAT)
    assert "does not support float16" in space.check({})[0]


def test_the_context_is_cut_to_what_the_workload_needs() -> None:
    assert t4_space().fixed == {"max-model-len": 1280}
    assert t4_space(fixed={"max-model-len": 4096}).fixed == {"max-model-len": 4096}
    long = Workload(input_tokens="40000", output_tokens="900")
    assert build_space(load_gpu("t4"), load_model("qwen3-4b"), long).fixed == {}
    longer = Workload(input_tokens="41000", output_tokens="900")
    with pytest.raises(UsageError, match=r"41900 tokens, qwen3-4b takes 40960"):
        build_space(load_gpu("t4"), load_model("qwen3-4b"), longer)


def test_a_context_that_the_workload_outgrows_is_refused() -> None:
    with pytest.raises(UsageError, match="max-model-len"):
        t4_space(fixed={"max-model-len": 1000})


def test_distributions_are_optunas() -> None:
    distributions = t4_space().distributions()
    assert distributions["max-num-seqs"] == optuna.distributions.IntDistribution(2, 256, log=True)
    assert distributions["async-scheduling"] == optuna.distributions.CategoricalDistribution((True, False))
    study = optuna.create_study()
    trial = study.ask(distributions)
    assert set(trial.params) == set(distributions)


def test_defaults_are_left_out_and_unset_arguments_stand_at_their_default() -> None:
    space = t4_space()
    at_default = space.params_of({})
    assert at_default == {
        "max-num-seqs": 256,
        "max-num-batched-tokens": 2048,
        "gpu-memory-utilization": 0.92,
        "stream-interval": 1,
        "async-scheduling": True,
    }
    assert space.arguments(at_default) == space.fixed
    assert space.arguments({**at_default, "max-num-seqs": 57})["max-num-seqs"] == 64


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    gpu = draw(st.sampled_from(list_gpus()))
    model = draw(st.sampled_from(list_models()))
    optional = {"block-size": [16, 32], "kv-cache-dtype": ["auto", "fp8"], "attention-backend": ["unset", "FLASHINFER"]}
    named = draw(st.sets(st.sampled_from(sorted(optional))))
    return build_space(gpu, model, CHAT, overrides={name: optional[name] for name in named}, allow_lossy=True)


@given(spaces(), st.data())
@settings(max_examples=80, deadline=None)
def test_arguments_and_parameters_round_trip(space: SearchSpace, data: st.DataObject) -> None:
    params: dict[str, ArgumentValue] = {}
    for parameter in space.parameters:
        values = parameter.describe()["values"]
        assert isinstance(values, list)
        params[parameter.name] = data.draw(st.sampled_from(values))
    arguments = space.arguments(params)
    assert space.params_of(arguments) == space.snap(params) == params
    assert space.arguments(space.params_of(arguments)) == arguments


@given(spaces(), st.data())
@settings(max_examples=80, deadline=None)
def test_whatever_optuna_proposes_becomes_canonical(space: SearchSpace, data: st.DataObject) -> None:
    params: dict[str, ArgumentValue] = {}
    for parameter in space.parameters:
        if isinstance(parameter, IntParameter):
            params[parameter.name] = data.draw(st.integers(parameter.low, parameter.high))
    arguments = space.arguments({**space.params_of({}), **params})
    again = space.arguments(space.params_of(arguments))
    assert list(arguments.items()) == list(again.items())
    for name, distribution in space.distributions().items():
        value = space.params_of(arguments)[name]
        assert distribution._contains(distribution.to_internal_repr(value))


@pytest.mark.parametrize(
    ("override", "grid"),
    [
        ({"low": 1, "high": 64, "log": True}, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]),
        ({"low": 5, "high": 20, "step": 5}, [5, 10, 15, 20]),
        ({"values": [8, 12, 16]}, [8, 12, 16]),
        ([16, 8, 12], [8, 12, 16]),
        ({"low": 7, "high": 17}, [7, 8, 12, 16, 17]),
        ([5], [5]),
    ],
)
def test_forms_of_an_override(override: object, grid: list[int]) -> None:
    space = t4_space(overrides={"max_num_seqs": override})
    described = {p.name: p.describe() for p in space.parameters}["max-num-seqs"]
    assert described["values"] == grid
    assert (described["low"], described["high"]) == (grid[0], grid[-1])


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"max-num-seqs": {"low": 64, "high": 1}}, "upside down"),
        ({"max-num-seqs": {"lo": 1}}, "unknown key 'lo'. Did you mean low"),
        ({"max-num-seqs": []}, "empty"),
        ({"max-num-seqs": {"values": []}}, "empty"),
        ({"max-num-seqs": {"values": [1], "log": True}}, "excludes log"),
        ({"max-num-seqs": 5}, "belongs under 'arguments'"),
        ({"max-num-seqs": {"low": 0, "high": 8, "log": True}}, "logarithmic range cannot start at 0"),
        ({"max-num-seqs": {"low": 1.5, "high": 8}}, "whole numbers"),
        ({"max-num-seqs": {"low": -4, "high": 8}}, "negative"),
        ({"max-num-seqs": {"low": 1, "high": 8, "step": 0}}, "leads nowhere"),
        ({"max-num-seqs": ["many"]}, "not a number"),
        ({"max-num-seq": [1, 2]}, "Did you mean max-num-seqs"),
        ({"swap-space": [1, 2]}, "no effect since the V1 engine"),
        ({"async-scheduling": {"low": 0, "high": 1}}, "choices, not a range"),
        ({"kv-cache-dtype": ["auto", "fp8"]}, "--allow-lossy"),
        ({"gpu-memory-utilization": {"low": 0.9, "high": "a lot"}}, "'a lot', not a number"),
        ({"block-size": [16, None]}, "not a number"),
        ({"scheduling-policy": ["fcfs", "fcfs"]}, "listed twice"),
    ],
)
def test_mistakes_in_an_override(overrides: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        t4_space(overrides=overrides)


def test_fixed_and_varied_at_once_is_an_error_and_fixed_leaves_the_space() -> None:
    with pytest.raises(UsageError, match="fixed under 'arguments' and varied"):
        t4_space(overrides={"max-num-seqs": [1, 2]}, fixed={"max-num-seqs": 4})
    space = t4_space(fixed={"max-num-seqs": 4})
    assert "max-num-seqs" not in space.distributions()
    assert space.arguments({})["max-num-seqs"] == 4


def test_none_takes_a_parameter_out() -> None:
    assert "stream-interval" not in t4_space(overrides={"stream-interval": None}).distributions()


def test_lossy_arguments_enter_when_asked() -> None:
    space = t4_space(overrides={"kv-cache-dtype": ["auto", "fp8"]}, allow_lossy=True)
    assert space.params_of({})["kv-cache-dtype"] == "auto"
    assert space.check({"kv-cache-dtype": "fp8"}) != []


def test_lossy_arguments_are_searched_as_soon_as_they_are_allowed_where_the_gpu_can() -> None:
    lossy = {"kv-cache-dtype", "quantization"}
    assert not lossy & set(t4_space().distributions())
    # A T4 has no fp8 KV cache; fp8 weights it computes in float16.
    assert lossy & set(t4_space(allow_lossy=True).distributions()) == {"quantization"}
    space = build_space(load_gpu("l4"), load_model("qwen3-4b"), CHAT, allow_lossy=True)
    assert lossy <= set(space.distributions())
    assert all(parameter.lossy == (parameter.name in lossy) for parameter in space.parameters)


def test_what_the_installed_vllm_does_not_know_is_left_out_or_refused() -> None:
    known = ["--max-num-seqs", "max_num_batched_tokens", "gpu-memory-utilization", "prefill-schedule-interval"]
    assert list(t4_space(known=known).distributions()) == known_names(known[:3])
    added = t4_space(known=known, overrides={"prefill-schedule-interval": [1, 2]})
    assert "prefill-schedule-interval" in added.distributions()
    with pytest.raises(UsageError, match="max-paddings is not an argument"):
        t4_space(known=known, fixed={"max-paddings": 4})


def known_names(flags: list[str]) -> list[str]:
    return [flag.lstrip("-").replace("_", "-") for flag in flags]


def test_an_argument_outside_the_base_space_is_a_choice_with_unset() -> None:
    space = t4_space(known=["max-num-seqs", "ubatch-size"], overrides={"ubatch-size": [2, 4]})
    assert space.params_of({})["ubatch-size"] == "unset"
    assert "ubatch-size" not in space.arguments({"ubatch-size": "unset"})
    assert space.arguments({"ubatch-size": 4})["ubatch-size"] == 4


def test_the_fingerprint_follows_the_space() -> None:
    assert t4_space().fingerprint() == t4_space().fingerprint()
    assert t4_space().fingerprint() != t4_space(overrides={"max-num-seqs": [1, 2]}).fingerprint()
    assert t4_space().fingerprint() != t4_space(fixed={"enforce-eager": True}).fingerprint()


def test_true_is_not_one() -> None:
    space = t4_space(overrides={"stream-interval": [1, 2]})
    assert space.arguments({"stream-interval": 1, "async-scheduling": True}) == space.fixed
    assert space.arguments({"async-scheduling": False})["async-scheduling"] is False


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_of_the_repository_has_a_valid_space(path: Path) -> None:
    study = yaml.safe_load(path.read_text())
    workload = study["workload"]
    space = build_space(
        load_gpu(study["gpu"]),
        load_model(study["model"]),
        load_workload(workload) if isinstance(workload, str) else Workload.model_validate(workload),
        overrides=study.get("space", {}),
        fixed=study.get("arguments", {}),
        allow_lossy=study.get("allow_lossy", False),
    )
    assert space.size()


def test_the_three_scenarios_are_there() -> None:
    assert {path.stem for path in STUDIES} >= {
        "rtx4090-nanbeige4.1-3b",
        "a10g-qwen3-4b-instruct-2507",
        "t4-qwen3-4b-thinking-2507",
    }
