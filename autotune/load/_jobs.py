"""The requests of a plan, in order: what each asks, how long its answer is, when it arrives."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.load._arrivals import random_stream, unit_arrivals
from autotune.load._lengths import lengths
from autotune.load._wire import Job, Prompt, Turn
from autotune.load.api import LoadPlan
from autotune.spec import Endpoint

_PAGE = 512
_SEED_LIMIT = 2**62


def plan_jobs(plan: LoadPlan, scale: float, *, as_text: bool = False) -> Iterator[Job]:
    """The jobs of a plan, at most ``max_requests`` requests, none due after ``max_duration``.

    They depend on the plan's seed, stream and workload; of the level only the spacing of the arrivals.

    Args:
        plan: what to send.
        scale: engine seconds per wall second; the times of a job are wall seconds.
        as_text: prompts as words even where token ids would do.
    """
    rate = plan.level.rate
    arrivals = unit_arrivals(plan.seed, plan.stream, plan.workload.burstiness) if rate else None
    for turn in _synthetic(plan, as_text=as_text):
        if turn["index"] >= plan.max_requests:
            return
        at = None
        if arrivals is not None and rate is not None:
            due = next(arrivals) / rate
            if due > plan.max_duration:
                return
            at = due / scale
        yield {"at": at, "turns": [turn]}


def _synthetic(plan: LoadPlan, *, as_text: bool) -> Iterator[Turn]:
    workload = plan.workload
    inputs = lengths(workload.input_tokens, random_stream(plan.seed, plan.stream, "input"))
    outputs = lengths(workload.output_tokens, random_stream(plan.seed, plan.stream, "output"))
    seeds = _seeds(plan)
    as_words = as_text or workload.endpoint is Endpoint.CHAT
    for index, seed in enumerate(seeds):
        count = next(inputs)
        spans = [[seed, count]]
        prompt: Prompt = {"words": spans} if as_words else {"tokens": spans}
        yield {"index": index, "prompt": prompt, "input": count, "output": next(outputs), "wait": 0.0}


def _seeds(plan: LoadPlan) -> Iterator[int]:
    generator = random_stream(plan.seed, plan.stream, "prompts")
    while True:
        yield from generator.integers(0, _SEED_LIMIT, _PAGE).tolist()
