"""Reuse of measured configurations, and which earlier ones advise a new study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.spec import LoadLevel, Slo, Workload
from autotune.spec.dataset import read_dataset
from autotune.store import Circumstances, MeasuredConfiguration, Store, configuration_fingerprint
from autotune.store.testing import some_circumstances

HERE = some_circumstances()
OTHER_WORKLOAD = Workload.model_validate({"input_tokens": 2000, "output_tokens": 200})


def test_order_and_names_do_not_count() -> None:
    renamed = replace(HERE, workload=HERE.workload.model_copy(update={"name": "chat", "description": "talk"}))
    assert configuration_fingerprint(HERE, {"a": 1, "b": 2}) == configuration_fingerprint(renamed, {"b": 2, "a": 1})


@pytest.mark.parametrize(
    "changed",
    [
        some_circumstances("l4"),
        some_circumstances(driver="x"),
        some_circumstances(engine_kind="simulated"),
        some_circumstances(engine_version="0.25.0"),
        some_circumstances(model="Qwen/Qwen3-8B"),
        some_circumstances(model_revision="other"),
        replace(HERE, workload=OTHER_WORKLOAD),
        replace(HERE, slo=Slo.from_mapping({"p99_latency": "9s"})),
        replace(HERE, load=LoadLevel.closed(4)),
        replace(HERE, aim="cost"),
    ],
)
def test_everything_that_decides_counts(changed: Circumstances) -> None:
    assert configuration_fingerprint(HERE, {"a": 1}) != configuration_fingerprint(changed, {"a": 1})


def test_values_of_other_types_differ() -> None:
    assert configuration_fingerprint(HERE, {"a": True}) != configuration_fingerprint(HERE, {"a": 1})
    assert configuration_fingerprint(HERE, {"a": "1"}) != configuration_fingerprint(HERE, {"a": 1})


def add(store: Store, circumstances: Circumstances, seqs: int, tokens: float | None, outcome: str = "measured") -> None:
    store.measured.add(
        MeasuredConfiguration(
            circumstances, {"max-num-seqs": seqs}, outcome, study="s", trial_number=seqs, output_tokens_per_s=tokens
        )
    )


def advice(store: Store, **options: object) -> list[int]:
    found = store.measured.similar(
        "t4",
        "Qwen3ForCausalLM",
        HERE.workload,
        engine_kind="vllm",
        model="Qwen/Qwen3-4B",
        slo=HERE.slo,
        limit=int(str(options.get("limit", 8))),
    )
    return [int(one.measured.arguments["max-num-seqs"]) for one in found]


def test_the_most_alike_come_first_and_the_best_of_each() -> None:
    with Store.open("sqlite://") as store:
        add(store, some_circumstances("l4"), 5, 900)
        add(store, some_circumstances("l4", model_family="LlamaForCausalLM", model="x"), 6, 5000)
        add(store, replace(HERE, workload=OTHER_WORKLOAD), 3, 700)
        add(store, replace(HERE, workload=OTHER_WORKLOAD), 4, 800)
        add(store, HERE, 1, 100)
        add(store, HERE, 2, 150)
        add(store, some_circumstances(model_family="LlamaForCausalLM", model="x"), 7, 50)
        assert advice(store) == [2, 1, 4, 3, 7, 5]
        assert advice(store, limit=2) == [2, 1]


def test_neither_failures_nor_simulated_figures_advise() -> None:
    with Store.open("sqlite://") as store:
        add(store, HERE, 1, 0.0)
        add(store, HERE, 2, None, outcome="infeasible")
        add(store, some_circumstances(engine_kind="simulated"), 3, 100)
        assert advice(store) == []


def test_equal_arguments_come_once() -> None:
    with Store.open("sqlite://") as store:
        add(store, HERE, 1, 100)
        add(store, HERE, 1, 120)
        add(store, some_circumstances("l4"), 1, 100)
        assert advice(store) == [1]


def test_likeness_of_the_same_circumstances_is_one() -> None:
    with Store.open("sqlite://") as store:
        add(store, HERE, 1, 100)
        (one,) = store.measured.similar(
            "t4", HERE.model_family, HERE.workload, engine_kind="vllm", model=HERE.model, slo=HERE.slo
        )
        assert one.likeness == 1


def test_a_fixed_load_comes_back_and_is_no_part_of_the_document() -> None:
    with Store.open("sqlite://") as store:
        fixed = replace(HERE, load=LoadLevel.open(2.5), aim="latency of p99_ttft")
        measured = MeasuredConfiguration(fixed, {"a": 1}, "measured", "s", 1, document={"number": 1})
        store.measured.add(measured)
        assert store.measured.find(fixed, {"a": 1}) == [measured]
        assert store.measured.find(HERE, {"a": 1}) == []


def test_traffic_whose_dataset_is_gone_advises_nobody(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one two three", "output_tokens": 5}\n')
    dataset = Workload.model_validate({"input_tokens": 5, "output_tokens": 5, "dataset": {"path": str(path)}})
    with Store.open("sqlite://") as store:
        add(store, replace(HERE, workload=dataset), 1, 100)
        add(store, HERE, 2, 50)
        assert advice(store) == [2, 1]
        path.unlink()
        read_dataset.cache_clear()
        assert advice(store) == [2]
