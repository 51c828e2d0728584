"""The requests of a plan, in order: what each asks, how long its answer is, when it arrives."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.load._arrivals import ramped, random_stream, replayed, unit_arrivals
from autotune.load._lengths import lengths
from autotune.load._wire import Job, Prompt, Turn
from autotune.load.api import LoadPlan
from autotune.spec import Endpoint, Workload
from autotune.spec.dataset import MOONCAKE_BLOCK, Dataset, Row

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
    arrivals = _arrivals(plan)
    thinking = _thinking(plan)
    sent = 0
    for turns in _conversations(plan, as_text=as_text):
        kept = turns[: plan.max_requests - sent]
        if not kept:
            return
        at = None
        if arrivals is not None:
            due = next(arrivals)
            if due > plan.max_duration:
                return
            at = due / scale
        for turn in kept:
            turn["index"] = sent
            sent += 1
        for turn in kept[1:]:
            turn["wait"] = next(thinking) / scale
        yield {"at": at, "turns": kept, "think": next(thinking) / scale}


def _arrivals(plan: LoadPlan) -> Iterator[float] | None:
    """Arrivals of conversations, engine seconds after the start; None in a closed loop.

    The rate is of requests, so that conversations of several turns arrive at a fraction of it.
    """
    workload, rate = plan.workload, plan.level.rate
    if rate is None:
        return None
    pace = rate / _mean_turns(workload)
    if workload.dataset is not None and workload.dataset.replay:
        return replayed(workload.dataset.load(), pace)
    times = (time / pace for time in unit_arrivals(plan.seed, plan.stream, workload.burstiness))
    return times if workload.ramp is None else ramped(times, workload.ramp)


def _mean_turns(workload: Workload) -> float:
    if workload.dataset is None:
        return workload.turns.mean
    rows = workload.dataset.load().rows
    return sum(min(workload.turns.high, 1 + len(row.later_turns)) for row in rows) / len(rows)


def _thinking(plan: LoadPlan) -> Iterator[float]:
    """Times to think: exponential with the workload's mean."""
    generator = random_stream(plan.seed, plan.stream, "thinking")
    while True:
        yield from (plan.workload.think_time * generator.standard_exponential(_PAGE)).tolist()


def _conversations(plan: LoadPlan, *, as_text: bool) -> Iterator[list[Turn]]:
    if plan.workload.dataset is None:
        return _synthetic(plan, as_text=as_text)
    dataset = plan.workload.dataset.load()
    rows = iter(_cycled(dataset)) if plan.workload.dataset.replay else _shuffled(plan, dataset)
    return _from_rows(plan, rows, as_text=as_text)


def _synthetic(plan: LoadPlan, *, as_text: bool) -> Iterator[list[Turn]]:
    workload = plan.workload
    inputs = lengths(workload.input_tokens, random_stream(plan.seed, plan.stream, "input"))
    outputs = lengths(workload.output_tokens, random_stream(plan.seed, plan.stream, "output"))
    turns = lengths(workload.turns, random_stream(plan.seed, plan.stream, "turns"))
    seeds = _seeds(plan)
    prefixes = _prefixes(plan)
    # What was said before is text, so that a later turn can go on from it.
    as_words = as_text or workload.endpoint is Endpoint.CHAT or workload.turns.high > 1
    while True:
        conversation = []
        prefix = next(prefixes)
        for position in range(next(turns)):
            count = next(inputs)
            spans = [[next(seeds), count]]
            if prefix and position == 0:
                spans = [prefix, *spans]
            prompt: Prompt = {"words": spans} if as_words else {"tokens": spans}
            conversation.append(_turn(prompt, sum(size for _, size in spans), next(outputs)))
        yield conversation


def _prefixes(plan: LoadPlan) -> Iterator[list[int] | None]:
    """The shared beginning of each conversation: the same texts in every stream of a seed, as in a real service."""
    shared = plan.workload.shared_prefix
    if shared is None:
        while True:
            yield None
    seeds = random_stream(plan.seed, "", "prefixes").integers(0, _SEED_LIMIT, shared.groups).tolist()
    choices = random_stream(plan.seed, plan.stream, "groups")
    while True:
        for group in choices.integers(0, shared.groups, _PAGE).tolist():
            yield [seeds[group], shared.tokens]


def _from_rows(plan: LoadPlan, rows: Iterator[Row], *, as_text: bool) -> Iterator[list[Turn]]:
    seeds = _seeds(plan)
    as_words = as_text or plan.workload.endpoint is Endpoint.CHAT
    own = None if plan.workload.dataset is None else plan.workload.dataset.output_tokens
    outputs = None if own is None else lengths(own, random_stream(plan.seed, plan.stream, "output"))
    for row in rows:
        if row.messages:
            prompt: Prompt = {"messages": [{"role": role, "content": text} for role, text in row.messages]}
        else:
            spans = _block_spans(row, next(seeds))
            prompt = {"words": spans} if as_words else {"tokens": spans}
        conversation = [_turn(prompt, row.input_tokens, row.output_tokens)]
        for text, output in row.later_turns[: plan.workload.turns.high - 1]:
            conversation.append(_turn({"text": text}, 0, output))
        if outputs is not None:
            for turn in conversation:
                turn["output"] = next(outputs)
        yield conversation


def _block_spans(row: Row, seed: int) -> list[list[int]]:
    """Spans of a trace's request: blocks that it shares with others, then tokens of its own."""
    left = row.input_tokens
    spans = []
    for block in row.blocks:
        size = min(MOONCAKE_BLOCK, left)
        if size > 0:
            spans.append([block, size])
            left -= size
    return [*spans, [seed, left]] if left > 0 else spans


def _cycled(dataset: Dataset) -> Iterator[Row]:
    while True:
        yield from dataset.rows


def _shuffled(plan: LoadPlan, dataset: Dataset) -> Iterator[Row]:
    """Rows in an order of the stream's own; all of them before any comes again."""
    generator = random_stream(plan.seed, plan.stream, "rows")
    while True:
        for index in generator.permutation(len(dataset.rows)).tolist():
            yield dataset.rows[index]


def _turn(prompt: Prompt, inputs: int, outputs: int) -> Turn:
    return {"index": 0, "prompt": prompt, "input": inputs, "output": outputs, "wait": 0.0}


def _seeds(plan: LoadPlan) -> Iterator[int]:
    generator = random_stream(plan.seed, plan.prompt_stream or plan.stream, "prompts")
    while True:
        yield from generator.integers(0, _SEED_LIMIT, _PAGE).tolist()
