"""Load on a simulated engine in virtual time: the same engine core, no HTTP, no sleeping."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.simulator.core import EngineCore, OutOfMemoryError
from autotune.simulator.engine_model import EngineModel
from autotune.simulator.sequence import Sequence as EngineSequence
from autotune.spec import LoadLevel, Loop

Times = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What each request experienced, in order of submission. Times are engine seconds; NaN is never."""

    scheduled: Times
    """Arrival (open loop), or when the user became free to send (closed loop)."""
    first_token: Times
    finished: Times
    input_tokens: Counts
    output_tokens: Counts
    """Asked for; a run that was cut has ``received_tokens`` of them."""
    received_tokens: Counts
    preemptions: int
    steps: int
    busy_s: float
    """Time in which the engine core ran steps."""
    ended: float
    out_of_memory: str | None = None
    """Why the engine died, None when it lived."""

    @property
    def done(self) -> NDArray[np.bool_]:
        """Which requests got their whole answer."""
        return ~np.isnan(self.finished)

    @property
    def latency(self) -> Times:
        """End-to-end latencies of the finished requests."""
        return np.asarray((self.finished - self.scheduled)[self.done])

    @property
    def ttft(self) -> Times:
        """Times to first token of the finished requests."""
        return np.asarray((self.first_token - self.scheduled)[self.done])

    @property
    def tpot(self) -> Times:
        """Mean time per output token after the first, of the finished requests with two tokens or more."""
        several = self.done & (self.output_tokens > 1)
        span = (self.finished - self.first_token)[several]
        return np.asarray(span / (self.output_tokens[several] - 1))

    def output_tokens_per_s(self, start: float, end: float) -> float:
        """Output tokens in a window, each request's spread evenly between its first and last token."""
        return float(self._tokens_within(start, end) / (end - start))

    def _tokens_within(self, start: float, end: float) -> float:
        known = ~np.isnan(self.first_token)
        first = self.first_token[known]
        last = np.where(np.isnan(self.finished[known]), self.ended, self.finished[known])
        count = self.received_tokens[known]
        span = np.maximum(last - first, 1e-9)
        share = np.clip((np.minimum(last, end) - np.maximum(first, start)) / span, 0.0, 1.0)
        first_inside = (first >= start) & (first < end)
        return float(np.sum(first_inside + share * (count - 1)))


def simulate_load(
    engine: EngineModel,
    level: LoadLevel,
    input_tokens: Sequence[int] | Counts,
    output_tokens: Sequence[int] | Counts,
    *,
    arrivals: Sequence[float] | Times | None = None,
    user_starts: Sequence[float] | Times | None = None,
    seed: int = 0,
    noise: float = 1.0,
    until: float = float("inf"),
    core: EngineCore | None = None,
    stop: Callable[[float, int], bool] | None = None,
    sequences: list[EngineSequence] | None = None,
) -> SimulatedRun:
    """Send requests to an engine and wait for all answers (or until ``until``). The same inputs give the same result.

    Args:
        engine: the engine.
        level: a rate (then ``arrivals`` gives the moments) or a concurrency (each user sends its next request when
            the answer to the last one is complete).
        input_tokens: prompt length of each request, in order of submission.
        output_tokens: output length of each request.
        arrivals: when each request arrives, ascending (open loop only).
        user_starts: when each user sends its first request (closed loop only); all at once by default.
        seed: seed of the noise of step times; unused with ``core``.
        noise: factor on that noise; unused with ``core``.
        until: engine time at which the run is cut.
        core: an engine core that goes on from an earlier run; a fresh one by default.
        stop: asked after each answer with its time and the number of answers so far; True cuts the run.
        sequences: an empty list that fills with the sequences as they are submitted, for ``stop`` to look at.
    """
    core = engine.new_core(seed=seed, noise=noise) if core is None else core
    run = _Run(core, np.asarray(input_tokens, dtype=np.int64), np.asarray(output_tokens, dtype=np.int64))
    if sequences is not None:
        run.sequences = sequences
    if level.loop is Loop.OPEN:
        if arrivals is None or len(arrivals) != len(run.inputs):
            raise ValueError("an open loop needs one arrival per request")
        run.pending = [float(at) for at in arrivals]
    else:
        assert level.concurrency is not None
        starts = [core.quiet_at] * level.concurrency if user_starts is None else [float(at) for at in user_starts]
        run.pending = sorted(starts)
        run.closed = True
    run.go(until, stop)
    return run.result()


class _Run:
    """State of one simulated load."""

    def __init__(self, core: EngineCore, inputs: Counts, outputs: Counts) -> None:
        if len(inputs) != len(outputs):
            raise ValueError("as many prompts as answers are needed")
        self.core = core
        self.inputs = inputs
        self.outputs = outputs
        self.pending: list[float] = []
        """Moments of submission still to come, a heap (an ascending list is one)."""
        self.closed = False
        self.sequences: list[EngineSequence] = []
        self.answered = 0
        self.ended = core.quiet_at
        self.death: str | None = None
        self._first_id = core.scheduler.steps * 1_000_000 + 1
        self._preemptions = core.scheduler.preemptions
        self._steps = core.scheduler.steps
        self._busy = core.busy_s

    def go(self, until: float, stop: Callable[[float, int], bool] | None) -> None:
        """Run to the end of the load, to ``until``, or until told to stop."""
        core, pending = self.core, self.pending
        total = len(self.inputs)
        try:
            while True:
                more = bool(pending) and len(self.sequences) < total
                limit = min(pending[0], until) if more else until
                core.run_until_edge(limit)
                if core.outbox:
                    if self._collect(stop):
                        return
                    continue
                if limit >= until or not more:
                    self.ended = max(self.ended, until) if until < float("inf") else self.ended
                    return
                self._submit(heapq.heappop(pending))
        except OutOfMemoryError as error:
            self.death = str(error)
            self.ended = error.at

    def _submit(self, at: float) -> None:
        number = len(self.sequences)
        sequence = EngineSequence(self._first_id + number, int(self.inputs[number]), int(self.outputs[number]))
        self.sequences.append(sequence)
        self.core.submit(sequence, at)

    def _collect(self, stop: Callable[[float, int], bool] | None) -> bool:
        outbox = self.core.outbox
        while outbox:
            output = outbox.popleft()
            for _ in output.finished:
                self.answered += 1
                if self.closed:
                    heapq.heappush(self.pending, output.due)
            if output.finished:
                self.ended = output.due
                if stop is not None and stop(output.due, self.answered):
                    return True
        return False

    def result(self) -> SimulatedRun:
        """The arrays."""
        nan = float("nan")
        count = len(self.sequences)
        step = self.core.scheduler.steps
        return SimulatedRun(
            scheduled=np.array([s.submitted for s in self.sequences]),
            first_token=np.array([nan if s.first_due is None else s.first_due for s in self.sequences]),
            finished=np.array([nan if s.finish_due is None else s.finish_due for s in self.sequences]),
            input_tokens=self.inputs[:count],
            output_tokens=self.outputs[:count],
            received_tokens=np.array([s.generated_at(step) for s in self.sequences], dtype=np.int64),
            preemptions=self.core.scheduler.preemptions - self._preemptions,
            steps=self.core.scheduler.steps - self._steps,
            busy_s=self.core.busy_s - self._busy,
            ended=self.ended,
            out_of_memory=self.death,
        )
