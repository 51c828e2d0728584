"""Requests and arrivals of a plan: common luck at every level, the distributions that were asked for."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import stats

from autotune.load import LoadPlan
from autotune.load._arrivals import random_stream, unit_arrivals
from autotune.load._body import token_ids, words
from autotune.load._jobs import plan_jobs
from autotune.load._lengths import lengths
from autotune.spec import LengthSpec, LoadLevel, Workload


def plan(level: LoadLevel, *, seed: int = 1, stream: str = "s", requests: int = 50) -> LoadPlan:
    workload = Workload(input_tokens="10:500", output_tokens="normal:100,30")
    return LoadPlan(level, workload, seed, stream, requests, 1e9, 60)


def test_the_same_requests_come_at_any_level_and_arrivals_only_stretch() -> None:
    slow = list(plan_jobs(plan(LoadLevel.open(0.5)), 1.0))
    fast = list(plan_jobs(plan(LoadLevel.open(40)), 1.0))
    closed = list(plan_jobs(plan(LoadLevel.closed(7)), 1.0))
    assert [job["turns"] for job in slow] == [job["turns"] for job in fast] == [job["turns"] for job in closed]
    assert [job["at"] * 0.5 for job in slow if job["at"]] == pytest.approx(
        [job["at"] * 40 for job in fast if job["at"]]
    )
    assert {job["at"] for job in closed} == {None}


@pytest.mark.parametrize("other", [{"seed": 2}, {"stream": "t"}])
def test_another_seed_or_stream_gives_other_requests(other: dict[str, int | str]) -> None:
    prompts = [
        {str(job["turns"][0]["prompt"]) for job in plan_jobs(plan(LoadLevel.open(1), **changes), 1.0)}  # type: ignore[arg-type]
        for changes in ({}, other)
    ]
    assert not prompts[0] & prompts[1]


def test_a_plan_ends_with_its_requests_or_its_duration() -> None:
    assert len(list(plan_jobs(plan(LoadLevel.open(1), requests=7), 1.0))) == 7
    short = LoadPlan(LoadLevel.open(10), Workload(input_tokens=1, output_tokens=1), 1, "s", 10**9, 20.0, 60)
    times = [job["at"] or 0 for job in plan_jobs(short, 2.0)]
    assert times[-1] <= 10.0
    assert len(times) == pytest.approx(200, rel=0.3)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_distributed_with_mean_one(burstiness: float) -> None:
    times = list(islice(unit_arrivals(3, "s", burstiness), 5000))
    gaps = [times[0], *(after - before for before, after in pairwise(times))]
    assert stats.kstest(gaps, stats.gamma(burstiness, scale=1 / burstiness).cdf).pvalue > 0.01


def test_constant_gaps() -> None:
    assert list(islice(unit_arrivals(3, "s", math.inf), 1500)) == pytest.approx(list(range(1, 1501)))


@pytest.mark.parametrize("text", ["128", "10:20", "normal:100,30", "lognormal:200,0.5"])
def test_lengths_have_their_distribution(text: str) -> None:
    spec = LengthSpec.parse(text)
    drawn = list(islice(lengths(spec, random_stream(1, "s", "x")), 4000))
    assert min(drawn) >= spec.low
    assert max(drawn) <= spec.high
    assert np.mean(drawn) == pytest.approx(spec.mean, rel=0.05)
    if text == "10:20":
        assert set(drawn) == set(range(10, 21))


@pytest.mark.parametrize("vocabulary", [3, 300, 2048, 151_936])
def test_token_ids_stay_within_the_vocabulary_and_away_from_its_ends(vocabulary: int) -> None:
    ids = token_ids([[5, 4000], [6, 10]], vocabulary)
    assert len(ids) == 4010
    assert 0 <= min(ids) <= max(ids) < vocabulary
    if vocabulary == 151_936:
        assert min(ids) >= 1000
        assert max(ids) < 149_000
    assert ids[:4000] == token_ids([[5, 4000]], vocabulary)


def test_words_are_as_many_as_asked() -> None:
    assert len(words([[5, 100], [7, 20]]).split()) == 120
