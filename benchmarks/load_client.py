"""What a streamed chunk costs the client, and how exact its figures are, side by side with others.

    python benchmarks/load_client.py [--json] [--vllm COMMAND --guidellm COMMAND --tokenizer FOLDER]

1. CPU per chunk at 256 concurrent streams, with connections open and code warm: our load generator, aiohttp,
   httpx-aiohttp, plain httpx, and our transport under httpx's own streaming interface, in turn, several rounds; the
   median of the rounds' ratios counts.
2. 50,000 chunks a second from a cheap server for some seconds: are they all received, and is the schedule kept?
3. As whole tools (when their commands are given): ``vllm bench serve`` and GuideLLM against ``autotune bench``.

The server is ``tests/load/golden_server.py``, which records when it sent what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from _load_golden import Golden, golden_server
from _load_tools import Autotune, GuideLlm, Load, Tool, VllmBench, compare_tools

from autotune.base.clock import WallClock
from autotune.load import HttpLoadGenerator, LoadPlan, LoadRun, Target, order_statistic
from autotune.spec import LoadLevel, Workload

PEERS = ("aiohttp", "httpx-aiohttp", "stream-transport", "httpx")
CONCURRENCY, ANSWER = 256, 128
RATE_TOKENS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=512, help="per client and round")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the 50,000 chunks a second")
    parser.add_argument("--processes", type=int, default=2, help="client processes there")
    parser.add_argument("--vllm", help="command of vllm, e.g. /env/bin/vllm")
    parser.add_argument("--guidellm", help="command of guidellm, e.g. /env/bin/guidellm")
    parser.add_argument("--tokenizer", type=Path, help="model folder whose tokenizer those two use")
    parser.add_argument("--tool-requests", type=int, default=1000)
    parser.add_argument("--only", choices=["cost", "throughput", "tools"])
    options = parser.parse_args()
    say = (lambda *_: None) if options.json else print
    document: dict[str, Any] = {"load_average": os.getloadavg()[0], "goals": []}
    if options.only in (None, "cost"):
        document["cost"] = cost_of_clients(options.rounds, options.requests, say)
        document["goals"] += cost_goals(document["cost"])
    if options.only in (None, "throughput"):
        document["throughput"] = throughput(options.seconds, options.processes)
        document["goals"] += throughput_goals(document["throughput"])
    if options.only in (None, "tools"):
        document["tools"] = whole_tools(options, say)
        document["goals"] += tool_goals(document["tools"])
    if options.json:
        print(json.dumps(document, indent=1))
        return
    for goal in document["goals"]:
        print(f"{'met ' if goal['met'] else 'MISSED'} {goal['name']}: {goal['value']:.4g} (goal {goal['goal']})")


def cost_of_clients(rounds: int, requests: int, say: Any) -> dict[str, Any]:
    """CPU microseconds per chunk of each client, round by round."""
    costs: dict[str, list[float]] = {name: [] for name in ("autotune", *PEERS)}
    with golden_server(first=0.05, gap=0.08) as golden:
        for number in range(rounds):
            for name, measured in costs.items():
                result = _ours(golden, requests) if name == "autotune" else _peer(name, golden, requests)
                measured.append(result["cpu_s"] / result["chunks"] * 1e6)
                say(f"round {number + 1}: {name:17} {measured[-1]:7.1f} us/chunk, {result['wall_s']:.2f} s")
    ratios = {
        name: statistics.median(ours / theirs for ours, theirs in zip(costs["autotune"], costs[name], strict=True))
        for name in PEERS
    }
    medians = {name: statistics.median(values) for name, values in costs.items()}
    for name, ratio in ratios.items():
        say(f"autotune / {name} = {ratio:.3f}  ({medians['autotune']:.1f} / {medians[name]:.1f} us per chunk)")
    return {"us_per_chunk": costs, "median_us_per_chunk": medians, "ratio": ratios}


def cost_goals(cost: dict[str, Any]) -> list[dict[str, Any]]:
    goals = (("aiohttp", 1 / 3), ("httpx", 1 / 10))
    return [
        {"name": f"CPU per chunk / {name}", "value": ratio, "goal": f"<= {goal:.3f}", "met": ratio <= goal}
        for name, goal in goals
        for ratio in [cost["ratio"][name]]
    ]


def _peer(name: str, golden: Golden, requests: int) -> dict[str, Any]:
    command = [
        sys.executable, str(Path(__file__).with_name("_load_peers.py")), name, f"{golden.url}/v1/completions",
        str(CONCURRENCY), str(requests), str(ANSWER),
    ]  # fmt: skip
    result: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)
    return result


def _ours(golden: Golden, requests: int) -> dict[str, Any]:
    run = asyncio.run(_send(golden, LoadLevel.closed(CONCURRENCY), requests, ANSWER, 128, 1))
    assert all(record.succeeded for record in run.records)
    chunks = sum(record.chunks for record in run.records)
    return {"cpu_s": run.client.cpu_seconds, "chunks": chunks, "wall_s": run.ended - run.started}


async def _send(golden: Golden, level: LoadLevel, requests: int, tokens: int, inputs: int, processes: int) -> LoadRun:
    """One run, after connections were opened and code is warm."""
    workload = Workload(input_tokens=inputs, output_tokens=tokens)
    plan = LoadPlan(level, workload, 1, "benchmark", requests, math.inf, 300.0)
    short = Workload(input_tokens=inputs, output_tokens=2)
    opening = LoadPlan(LoadLevel.closed(CONCURRENCY), short, 1, "warm-up", CONCURRENCY, math.inf, 300.0)
    async with HttpLoadGenerator(Target(golden.url, "golden", 30_000), WallClock(), processes=processes) as generator:
        await generator.run(opening)
        golden.record()
        return await generator.run(plan)


def throughput(seconds: float, processes: int) -> dict[str, Any]:
    """Offer 50,000 chunks a second: answers of 100 tokens, 40 ms apart, 500 a second."""
    rate = 50_000 / RATE_TOKENS
    with golden_server(first=0.04, gap=0.04, spread=0.0) as golden:
        before = golden.cpu()
        level = LoadLevel.open(rate)
        run = asyncio.run(_send(golden, level, int(rate * (seconds + 4)), RATE_TOKENS, 16, processes))
        server_cpu = golden.cpu() - before
        record = golden.record()
    begin, end = run.started + 4.0, run.started + 4.0 + seconds
    sent = sum(begin <= time < end for _, times, *_ in record for time in times)
    slips = [record.sent - record.scheduled for record in run.records]
    chunks = sum(record.chunks for record in run.records)
    wall = run.ended - run.started
    return {
        "offered_per_s": 50_000,
        "sent_by_server_per_s": sent / seconds,
        "received_share": chunks / max(1, sum(len(times) for _, times, *_ in record)),
        "failed": sum(not record.succeeded for record in run.records),
        "slip_p50_s": order_statistic(slips, 50),
        "slip_p99_s": order_statistic(slips, 99),
        "client_cpu_us_per_chunk": 1e6 * run.client.cpu_seconds / chunks,
        "client_cores": run.client.cpu_seconds / wall,
        "server_cores": server_cpu / wall,
        "processes": processes,
    }


def throughput_goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    rate, slip = result["sent_by_server_per_s"], result["slip_p99_s"]
    whole = result["received_share"] == 1.0 and not result["failed"]
    return [
        {"name": "chunks per second on 2 cores, server included", "value": rate, "goal": ">= 49000",
         "met": rate >= 49_000 and whole},
        {"name": "P99 of the slip there, seconds", "value": slip, "goal": "<= 0.02", "met": slip <= 0.02},
    ]  # fmt: skip


def whole_tools(options: argparse.Namespace, say: Any) -> list[dict[str, Any]]:
    tools: list[Tool] = [Autotune()]
    for command, kind in ((options.vllm, VllmBench), (options.guidellm, GuideLlm)):
        if command is None or options.tokenizer is None:
            say(f"{kind.name}: skipped, as its command or --tokenizer is not given")
        else:
            tools.append(kind(command, options.tokenizer))
    with golden_server(first=0.2, gap=0.02) as golden:
        results = compare_tools(tools, golden, Load(28.0, options.tool_requests, 128, 64))
    for result in results:
        if "error" in result:
            say(f"{result['tool']}: failed: {result['error']}")
        else:
            errors = ", ".join(f"{key} {error:+.1%}" for key, error in result["p99_error"].items())
            say(
                f"{result['tool']:17} {result['cpu_s_per_10k_chunks']:6.3f} CPU s per 10,000 chunks "
                f"({result['cpu_s_per_10k_chunks_with_start']:.3f} with its start); error of its P99: {errors}"
            )
    return results


def tool_goals(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {result["tool"]: result for result in results if "error" not in result}
    ours = known.pop("autotune bench", None)
    if ours is None:
        return []
    goals = [
        {"name": f"CPU per chunk / {name}, whole tools", "value": value, "goal": "< 1", "met": value < 1}
        for name, result in known.items()
        for value in [ours["cpu_s_per_10k_chunks"] / result["cpu_s_per_10k_chunks"]]
    ]
    worst = max(abs(error) for error in ours["p99_error"].values())
    return [*goals, {"name": "largest error of our P99s", "value": worst, "goal": "<= 0.02", "met": worst <= 0.02}]


if __name__ == "__main__":
    main()
