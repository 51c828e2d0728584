"""The load generator against the golden server: counts, times, schedules, failures, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from autotune.base.clock import WallClock
from autotune.base.errors import EnvironmentProblemError
from autotune.load import (
    ErrorKind,
    HttpLoadGenerator,
    LoadPlan,
    LoadProgress,
    LoadRun,
    Target,
    TokenSource,
    order_statistic,
    summarise,
    warm_up,
)
from autotune.load._body import token_ids
from autotune.load._jobs import plan_jobs
from autotune.spec import Endpoint, LoadLevel, Slo, Workload

if TYPE_CHECKING:
    from conftest import Golden

WORKLOAD = Workload(input_tokens="16:48", output_tokens="8:24")


def plan(level: LoadLevel, requests: int, **changes: object) -> LoadPlan:
    values: dict[str, object] = {
        "level": level,
        "workload": WORKLOAD,
        "seed": 1,
        "stream": "test",
        "max_requests": requests,
        "max_duration": 60.0,
        "request_timeout": 30.0,
    }
    return LoadPlan(**(values | changes))  # type: ignore[arg-type]


async def send(target: Target, order: LoadPlan, *, scale: float = 1.0, processes: int = 1) -> LoadRun:
    async with HttpLoadGenerator(target, WallClock(scale), processes=processes) as generator:
        return await generator.run(order)


def keys(order: LoadPlan, vocabulary: int) -> dict[tuple[int, ...], int]:
    """The first token ids of each request of a plan."""
    turns = (job["turns"][0] for job in plan_jobs(order, 1.0))
    return {tuple(token_ids(turn["prompt"]["tokens"], vocabulary)[:4]): turn["index"] for turn in turns}


@pytest.mark.parametrize("level", [LoadLevel.open(40), LoadLevel.closed(12)], ids=str)
@pytest.mark.parametrize("processes", [1, 2])
async def test_counts_and_times_are_those_of_the_server(golden: Golden, level: LoadLevel, processes: int) -> None:
    golden.record()
    order = plan(level, 60)
    run = await send(golden.target(), order, processes=processes)
    truth = {keys(order, 32_000)[tuple(entry[5])]: entry for entry in golden.record()}
    assert [record.index for record in sorted(run.records, key=lambda r: r.index)] == list(range(60))
    delays = []
    for record in run.records:
        arrived, sent, _, prompt_tokens, output_tokens, _ = truth[record.index]
        assert record.succeeded
        assert record.input_tokens == prompt_tokens
        assert (record.output_tokens, record.token_source) == (output_tokens, TokenSource.USAGE)
        assert record.finish_reason == "length"
        assert record.first_token is not None
        assert record.last_token is not None
        assert run.started <= record.scheduled <= record.sent <= arrived
        delays += [record.first_token - sent[0], record.last_token - sent[-1]]
    assert min(delays) >= 0
    assert float(np.median(delays)) < 0.001


@pytest.mark.parametrize(("rate", "requests"), [(8.0, 60), (60.0, 300)], ids=["low", "high"])
async def test_latencies_agree_with_the_servers_record(slow_golden: Golden, rate: float, requests: int) -> None:
    """Within 1 ms or 1 % at the median and 2 % at P99 of what the server noted when it sent.

    Where this machine kept the client from running, the client must say so, and the try does not count.
    """
    workload = Workload(input_tokens=32, output_tokens="20:40")
    for attempt in range(5):
        slow_golden.record()
        order = plan(LoadLevel.open(rate), requests, workload=workload, seed=attempt)
        run = await send(slow_golden.target(), order)
        truth = {keys(order, 32_000)[tuple(entry[5])]: entry for entry in slow_golden.record()}
        pairs = [(record, truth[record.index]) for record in run.records]
        ours = {
            "ttft": [r.first_token - r.sent for r, _ in pairs if r.first_token is not None],
            "tpot": [r.tpot for r, _ in pairs if r.tpot is not None],
            "itl": list(run.gaps),
            "e2e": [r.finished - r.sent for r, _ in pairs],
        }
        theirs = {
            "ttft": [sent[0] - r.sent for r, (_, sent, *_) in pairs],
            "tpot": [(sent[-1] - sent[0]) / (len(sent) - 1) for _, (_, sent, *_) in pairs],
            "itl": [gap for _, (_, sent, *_) in pairs for gap in np.diff(sent)],
            "e2e": [ended - r.sent for r, (_, _, ended, *_) in pairs],
        }
        problems = [
            f"{name} p{percentile}: {got:.6f} is not {want:.6f}"
            for name in ours
            for percentile, share in ((50, 0.01), (99, 0.02))
            for got, want in [(order_statistic(ours[name], percentile), order_statistic(theirs[name], percentile))]
            if abs(got - want) > max(0.001, share * want)
        ]
        if not problems:
            return
        assert run.client.problem(0.3) is not None, problems
    pytest.skip("this machine is too busy to measure on")


async def test_a_scaled_clock_stretches_every_time(golden: Golden) -> None:
    golden.record()
    order = plan(LoadLevel.open(4.0), 30)
    run = await send(golden.target(), order, scale=10.0)
    truth = {keys(order, 32_000)[tuple(entry[5])]: entry for entry in golden.record()}
    planned = {job["turns"][0]["index"]: job["at"] for job in plan_jobs(order, 1.0)}
    for record in run.records:
        assert record.scheduled - run.started == pytest.approx(planned[record.index])
        assert record.tpot is not None
        sent = truth[record.index][1]
        assert record.last_token is not None
        assert record.last_token >= sent[-1] * 10.0
    spans = [r.last_token - r.first_token for r in run.records if r.last_token and r.first_token]
    assert sum(run.gaps) == pytest.approx(sum(spans), rel=1e-3)


async def test_the_chat_endpoint(golden: Golden) -> None:
    workload = Workload(endpoint=Endpoint.CHAT, input_tokens=20, output_tokens=6)
    run = await send(golden.target(), plan(LoadLevel.closed(2), 4, workload=workload))
    assert [(r.succeeded, r.output_tokens, r.chunks) for r in run.records] == [(True, 6, 6)] * 4


async def test_a_conversation_sends_what_was_said_before_and_waits(golden: Golden) -> None:
    workload = Workload(endpoint=Endpoint.CHAT, input_tokens=5, output_tokens=4, turns=3, think_time=0.02)
    for level in (LoadLevel.closed(2), LoadLevel.open(30)):
        golden.record()
        run = await send(golden.target(), plan(level, 6, workload=workload))
        assert all(record.succeeded for record in run.records)
        by_index = sorted(run.records, key=lambda record: record.index)
        for first, second, third in (by_index[:3], by_index[3:]):
            assert first.input_tokens < second.input_tokens < third.input_tokens
            assert second.scheduled >= first.finished
            assert third.scheduled >= second.finished
        assert len(golden.record()) == 6


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("status-500", ErrorKind.HTTP_STATUS, "HTTP 500: the server says status-500"),
        ("status-401", ErrorKind.HTTP_STATUS, "HTTP 401"),
        ("unknown", ErrorKind.WRONG_MODEL, "The model `unknown` does not exist."),
        ("drop", ErrorKind.BROKEN_STREAM, "before the answer was whole"),
        ("error", ErrorKind.STREAM_ERROR, "EngineCore died"),
        ("garbage", ErrorKind.BROKEN_STREAM, "OPENROUTER"),
        ("abort", ErrorKind.ABORTED_BY_SERVER, "abort"),
        ("lone-done", ErrorKind.BROKEN_STREAM, "before the first token"),
        ("json", ErrorKind.BROKEN_STREAM, "not an event stream but 'application/json'"),
    ],
)
async def test_failures_are_records_with_kind_and_reason(
    golden: Golden, model: str, kind: ErrorKind, words: str
) -> None:
    run = await send(golden.target(model), plan(LoadLevel.closed(3), 6))
    summary = summarise(run, Slo.from_mapping({"p99_latency": "60s"}))
    assert {record.error for record in run.records} == {kind}
    assert words in run.records[0].detail
    assert (summary.failed, summary.output_tokens, summary.slo_held) == (6, 0, False)
    assert [(group.kind, group.count) for group in summary.errors] == [(kind, 6)]


async def test_a_server_that_is_not_there_is_a_connect_failure() -> None:
    run = await send(Target("http://127.0.0.1:9", "m", 100), plan(LoadLevel.closed(1), 2))
    assert {record.error for record in run.records} == {ErrorKind.CONNECT}
    assert "connection refused" in run.records[0].detail


async def test_a_request_that_takes_too_long_times_out_from_its_scheduled_arrival(golden: Golden) -> None:
    run = await send(golden.target("hang"), plan(LoadLevel.closed(2), 2, request_timeout=0.3))
    for record in run.records:
        assert record.error is ErrorKind.TIMEOUT
        assert record.latency >= 0.3


async def test_a_server_without_usage_gives_an_estimate(golden: Golden) -> None:
    run = await send(golden.target("no-usage"), plan(LoadLevel.closed(2), 4))
    assert {record.token_source for record in run.records} == {TokenSource.ESTIMATE}
    assert summarise(run).tokens_estimated


async def test_an_api_key_is_sent_and_never_reported(golden: Golden) -> None:
    right = Target(golden.url, "golden", 100, api_key="right")
    assert (await send(right, plan(LoadLevel.closed(1), 1))).records[0].succeeded
    wrong = Target(golden.url, "golden", 100, api_key="Incorrect")
    (record,) = (await send(wrong, plan(LoadLevel.closed(1), 1))).records
    assert (record.error, record.http_status) == (ErrorKind.HTTP_STATUS, 401)
    assert record.detail == "HTTP 401: *** API key"
    assert "Incorrect" not in repr(wrong)


class StopAfter:
    """Ends a run at a number of answers and remembers what it saw."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.seen: list[LoadProgress] = []

    def observe(self, progress: LoadProgress) -> bool:
        self.seen.append(progress)
        assert list(progress.in_flight) == sorted(progress.in_flight)
        assert progress.sent == len(progress.finished) + len(progress.in_flight)
        return len(progress.finished) >= self.answers


async def test_the_observer_ends_a_run_at_once(golden: Golden) -> None:
    observer = StopAfter(20)
    order = plan(LoadLevel.open(60), 100_000, max_duration=1e6)
    async with HttpLoadGenerator(golden.target(), WallClock(), processes=2) as generator:
        run = await generator.run(order, observer)
        assert run.ended_by_observer
        cancelled = [record for record in run.records if record.error is ErrorKind.CANCELLED]
        summary = summarise(run)
        assert summary.cancelled == len(cancelled)
        assert summary.failed == 0
        assert summary.requests >= 20
        again = await generator.run(plan(LoadLevel.closed(2), 4))
        assert [record.succeeded for record in again.records] == [True] * 4


async def test_cancelling_a_run_stops_sending_and_leaves_the_generator_usable(golden: Golden) -> None:
    async with HttpLoadGenerator(golden.target(), WallClock()) as generator:
        running = asyncio.create_task(generator.run(plan(LoadLevel.open(50), 100_000)))
        await asyncio.sleep(0.4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        run = await generator.run(plan(LoadLevel.closed(1), 3))
        await asyncio.sleep(0.3)
        assert sum(arrived >= run.started for arrived, *_ in golden.record()) == len(run.records) == 3


async def test_an_observer_that_fails_ends_the_run_and_the_sending(golden: Golden) -> None:
    class Broken:
        def observe(self, progress: LoadProgress) -> bool:
            raise ZeroDivisionError

    async with HttpLoadGenerator(golden.target(), WallClock()) as generator:
        with pytest.raises(ZeroDivisionError):
            await generator.run(plan(LoadLevel.open(50), 100_000), Broken())
        run = await generator.run(plan(LoadLevel.closed(1), 2))
        await asyncio.sleep(0.3)
        assert sum(arrived >= run.started for arrived, *_ in golden.record()) == len(run.records) == 2


async def test_a_run_that_is_ended_while_jobs_are_on_their_way_ends(golden: Golden) -> None:
    workload = Workload(input_tokens=4, output_tokens=1)
    async with HttpLoadGenerator(golden.target(), WallClock()) as generator:
        for answers in (1400, 1500, 1600):
            order = plan(LoadLevel.closed(150), 10**6, workload=workload, max_duration=1e6)
            run = await asyncio.wait_for(generator.run(order, StopAfter(answers)), 60)
            assert run.ended_by_observer


async def test_a_run_sends_for_its_duration_and_then_waits_for_the_answers(golden: Golden) -> None:
    for level in (LoadLevel.open(100), LoadLevel.closed(4)):
        run = await send(golden.target(), plan(level, 100_000, max_duration=0.5))
        assert all(record.scheduled <= run.started + 0.5 for record in run.records)
        assert all(record.succeeded for record in run.records)
        assert len(run.records) > 4


async def test_more_requests_than_one_page_come_in_order(golden: Golden) -> None:
    workload = Workload(input_tokens=4, output_tokens=1)
    run = await send(golden.target(), plan(LoadLevel.closed(200), 4500, workload=workload), processes=2)
    assert sorted(record.index for record in run.records) == list(range(4500))
    assert all(record.succeeded for record in run.records)


async def test_warm_up_uses_prompts_of_its_own(golden: Golden) -> None:
    order = plan(LoadLevel.closed(2), 50)
    async with HttpLoadGenerator(golden.target(), WallClock()) as generator:
        golden.record()
        run = await warm_up(generator, WORKLOAD, seed=1, requests=10)
    assert len(run.records) == 10
    assert not {tuple(entry[5]) for entry in golden.record()} & set(keys(order, 32_000))


async def test_a_lost_worker_ends_the_run_with_one_clear_error(golden: Golden) -> None:
    async with HttpLoadGenerator(golden.target(), WallClock()) as generator:
        running = asyncio.create_task(generator.run(plan(LoadLevel.open(20), 100_000)))
        await asyncio.sleep(0.3)
        (worker,) = workers_of(os.getpid())
        worker.kill()
        with pytest.raises(EnvironmentProblemError, match="load worker ended"):
            await asyncio.wait_for(running, 20)


def workers_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if "autotune.load._worker" in child.cmdline()]


def test_workers_end_with_a_parent_that_is_killed(golden: Golden, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from autotune.base.clock import WallClock
            from autotune.load import *
            from autotune.spec import LoadLevel, Workload
            async def main():
                async with HttpLoadGenerator(Target({golden.url!r}, "golden", 1000), WallClock(), processes=2) as g:
                    print("open", flush=True)
                    workload = Workload(input_tokens=8, output_tokens=50)
                    await g.run(LoadPlan(LoadLevel.open(20), workload, 1, "s", 10**6, 1e6, 60))
            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "open\n"
    workers = workers_of(parent.pid)
    assert len(workers) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
