"""Requests and arrivals of a plan: common luck at every level, the distributions that were asked for."""

from __future__ import annotations

import json
import math
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from autotune.load import LoadPlan
from autotune.load._arrivals import random_stream, unit_arrivals
from autotune.load._body import token_ids, words
from autotune.load._jobs import plan_jobs
from autotune.load._lengths import lengths
from autotune.load._wire import Job
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


def jobs_of(workload: Workload, level: LoadLevel | None = None, requests: int = 40, seed: int = 1) -> list[Job]:
    order = LoadPlan(level or LoadLevel.open(2), workload, seed, "s", requests, 1e9, 60)
    return list(plan_jobs(order, 1.0))


def test_conversations_keep_the_rate_of_requests() -> None:
    workload = Workload(input_tokens=10, output_tokens=10, turns="2:4", think_time=5.0)
    jobs = jobs_of(workload, LoadLevel.open(6), 3000)
    assert sum(len(job["turns"]) for job in jobs) == 3000
    assert [turn["index"] for job in jobs for turn in job["turns"]] == list(range(3000))
    assert 3000 / (jobs[-1]["at"] or 1) == pytest.approx(6, rel=0.1)
    waits = [turn["wait"] for job in jobs for turn in job["turns"][1:]]
    assert np.mean(waits) == pytest.approx(5, rel=0.1)
    assert {turn["wait"] for job in jobs for turn in job["turns"][:1]} == {0.0}
    assert all("words" in turn["prompt"] for job in jobs for turn in job["turns"])


def test_shared_prefixes_are_common_to_all_streams_and_the_rest_is_not() -> None:
    workload = Workload.model_validate(
        {"input_tokens": 10, "output_tokens": 10, "shared_prefix": {"tokens": 100, "groups": 3}}
    )
    first, second = (
        [tuple(map(tuple, job["turns"][0]["prompt"]["tokens"])) for job in plan_jobs(order, 1.0)]
        for order in (LoadPlan(LoadLevel.open(1), workload, 1, stream, 60, 1e9, 60) for stream in ("a", "b"))
    )
    assert {spans[0] for spans in first} == {spans[0] for spans in second}
    assert len({spans[0] for spans in first}) == 3
    assert not {spans[1] for spans in first} & {spans[1] for spans in second}
    assert workload.longest_sequence == 120


def test_a_ramp_grows_to_the_full_rate_and_then_is_the_same_stream() -> None:
    plain = Workload(input_tokens=1, output_tokens=1, burstiness=math.inf)
    growing = Workload.model_validate({**plain.model_dump(), "ramp": {"seconds": "100s", "start": 0.2}})
    times = np.array([job["at"] for job in jobs_of(growing, LoadLevel.open(2), 500)])
    counts, _ = np.histogram(times, bins=[0, 10, 90, 100, 110, 120])
    assert counts[0] == pytest.approx(2 * 10 * 0.24, abs=1.5)
    assert counts[2] == pytest.approx(2 * 10 * 0.96, abs=1.5)
    assert counts[3] == pytest.approx(20, abs=1)
    assert (times <= 100).sum() == pytest.approx(2 * 100 * 0.6, abs=1)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
        {"timestamp": 1000, "input_length": 600, "output_length": 6, "hash_ids": [7, 10]},
        {"timestamp": 4000, "input_length": 1300, "output_length": 7, "hash_ids": [7, 8]},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_replay_keeps_pattern_lengths_and_shared_blocks(trace: Path) -> None:
    workload = Workload.model_validate({"dataset": {"path": trace, "replay": True}})
    level = LoadLevel.open(workload.dataset.load().rate if workload.dataset else 1)
    jobs = jobs_of(workload, level, 6)
    assert [job["at"] for job in jobs] == pytest.approx([0, 1, 4, 6, 7, 10])
    doubled = jobs_of(workload, LoadLevel.open(2 * (level.rate or 0)), 6)
    assert [job["at"] for job in doubled] == pytest.approx([0, 0.5, 2, 3, 3.5, 5])
    spans = [job["turns"][0]["prompt"]["tokens"] for job in jobs[:3]]
    assert spans[0] == [[7, 512], [8, 512], [9, 76]]
    assert spans[1] == [[7, 512], [10, 88]]
    assert spans[2][:2] == [[7, 512], [8, 512]]
    assert spans[2][2][1] == 1300 - 1024
    assert [job["turns"][0]["output"] for job in jobs[:3]] == [5, 6, 7]


def test_rows_come_in_an_order_of_the_streams_own_each_once_before_any_again(trace: Path) -> None:
    workload = Workload.model_validate({"dataset": {"path": trace, "output_tokens": 99}})
    lengths_sent = [job["turns"][0]["input"] for job in jobs_of(workload, requests=6)]
    assert sorted(lengths_sent[:3]) == sorted(lengths_sent[3:]) == [600, 1100, 1300]
    assert {job["turns"][0]["output"] for job in jobs_of(workload)} == {99}
    orders = {tuple(j["turns"][0]["input"] for j in jobs_of(workload, seed=s, requests=3)) for s in range(20)}
    assert len(orders) > 2


def test_text_of_a_dataset_is_sent_as_messages_turn_by_turn(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    said = [("human", "one"), ("gpt", "answer"), ("human", "two"), ("gpt", "answer"), ("human", "three"), ("gpt", "x")]
    path.write_text(json.dumps([{"conversations": [{"from": who, "value": text} for who, text in said]}]))
    (job,) = jobs_of(Workload.model_validate({"dataset": str(path), "turns": 2}), requests=2)
    assert [turn["prompt"] for turn in job["turns"]] == [
        {"messages": [{"role": "user", "content": "one"}]},
        {"text": "two"},
    ]
