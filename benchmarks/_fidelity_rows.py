"""Measured rows of a real engine, and what the simulated engine says of the same flags and load."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.engine_model import EngineModel, build_engine_model
from autotune.simulator.virtual import SimulatedRun, simulate_load
from autotune.spec import ArgumentValue, LoadLevel

DATA = Path(__file__).parent / "data"
_SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One (flags, load). Times in seconds."""

    engine: str
    flags: Mapping[str, ArgumentValue]
    loop: str
    level: float
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    window: tuple[float, float] | None
    """Seconds from the start of the load in which it was measured; None is the whole run of ``requests``."""
    requests: int
    repeat: int
    output_tok_s: float
    request_rate: float
    latency_p50: float
    latency_p99: float
    ttft_p50: float
    ttft_p99: float | None
    """None where it was not written down."""
    tpot_p50: float

    @property
    def load(self) -> str:
        """The load, the same text for the same load."""
        mean_in, mean_out = sum(self.inputs) // 2, sum(self.outputs) // 2
        return f"{self.loop} {self.level:g}, {mean_in} in, {mean_out} out"

    @property
    def key(self) -> str:
        """Names the row."""
        suffix = f" (repeat {self.repeat})" if self.repeat > 1 else "" if self.window else " (earlier)"
        return f"{self.engine}: {self.load}{suffix}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What a load gave. Times in seconds."""

    output_tok_s: float
    latency_p50: float
    latency_p99: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float


def read_rows(name: str) -> list[MeasuredRow]:
    """All rows of a file in ``data``, in its order."""
    with (DATA / name).open(newline="") as file:
        return [_row(record) for record in csv.DictReader(file)]


def _row(record: Mapping[str, str]) -> MeasuredRow:
    window = tuple(float(moment) for moment in record["window_s"].split("..")) if "window_s" in record else None
    return MeasuredRow(
        engine=record["engine"],
        flags=json.loads(record["flags"]),
        loop=record.get("load", "closed"),
        level=float(record["level"]),
        inputs=_range(record["input_tokens"]),
        outputs=_range(record["output_tokens"]),
        window=(window[0], window[1]) if window else None,
        requests=int(record["requests"]),
        repeat=int(record.get("repeat", "1")),
        output_tok_s=float(record["output_tok_s"]),
        request_rate=float(record["req_s"]),
        latency_p50=float(record["latency_p50_s"]),
        latency_p99=float(record["latency_p99_s"]),
        ttft_p50=float(record["ttft_p50_s"]),
        ttft_p99=float(record["ttft_p99_s"]) if "ttft_p99_s" in record else None,
        tpot_p50=float(record["tpot_p50_ms"]) / 1000,
    )


def _range(text: str) -> tuple[int, int]:
    low, high = text.split()[1].split("..")
    return int(low), int(high)


def simulate(
    row: MeasuredRow, gpu: Gpu, model: ModelShape, *, noise: float = 1.0, seeds: tuple[int, ...] = _SEEDS
) -> Figures:
    """The simulated engine under the row's flags and load, measured in the row's way; the mean of some seeds."""
    engine = build_engine_model(gpu, model, row.flags)
    several = [_simulate_once(row, engine, seed, noise) for seed in seeds]
    means = np.mean([astuple(figures) for figures in several], axis=0)
    return Figures(*(float(value) for value in means))


def _simulate_once(row: MeasuredRow, engine: EngineModel, seed: int, noise: float) -> Figures:
    random = np.random.default_rng(seed)
    start, end = row.window or (0.0, float("inf"))
    count = row.requests if row.window is None else 6000 if row.loop == "closed" else int(row.level * (end + 3)) + 10
    inputs = random.integers(row.inputs[0], row.inputs[1] + 1, count)
    outputs = random.integers(row.outputs[0], row.outputs[1] + 1, count)
    if row.loop == "closed":
        users = int(row.level)
        run = simulate_load(
            engine,
            LoadLevel.closed(users),
            inputs,
            outputs,
            user_starts=np.arange(users) / users * start / 2,
            until=end,
            seed=seed,
            noise=noise,
        )
        end = min(end, run.ended)
        chosen = (run.finished >= start) & (run.finished <= end)
    else:
        # At the rate that the measured window really had: a Poisson stream of some seconds is several per cent off.
        arrivals = np.cumsum(random.exponential(1 / row.request_rate, count))
        run = simulate_load(
            engine, LoadLevel.open(row.level), inputs, outputs, arrivals=arrivals, seed=seed, noise=noise
        )
        chosen = (run.scheduled >= start) & (run.scheduled < end)
    return _figures(run, chosen, start, end)


def _figures(run: SimulatedRun, chosen: NDArray[np.bool_], start: float, end: float) -> Figures:
    latency = (run.finished - run.scheduled)[chosen]
    ttft = (run.first_token - run.scheduled)[chosen]
    several = chosen & (run.output_tokens > 1)
    tpot = (run.finished - run.first_token)[several] / (run.output_tokens[several] - 1)
    return Figures(
        output_tok_s=run.output_tokens_per_s(start, end),
        latency_p50=float(np.percentile(latency, 50)),
        latency_p99=float(np.percentile(latency, 99)),
        ttft_p50=float(np.percentile(ttft, 50)),
        ttft_p99=float(np.percentile(ttft, 99)),
        tpot_p50=float(np.percentile(tpot, 50)),
    )
