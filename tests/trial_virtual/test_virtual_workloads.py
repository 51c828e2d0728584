"""Several workloads on one engine, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from autotune.catalog import load_gpu, load_model
from autotune.engine.virtual import VirtualEngine
from autotune.spec import LengthSpec, Slo, Workload
from autotune.store.result import Role, TrialDocument
from autotune.trial import TrialOrder, TrialRunner, virtual_setup
from autotune.trial.order import WorkloadRates
from autotune.trial.virtual import SilentProbeEvents

GPU, MODEL = load_gpu("l4"), load_model("qwen3-0.6b")
SHORT = Workload(name="short", input_tokens=LengthSpec.parse(64), output_tokens=LengthSpec.parse(100))
LONG = Workload(name="long", input_tokens=LengthSpec.parse(512), output_tokens=LengthSpec.parse(200))
SLO = Slo.from_mapping({"p99_latency": "8s"})


def measure(
    workload: Workload, *more: Workload, to_beat: dict[str, float] | None = None, must_resolve: bool = True
) -> TrialDocument:
    guesses = {"short": 12.0, "long": 5.0}
    to_beat = to_beat or {}
    engine = VirtualEngine(GPU, MODEL, seed=1)
    setup = virtual_setup(engine, workload, SLO, more_workloads=more)
    order = TrialOrder(
        number=0,
        role=Role.SEARCH,
        arguments={"max-model-len": 4096, "max-num-seqs": 16},
        folder=Path("none"),
        guess_rate=guesses[workload.name],
        guess_uncertainty=1.5,
        must_resolve=must_resolve,
        effort=0.5,
        rates={name: WorkloadRates(rate, 1.5, to_beat.get(name)) for name, rate in guesses.items()},
    )
    return asyncio.run(TrialRunner(setup, SilentProbeEvents()).run(order))


def test_each_workload_has_the_capacity_that_it_has_alone() -> None:
    both, alone = measure(SHORT, LONG), measure(LONG)
    short, long = both.workloads
    assert (short.workload, long.workload) == ("short", "long")
    assert long.capacity_rps == pytest.approx(alone.capacity_rps, rel=0.1)
    assert (both.capacity_rps, both.output_tokens_per_s) == (short.capacity_rps, short.output_tokens_per_s)
    assert [probe.workload for probe in both.probes] == sorted((p.workload for p in both.probes), reverse=True)
    assert both.requests == sum(probe.requests for probe in both.probes)
    assert alone.workloads == []
    assert {probe.workload for probe in alone.probes} == {""}


def test_the_prompts_of_a_workload_do_not_depend_on_the_one_before() -> None:
    """The first probe of the second workload is the same whatever the first one took."""
    other = SHORT.model_copy(update={"output_tokens": LengthSpec.parse(50)})
    firsts = [next(p for p in measure(first, LONG).probes if p.workload == "long") for first in (SHORT, other)]
    assert firsts[0].realised_rate == pytest.approx(firsts[1].realised_rate, rel=1e-6)


def test_a_configuration_that_is_lost_with_one_workload_is_not_tried_with_the_next() -> None:
    beaten = measure(SHORT, LONG, to_beat={"short": 40.0}, must_resolve=False)
    assert beaten.dominated
    assert [part.workload for part in beaten.workloads] == ["short"]
    second = measure(SHORT, LONG, to_beat={"long": 20.0}, must_resolve=False)
    assert second.dominated
    assert [part.dominated for part in second.workloads] == [False, True]


def test_a_workload_that_misses_the_slo_spoils_the_whole() -> None:
    hopeless = Workload(name="endless", input_tokens=LengthSpec.parse(64), output_tokens=LengthSpec.parse(3000))
    missed = measure(SHORT, hopeless)
    assert [bool(part.output_tokens_per_s) for part in missed.workloads] == [True, False]
    assert missed.output_tokens_per_s == 0.0
    assert (missed.slo_margin or 0) > 0
