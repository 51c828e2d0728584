"""Time from the stop of one engine to the readiness of the next, on a real vLLM: forked and plain, in the same run.

Usage: python benchmarks/turnaround.py --vllm-command PYTHON_OR_VLLM [--model FOLDER] [--rounds 3] [--json]

Without a model a tiny one is made, which the CPU build of vLLM serves (set VLLM_CPU_OMP_THREADS_BIND=nobind there). The
two ways alternate, so that a machine that gets slower or faster meanwhile harms neither.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import httpx

from autotune.engine import LaunchRequest, RunningEngine, VllmEngine, detect_vllm

GOAL = 0.6
"""The forked turnaround may take this share of the plain one."""
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
REQUESTS, CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS = 64, 8, 128, 64
DEADLINE_S = 900.0


def tiny_model(folder: Path) -> Path:
    """Write the tests' tiny model."""
    path = Path(__file__).resolve().parents[1] / "tests" / "tiny_model.py"
    spec = importlib.util.spec_from_file_location("tiny_model", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: Path = module.write_tiny_model(folder)
    return written


async def tokens_per_second(engine: RunningEngine) -> float:
    """Output tokens a second of a short closed loop, as a check that both ways give the same engine."""
    gate = asyncio.Semaphore(CONCURRENCY)

    async def one(client: httpx.AsyncClient, number: int) -> int:
        prompt = [(number * 7 + position * 13) % 1500 + 1 for position in range(INPUT_TOKENS)]
        body = {
            "model": engine.served_model,
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
        }
        async with gate:
            answer = await client.post("/v1/completions", json=body)
        return int(answer.json()["usage"]["completion_tokens"])

    async with httpx.AsyncClient(base_url=engine.url, timeout=300, trust_env=False) as client:
        await asyncio.gather(*(one(client, number) for number in range(CONCURRENCY)))
        began = time.monotonic()
        counts = await asyncio.gather(*(one(client, number) for number in range(REQUESTS)))
        return sum(counts) / (time.monotonic() - began)


class Way:
    """One way to start engines, and what it took."""

    def __init__(
        self, name: str, engine: VllmEngine, model: Path, folder: Path, arguments: dict[str, bool | str]
    ) -> None:
        self.name = name
        self.engine = engine
        self.starts: list[float] = []
        self.turnarounds: list[float] = []
        self.stops: list[float] = []
        self.rates: list[float] = []
        self._request = LaunchRequest(str(model), arguments, folder, DEADLINE_S)

    async def round(self) -> None:
        """Start an engine, load it, stop it and start the next; stop that one, too."""
        began = time.monotonic()
        running = await self.engine.start(self._request)
        self.starts.append(time.monotonic() - began)
        try:
            self.rates.append(await tokens_per_second(running))
            began = time.monotonic()
            await running.stop()
            self.stops.append(time.monotonic() - began)
            running = await self.engine.start(self._request)
            self.turnarounds.append(time.monotonic() - began)
        finally:
            await running.stop()

    def figures(self) -> dict[str, object]:
        """What was measured, seconds and output tokens a second."""
        return {
            "start_s": [round(value, 2) for value in self.starts],
            "turnaround_s": [round(value, 2) for value in self.turnarounds],
            "median_turnaround_s": round(statistics.median(self.turnarounds), 2),
            "median_stop_s": round(statistics.median(self.stops), 2),
            "output_tokens_per_s": [round(value, 1) for value in self.rates],
        }


async def measure(command: str, model: Path | None, rounds: int, *, eager: bool) -> dict[str, object]:
    """Alternate between the two ways; one engine runs at a time."""
    installation = detect_vllm(command)
    environment = {} if not installation.on_cpu else {**CPU_ENVIRONMENT, **_given(CPU_ENVIRONMENT)}
    arguments: dict[str, bool | str] = {"load-format": "dummy"}
    if eager:
        arguments["enforce-eager"] = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = model or tiny_model(folder / "tiny")
        ways = []
        for way in ("plain", "forked"):
            engine = VllmEngine(installation, environment=environment, warm_starts=way == "forked")
            ways.append(Way(way, engine, served, folder / way, arguments))
        try:
            for _ in range(rounds):
                for way_of_start in ways:
                    await way_of_start.round()
        finally:
            for way_of_start in ways:
                await way_of_start.engine.close()
    plain, forked = ways
    ratio = statistics.median(forked.turnarounds) / statistics.median(plain.turnarounds)
    return {
        "vllm": installation.version,
        "rounds": rounds,
        "ways": {way_of_start.name: way_of_start.figures() for way_of_start in ways},
        "throughput_ratio": round(statistics.median(forked.rates) / statistics.median(plain.rates), 3),
        "goals": [
            {
                "name": "forked turnaround / plain turnaround",
                "value": round(ratio, 3),
                "goal": GOAL,
                "met": ratio <= GOAL,
            }
        ],
    }


def _given(names: dict[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def main() -> int:
    """Measure and print; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-command", default=os.environ.get("AUTOTUNE_VLLM_PYTHON", "vllm"))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="with torch.compile; eager otherwise")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    document = asyncio.run(measure(options.vllm_command, options.model, options.rounds, eager=not options.compile))
    if options.json:
        print(json.dumps(document, indent=1))
    else:
        for name, figures in document["ways"].items():  # type: ignore[attr-defined]
            print(f"{name:8} {figures}")
        for goal in document["goals"]:  # type: ignore[attr-defined]
            print(f"{goal['name']}: {goal['value']} (goal {goal['goal']}, {'met' if goal['met'] else 'missed'})")
    return 0 if all(goal["met"] for goal in document["goals"]) else 1  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
