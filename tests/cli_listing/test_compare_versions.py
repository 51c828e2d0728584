"""Results of different versions of this program, compared."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.catalog import load_workload
from autotune.cli._compare import compare_studies
from autotune.spec import Slo, StudySpec, WorkloadShare
from autotune.store.result import EngineDocument, StudyDocument

CHAT = load_workload("chat")
SPEC = StudySpec(name="s", gpu="t4", model="qwen3-4b", workload=CHAT, slo=Slo.from_mapping({"p99_latency": "10s"}))
NEW_KEYS = ("mix", "combine", "objective", "price_per_hour", "quality", "reuse")


def result(definition: dict[str, Any]) -> StudyDocument:
    return StudyDocument(
        study="s", created="2026-01-01T00:00:00Z", engine=EngineDocument(kind="simulated", version="0"), gpu={},
        model={}, slo=SPEC.slo.to_mapping(), workload={}, definition=definition, space={},
    )  # fmt: skip


@pytest.mark.parametrize("kept", [lambda key: key not in NEW_KEYS, lambda key: True])
def test_what_goes_without_saying_is_no_difference(kept) -> None:
    new = SPEC.model_dump(mode="json")
    old = {key: value for key, value in new.items() if kept(key)}
    assert compare_studies(result(old), result(new)).definition == ()


def test_several_workloads_are_not_compared_with_one_without_a_caution() -> None:
    mix = (WorkloadShare(workload=CHAT), WorkloadShare(workload=load_workload("rag")))
    several = SPEC.model_copy(update={"mix": mix})
    found = compare_studies(result(SPEC.model_dump(mode="json")), result(several.model_dump(mode="json")))
    assert any("answer different questions (mix differ)" in caution for caution in found.cautions)
