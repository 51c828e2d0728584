"""``autotune bench``: the load generator alone, against any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from autotune.base.clock import WallClock
from autotune.base.errors import EnvironmentProblemError, ExitCode, UsageError
from autotune.base.units import parse_duration, parse_rate
from autotune.cli._bench_display import BenchDisplay
from autotune.cli._bench_output import document_of, print_levels, write_requests_csv
from autotune.cli.console import print_json
from autotune.cli.definition import StudyOptions, build_slo, build_workload
from autotune.load import HttpLoadGenerator, warm_up
from autotune.load.preflight import inspect_server
from autotune.load.sweep import LevelResult, Sending, find_capacity, run_levels
from autotune.spec import Endpoint, LoadLevel, Metric, Slo, Workload
from autotune.spec.study import validated
from autotune.stats import CapacityEstimate

EXAMPLES = """
Examples:

  autotune bench --url http://127.0.0.1:8000 --rate 5 --requests 300 --slo-p99 2s

  autotune bench --model qwen3-4b --rate 1 --rate 2 --rate 4 --workload rag --csv requests.csv

  autotune bench --concurrency 16 --endpoint chat --input-tokens 512 --output-tokens 64:192 --json

  autotune bench --dataset mooncake.jsonl --replay --duration 10m

  autotune bench --capacity --slo-ttft-p99 500ms --slo-tpot-p99 25ms
"""

_TIMEOUT_FLOOR_S = 600.0


@dataclass(frozen=True, slots=True)
class _Order:
    """Everything that was asked for."""

    url: str
    model: str | None
    levels: tuple[LoadLevel, ...]
    capacity: bool
    sending: Sending
    warm_up: int
    processes: int
    api_key: str | None


@dataclass(slots=True)
class _Outcome:
    """What came of it, as far as it got."""

    model: str
    results: list[LevelResult]
    capacity: CapacityEstimate | None = None
    interrupted: bool = False


def bench(
    url: Annotated[str, typer.Option(help="Server, without a path.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Model name. [default: the only one that the server offers]")
    ] = None,
    endpoint: Annotated[Endpoint | None, typer.Option(help="Which endpoint answers. [default: the workload's]")] = None,
    rate: Annotated[
        list[str] | None, typer.Option(help="Open loop: requests per second; several make a sweep (repeat, or 1,2,4).")
    ] = None,
    concurrency: Annotated[
        list[str] | None, typer.Option(help="Closed loop: requests at once; several make a sweep (repeat, or 1,8,64).")
    ] = None,
    capacity: Annotated[bool, typer.Option("--capacity", help="Search the highest rate that meets the SLO.")] = False,
    requests: Annotated[
        int | None, typer.Option(help="Requests per level. [default: 300, or as many as --duration takes]")
    ] = None,
    duration: Annotated[str | None, typer.Option(help="Time of sending per level, e.g. 60s.")] = None,
    workload: Annotated[str | None, typer.Option(help="Named workload or a YAML file. [default: chat]")] = None,
    input_tokens: Annotated[str | None, typer.Option(help="Prompt length: 512, or 256:768 for uniform.")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Answer length: 256, or 128:384 for uniform.")] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Prompts (JSONL, ShareGPT) or a trace (Mooncake, BurstGPT, Azure).")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Send the dataset's requests in the pattern of its times.")
    ] = False,
    burstiness: Annotated[
        float | None, typer.Option(min=0.01, help="Gaps between arrivals: 1 Poisson, below burstier, inf constant.")
    ] = None,
    ramp: Annotated[str | None, typer.Option(help="Let the rate grow to its full value within this time.")] = None,
    shared_prefix: Annotated[
        str | None, typer.Option(help="Tokens that prompts share: 1024, or 1024x8 for 8 different beginnings.")
    ] = None,
    turns: Annotated[str | None, typer.Option(help="Turns of a conversation: 4, or 2:6.")] = None,
    think_time: Annotated[
        str | None, typer.Option(help="Mean time between an answer and the user's next request.")
    ] = None,
    slo_p99: Annotated[str | None, typer.Option("--slo-p99", help="Limit on the P99 latency, e.g. 10s.")] = None,
    slo_ttft_p99: Annotated[
        str | None, typer.Option("--slo-ttft-p99", help="Limit on the P99 time to first token, e.g. 500ms.")
    ] = None,
    slo_tpot_p99: Annotated[
        str | None, typer.Option("--slo-tpot-p99", help="Limit on the P99 time per output token, e.g. 25ms.")
    ] = None,
    warm_up_requests: Annotated[
        int, typer.Option("--warm-up", min=0, help="Requests sent before, never measured.")
    ] = 16,
    request_timeout: Annotated[
        str | None, typer.Option(help="When a request is given up. [default: 10m, or 5 times the SLO]")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of prompts and arrivals.")] = 0,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Client processes; one sends 25,000 chunks/s.")] = 1,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write one line per request to this file.")] = None,
    time_scale: Annotated[
        float, typer.Option(min=0.01, help="Clock of a simulated engine: its seconds per second.")
    ] = 1.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Send load to any OpenAI-compatible server: one level, a sweep of levels, or a search for the capacity."""
    options = StudyOptions(
        slo_p99=slo_p99,
        slo_ttft_p99=slo_ttft_p99,
        slo_tpot_p99=slo_tpot_p99,
        workload=workload,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )
    changes: dict[str, object] = {
        "endpoint": endpoint,
        "dataset": None if dataset is None else {"path": dataset, "replay": replay},
        "burstiness": burstiness,
        "ramp": None if ramp is None else {"seconds": ramp},
        "shared_prefix": None if shared_prefix is None else _shared_prefix(shared_prefix),
        "turns": turns,
        "think_time": think_time,
    }
    traffic = _traffic(options, {key: value for key, value in changes.items() if value is not None})
    if replay and traffic.dataset is None:
        raise UsageError("--replay needs a trace.", "Add --dataset FILE.")
    slo = build_slo(options) if slo_p99 or slo_ttft_p99 or slo_tpot_p99 else None
    levels = _levels(rate or [], concurrency or [], traffic, capacity=capacity)
    if capacity and slo is None:
        raise UsageError("--capacity needs an objective.", "Add one, e.g. --slo-p99 10s.")
    if requests is not None and requests < 1:
        raise UsageError(f"--requests: {requests} must be at least 1.", "Write e.g. --requests 300.")
    order = _Order(
        url=_base_url(url),
        model=model,
        levels=levels,
        capacity=capacity,
        sending=Sending(
            workload=traffic,
            seed=seed,
            requests=requests,
            duration=None if duration is None else parse_duration(duration, "--duration"),
            request_timeout=_timeout(request_timeout, slo, traffic),
            slo=slo,
            scale=time_scale,
        ),
        warm_up=warm_up_requests,
        processes=processes,
        api_key=_api_key(api_key_env),
    )
    if csv is not None:
        _check_writable(csv)
    with BenchDisplay() as display:
        outcome = asyncio.run(_bench(order, display))
    if csv is not None:
        write_requests_csv(csv, outcome.results)
    if json_output:
        print_json(document_of(order.url, outcome.model, order.sending, outcome.results, outcome.capacity))
    else:
        print_levels(outcome.results, slo, outcome.capacity)
    if outcome.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
    failed = [result.summary for result in outcome.results if result.summary.failed]
    if failed and not any(result.summary.succeeded for result in outcome.results):
        reason = failed[0].errors[0].example.rstrip(".")
        raise EnvironmentProblemError(f"{order.url}: no request succeeded: {reason}.", "See the server's log.")


async def _bench(order: _Order, display: BenchDisplay) -> _Outcome:
    sending = order.sending
    target = await inspect_server(order.url, order.model, sending.workload.endpoint, api_key=order.api_key)
    outcome = _Outcome(target.model, [])
    with _interrupts(display):
        async with HttpLoadGenerator(target, WallClock(sending.scale), processes=order.processes) as generator:
            first_guess = 1.0
            if order.warm_up:
                display.say(f"Warming up {target.model} with {order.warm_up} requests.")
                warm = await warm_up(
                    generator,
                    sending.workload,
                    seed=sending.seed,
                    requests=order.warm_up,
                    request_timeout=sending.request_timeout,
                )
                answered = [r for r in warm.records if r.succeeded]
                if warm.records and not answered:
                    reason = warm.records[0].detail.rstrip(".")
                    raise EnvironmentProblemError(
                        f"{order.url}: no warm-up request succeeded: {reason}.", "See the server's log."
                    )
                first_guess = len(answered) / (warm.ended - warm.started) if answered else first_guess
            if order.capacity and sending.slo is not None:
                outcome.capacity, outcome.results = await find_capacity(
                    generator, first_guess, sending, sending.slo, display
                )
            else:
                async for result in run_levels(generator, order.levels, sending, display):
                    outcome.results.append(result)
    outcome.interrupted = display.interrupted
    return outcome


@contextlib.contextmanager
def _interrupts(display: BenchDisplay) -> Iterator[None]:
    """The first Ctrl-C ends the level, so that what was measured is shown; the second ends everything."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def interrupted() -> None:
        if display.interrupted and task is not None:
            task.cancel()
        display.interrupted = True

    loop.add_signal_handler(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _traffic(options: StudyOptions, changes: dict[str, object]) -> Workload:
    """The workload with what the command line changes of it."""
    if "dataset" in changes:
        if options.workload is not None or options.input_tokens is not None:
            raise UsageError("--dataset brings its own prompts.", "Leave --workload and --input-tokens out.")
        dataset = {**cast("dict[str, object]", changes["dataset"]), "output_tokens": options.output_tokens}
        return validated(Workload, {**changes, "dataset": dataset})
    workload = build_workload(options)
    if not changes:
        return workload
    return validated(Workload, {**workload.model_dump(), "name": "custom", "description": "", **changes})


def _shared_prefix(text: str) -> dict[str, int]:
    tokens, _, groups = text.partition("x")
    return {"tokens": _whole(tokens, "--shared-prefix"), "groups": _whole(groups or "1", "--shared-prefix")}


def _levels(rates: list[str], concurrencies: list[str], workload: Workload, *, capacity: bool) -> tuple[LoadLevel, ...]:
    """The levels of a sweep, in the order given."""
    given = [part for text in rates for part in text.split(",")], [p for text in concurrencies for p in text.split(",")]
    if given[0] and given[1]:
        raise UsageError("--rate and --concurrency: a level has one of them.", "Give one kind only.")
    if capacity and (given[0] or given[1]):
        raise UsageError("--capacity chooses the rates itself.", "Leave --rate and --concurrency out.")
    if not (capacity or given[0] or given[1]) and workload.dataset is not None and workload.dataset.replay:
        return (LoadLevel.open(workload.dataset.load().rate),)
    if not (capacity or given[0] or given[1]):
        raise UsageError("no load is given.", "Add --rate 5, --concurrency 16, or --capacity with an SLO.")
    return tuple(
        [LoadLevel.open(parse_rate(text, "--rate")) for text in given[0]]
        + [LoadLevel.closed(_whole(text, "--concurrency")) for text in given[1]]
    )


def _whole(text: str, name: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"{name}: '{text}' is not a whole number above zero.", f"Write e.g. {name} 16.")
    return number


def _base_url(url: str) -> str:
    """Without a trailing slash or the ``/v1`` that other tools want."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise UsageError(
            f"--url: '{url}' does not begin with http:// or https://.", "Write e.g. http://127.0.0.1:8000."
        )
    return base


def _timeout(text: str | None, slo: Slo | None, workload: Workload) -> float:
    if text is not None:
        return parse_duration(text, "--request-timeout")
    longest = workload.output_tokens.high
    limits = [t.limit_s * (longest if t.metric is Metric.TPOT else 1) for t in slo.targets] if slo is not None else []
    return max([_TIMEOUT_FLOOR_S, *(5 * limit for limit in limits)])


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UsageError(f"--api-key-env: the environment has no {variable}.", "Export it, or name another variable.")
    return key


def _check_writable(path: Path) -> None:
    """Find out before the load, not after it."""
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise UsageError(f"--csv: {path} cannot be written.", "Name a file in a folder that exists.")
