"""What is measured for each objective, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.catalog import load_gpu, load_model
from autotune.engine.virtual import VirtualEngine
from autotune.spec import LengthSpec, LoadLevel, Objective, Slo, Workload
from autotune.stats.probe import probe_size
from autotune.store.result import Role, TrialDocument
from autotune.telemetry import Device
from autotune.trial import TrialOrder, TrialRunner, virtual_setup
from autotune.trial.capacity import LEAST_WHOLE_REQUESTS
from autotune.trial.virtual import SilentProbeEvents

GPU, MODEL = load_gpu("l4"), load_model("qwen3-0.6b")
ANSWER = 100
WORKLOAD = Workload(input_tokens=LengthSpec.parse(128), output_tokens=LengthSpec.parse(ANSWER))
ARGUMENTS = {"max-model-len": 1024, "max-num-seqs": 16}
SLO = Slo.from_mapping({"p90_ttft": "2s", "p99_latency": "8s"})


def measure(
    objective: Objective,
    load: LoadLevel | None = None,
    *,
    devices: Sequence[Device] = (),
    price: float | None = None,
    light_rate: float | None = None,
    slo: Slo = SLO,
) -> TrialDocument:
    engine = VirtualEngine(GPU, MODEL, seed=1)
    setup = virtual_setup(engine, WORKLOAD, slo, load=load, objective=objective, price_per_hour=price)
    setup = replace(setup, make_devices=lambda running: devices)
    order = TrialOrder(
        number=0,
        role=Role.BASELINE,
        arguments=ARGUMENTS,
        folder=Path("none"),
        guess_rate=5.0,
        guess_uncertainty=1.5,
        light_rate=light_rate,
        effort=0.5,
    )
    return asyncio.run(TrialRunner(setup, SilentProbeEvents()).run(order))


def test_a_latency_rests_on_a_whole_probe_and_a_throughput_on_what_decides() -> None:
    load, slo = LoadLevel.open(8.0), Slo.from_mapping({"p90_ttft": "2s"})
    quick = measure(Objective.THROUGHPUT, load, slo=slo)
    whole = measure(Objective.LATENCY, load, slo=slo)
    assert (quick.probes[-1].decision, whole.probes[-1].decision) == ("pass", "pass")
    assert quick.requests < LEAST_WHOLE_REQUESTS / 2 < whole.requests
    assert whole.target_latency_s is not None
    assert 0 < whole.target_latency_s <= (whole.p99_ttft_s or 0), "a P90 of the TTFT"


def test_the_output_of_two_users_follows_from_their_latency() -> None:
    document = measure(Objective.THROUGHPUT, LoadLevel.closed(2))
    # Each user gets an answer every latency (Little's law).
    assert document.output_tokens_per_s == pytest.approx(2 * ANSWER / (document.p50_latency_s or 1), rel=0.03)


def test_a_load_that_the_slo_does_not_survive_counts_for_nothing() -> None:
    missed = measure(Objective.LATENCY, LoadLevel.open(200.0))
    assert missed.output_tokens_per_s == 0.0
    assert missed.target_latency_s is None
    assert missed.slo_margin is not None
    assert missed.slo_margin > 0


def test_a_front_takes_its_latency_at_a_light_load_that_is_given_or_half_of_the_capacity() -> None:
    alone = measure(Objective.PARETO)
    assert alone.capacity_rps is not None
    assert alone.light_rps == pytest.approx(alone.capacity_rps / 2)
    assert alone.probes[-1].purpose == "light load"
    assert alone.probes[-1].rate == alone.light_rps
    same = measure(Objective.PARETO, light_rate=1.0)
    assert same.light_rps == 1.0
    assert same.capacity_rps == alone.capacity_rps
    assert (same.target_latency_s or 9) < (alone.target_latency_s or 0)
    assert alone.power == pytest.approx((alone.output_tokens_per_s or 0) / (alone.target_latency_s or 1))


def test_a_cost_is_the_price_of_the_time_that_a_million_tokens_take() -> None:
    document = measure(Objective.COST, price=1.8)
    seconds = 1e6 / (document.output_tokens_per_s or 0)
    assert document.cost_per_million_tokens == pytest.approx(seconds * 1.8 / 3600)
    assert measure(Objective.COST, LoadLevel.open(200.0), price=1.8).cost_per_million_tokens is None


@dataclass
class Meter:
    """An energy counter that has grown by so many joules whenever it is looked at again."""

    joules: float
    name: str = "gpu0"
    counters: frozenset[str] = frozenset({"energy_j"})
    looks: int = 0

    def open(self) -> None:
        self.looks = 0

    def sample(self) -> dict[str, float | None]:
        self.looks += 1
        return {"energy_j": 7.0 + (self.joules if self.looks > 1 else 0.0)}

    def close(self) -> None:
        """Nothing is held."""


def test_energy_is_that_of_the_probe_by_the_tokens_that_came_in_it() -> None:
    document = measure(Objective.LATENCY, LoadLevel.closed(2), devices=[Meter(5000.0)])
    tokens = ANSWER * max(probe_size(0.0, SLO).requests, 40)
    assert document.energy_per_token_j == pytest.approx(5000.0 / tokens)
    assert measure(Objective.LATENCY, LoadLevel.closed(2)).energy_per_token_j is None
