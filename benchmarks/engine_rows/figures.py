"""The measured columns of a row, from the records of its requests and the samples taken meanwhile."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .clients import CUT, FAILED, FINISHED, Records
from .plan import Load
from .sampling import Sampler, growth, mean

Floats = NDArray[np.float64]


def spread_tokens(first: Floats, last: Floats, tokens: Floats, window: tuple[float, float]) -> float:
    """Tokens inside a window when those of each request lie evenly between its first and its last token.

    >>> round(spread_tokens(np.array([0.0]), np.array([10.0]), np.array([100.0]), (2.0, 4.0)))
    20
    """
    span = np.maximum(last - first, 1e-9)
    overlap = np.clip(np.minimum(last, window[1]) - np.maximum(first, window[0]), 0.0, None)
    return float(np.sum(tokens * overlap / span))


def quantile(values: Floats, share: float) -> float:
    """A quantile with linear interpolation, NaN for no values."""
    return float(np.quantile(values, share)) if len(values) else float("nan")


def number(value: float, digits: int) -> str:
    """A number as the table shows it; empty for NaN."""
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def figures(load: Load, records: Records, start: float, sampler: Sampler) -> dict[str, object]:
    """The measured columns of one row."""
    window = load.window(start)
    output, prompts = _tokens(records, window)
    finished = _within(records[records["status"] == FINISHED], "last", window)
    if load.kind == "closed":
        judged, unfinished = finished, 0
        failed = np.sum((records["status"] == FAILED) & (records["sent"] < window[1]))
    else:
        scheduled = _within(records, "scheduled", window)
        judged = scheduled[scheduled["status"] == FINISHED]
        failed, unfinished = np.sum(scheduled["status"] == FAILED), np.sum(scheduled["status"] == CUT)
    latency = judged["last"] - judged["scheduled"]
    ttft = judged["first"] - judged["scheduled"]
    several = judged[judged["output"] > 1]
    tpot = 1000 * (several["last"] - several["first"]) / (several["output"] - 1)
    generated, generated_in = growth(sampler.engine, window, "generation_tokens")
    preemptions, _ = growth(sampler.engine, window, "preemptions")
    return {
        "requests": len(judged),
        "failed": int(failed),
        "unfinished": int(unfinished),
        "window_s": f"{load.ramp_s:g}..{load.ramp_s + load.measure_s:g}",
        "output_tok_s": number(output / load.measure_s, 1),
        "total_tok_s": number((output + prompts) / load.measure_s, 1),
        "req_s": number(len(finished) / load.measure_s, 3),
        "engine_output_tok_s": number(generated / generated_in, 1),
        "latency_p50_s": number(quantile(latency, 0.5), 4),
        "latency_p90_s": number(quantile(latency, 0.9), 4),
        "latency_p99_s": number(quantile(latency, 0.99), 4),
        "ttft_p50_s": number(quantile(ttft, 0.5), 4),
        "ttft_p99_s": number(quantile(ttft, 0.99), 4),
        "tpot_p50_ms": number(quantile(tpot, 0.5), 3),
        "tpot_p99_ms": number(quantile(tpot, 0.99), 3),
        "running_mean": number(mean(sampler.engine, window, "running"), 1),
        "waiting_mean": number(mean(sampler.engine, window, "waiting"), 1),
        "kv_usage_mean": number(mean(sampler.engine, window, "kv_cache_usage"), 4),
        "preemptions": number(preemptions, 0),
        "power_w": number(mean(sampler.gpu, window, "power_w"), 1),
        "sm_clock_mhz": number(mean(sampler.gpu, window, "sm_clock_mhz"), 0),
        "gpu_util_pct": number(100 * mean(sampler.gpu, window, "utilization"), 1),
        "client_lag_p99_s": number(quantile(records["sent"] - records["scheduled"], 0.99), 4),
    }


def _within(records: Records, field: str, window: tuple[float, float]) -> Records:
    return records[(records[field] >= window[0]) & (records[field] < window[1])]


def _tokens(records: Records, window: tuple[float, float]) -> tuple[float, float]:
    """Output tokens inside the window, and prompt tokens of the requests whose first token lies inside it.

    A cut request has no usage: its chunks count as many tokens as those of finished ones held, its prompt the mean.
    """
    done = records[records["status"] == FINISHED]
    started = records[~np.isnan(records["first"])]
    per_chunk = float(done["output"].sum() / max(1, done["chunks"].sum())) if len(done) else 1.0
    tokens = np.where(started["status"] == FINISHED, started["output"], started["chunks"] * per_chunk)
    output = spread_tokens(started["first"], started["last"], tokens.astype(np.float64), window)
    begun = _within(started, "first", window)
    mean_prompt = float(done["prompt"].mean()) if len(done) else 0.0
    return output, float(np.where(begun["status"] == FINISHED, begun["prompt"], mean_prompt).sum())
