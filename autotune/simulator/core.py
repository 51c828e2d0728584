"""The engine core in engine time: arrivals in, steps of the scheduler timed by physics, tokens out.

No clock and no I/O: the caller says up to which moment to go. The HTTP server drives it along a scaled clock, the
virtual run as fast as it can; both see the same engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from autotune.simulator.api_server import ApiServerQueue
from autotune.simulator.memory import MemoryModel
from autotune.simulator.physics import StepPhysics
from autotune.simulator.scheduler import Scheduler
from autotune.simulator.sequence import Sequence, State
from autotune.simulator.step_plan import StepPlan

_NOISE_BLOCK = 8192


class StepNoise:
    """Seeded log-normal factors with mean near 1, drawn in blocks."""

    def __init__(self, seed: int, sigma: float) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._sigma = sigma
        self._block: list[float] = []
        self._at = 0

    def next(self) -> float:
        """One factor."""
        value = self.ahead(1)[0]
        self._at += 1
        return value

    def ahead(self, count: int) -> list[float]:
        """The factors that come next: at least one of them, and at most ``count``."""
        if self._at >= len(self._block):
            self._block = np.exp(self._sigma * self._random.standard_normal(_NOISE_BLOCK)).tolist()
            self._at = 0
        return self._block[self._at : self._at + count]

    def skip(self, count: int) -> None:
        """Pass over factors that were looked at ahead."""
        self._at += count


class OutOfMemoryError(Exception):
    """A step needed more GPU memory than there was; the engine core dies of it. Amounts in GiB."""

    def __init__(self, at: float, wanted: float, free: float) -> None:
        self.at = at
        self.wanted = wanted
        self.free = free
        super().__init__(f"tried to allocate {wanted:.2f} GiB, {free:.2f} GiB free")


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What left the API server after a step. ``due`` is engine time."""

    due: float
    step: int
    tokens: int
    """Tokens of the batch, prompt and output."""
    first_tokens: list[Sequence]
    finished: list[Sequence]


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    start: float
    end: float


class EngineCore:
    """One engine. Call :meth:`advance` before every :meth:`submit` or :meth:`abort` at the same moment."""

    def __init__(
        self,
        scheduler: Scheduler,
        physics: StepPhysics,
        api: ApiServerQueue,
        noise: StepNoise,
        memory: MemoryModel | None = None,
        kv_gib: float = 0.0,
    ) -> None:
        self.scheduler = scheduler
        self.physics = physics
        self.api = api
        self.outbox: deque[StepOutput] = deque()
        """Outputs in order of ``due``; the caller takes them off."""
        self.free_at = 0.0
        """End of the last step that was planned."""
        self.busy_s = 0.0
        self.generated_tokens = 0
        self.prompt_tokens = 0
        self.last_step_s = 0.0
        self.slowdown = 1.0
        """Factor on step times; faults use it."""
        self._noise = noise
        self._arriving: deque[Sequence] = deque()
        self._in_flight: _InFlight | None = None
        self._previous_start = float("-inf")
        self._headroom = memory.spare(kv_gib) if memory is not None else float("inf")
        self._memory = memory
        self._largest = physics.options.max_num_batched_tokens

    # -- from outside

    def submit(self, sequence: Sequence, at: float) -> None:
        """A request reached the API server at engine time ``at``."""
        sequence.submitted = at
        works = self._in_flight is not None or self.scheduler.has_work
        arrived = self.api.take_in(at, sequence.prompt_tokens, core_works=works)
        # One queue leads into the engine core: nobody overtakes.
        sequence.arrived = max(arrived, self._arriving[-1].arrived) if self._arriving else arrived
        self._arriving.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """The client went away."""
        if sequence.state in {State.FINISHED, State.ABORTED}:
            return
        if sequence in self._arriving:
            self._arriving.remove(sequence)
            sequence.state = State.ABORTED
            return
        if self._in_flight is not None and sequence in self._in_flight.plan.first_tokens:
            self._in_flight.plan.first_tokens.remove(sequence)
        self.scheduler.abort(sequence)

    @property
    def waiting(self) -> int:
        """Requests that have not been scheduled yet."""
        return len(self.scheduler.waiting) + len(self._arriving)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have not been scheduled yet."""
        return sum(sequence.prompt_tokens for sequence in (*self.scheduler.waiting, *self._arriving))

    def pause(self, seconds: float) -> None:
        """Do nothing for a while once the step in flight has ended."""
        self.free_at += seconds
        if self._in_flight is not None:
            self._in_flight.end += seconds

    @property
    def quiet_at(self) -> float:
        """When everything that has been planned has left: the earliest moment for a next load."""
        return max(self.free_at, self.api.free_at)

    @property
    def idle(self) -> bool:
        """True when nothing is in the engine or on its way out."""
        return not (self._in_flight or self._arriving or self.scheduler.has_work or self.outbox)

    def advance(self, until: float) -> None:
        """Run the engine up to ``until``: plan steps that start by then and complete those that end by then.

        Raises:
            OutOfMemoryError: a step needed more memory than there was.
        """
        while True:
            flight = self._in_flight
            if flight is not None:
                if flight.end > until:
                    return
                self._complete(flight)
                continue
            if not self._plan_next(until):
                return

    def run_until_edge(self, limit: float) -> None:
        """Run until an output with a first or last token is in the outbox, or time reaches ``limit``.

        For virtual time: steps that only decode are leapt over, and leave no output. Afterwards only moments from
        ``limit`` on (or from the output's ``due`` on) may be submitted.

        Raises:
            OutOfMemoryError: a step needed more memory than there was.
        """
        while True:
            flight = self._in_flight
            if flight is not None:
                if flight.end > limit:
                    return
                self._complete(flight)
                if flight.plan.first_tokens or flight.plan.finished:
                    return
                self.outbox.pop()
            self._leap(limit)
            if not self._plan_next(limit):
                return

    def next_moment(self) -> float | None:
        """The next moment at which something can change; None when the engine sleeps."""
        if self._in_flight is not None:
            return self._in_flight.end
        if self.scheduler.has_work:
            return self.free_at
        if self._arriving:
            return max(self.free_at, self._arriving[0].arrived)
        return None

    def next_edge(self) -> float | None:
        """When the next first or last token is expected; None when the engine sleeps.

        Exact for the step in flight; beyond it an estimate from the last step's time, never later than one step
        after the next change of the batch.
        """
        flight = self._in_flight
        if flight is None:
            return self.next_moment()
        if flight.plan.first_tokens or flight.plan.finished or self._arriving:
            return flight.end
        return flight.end + self.scheduler.quiet_steps() * self.last_step_s

    # -- steps

    def _plan_next(self, until: float) -> bool:
        start = self.free_at
        if not self.scheduler.has_work:
            if not self._arriving:
                return False
            start = max(start, self._arriving[0].arrived)
            self._previous_start = start
        if start > until:
            return False
        # With asynchronous scheduling the batch is decided while the previous one runs.
        cutoff = self._previous_start if self.physics.options.async_scheduling else start
        while self._arriving and self._arriving[0].arrived <= cutoff:
            self.scheduler.add(self._arriving.popleft())
        plan = self.scheduler.step()
        seconds = self._duration(plan)
        self._check_memory(plan, start)
        for sequence in plan.scheduled:
            if sequence.scheduled is None:
                sequence.scheduled = start
        self._previous_start = start
        self.free_at = start + seconds
        self.busy_s += seconds
        self.last_step_s = seconds
        self._in_flight = _InFlight(plan, start, self.free_at)
        return True

    def _duration(self, plan: StepPlan) -> float:
        physics = self.physics
        if plan.chunk_tokens:
            seconds = physics.mixed_time(
                plan.decodes, plan.decode_context, plan.chunk_tokens, plan.chunk_pairs, plan.sampled, plan.chunk_context
            )
        else:
            seconds = physics.decode_time(plan.decodes, plan.decode_context)
        return seconds * self._noise.next() * self.slowdown

    def _check_memory(self, plan: StepPlan, start: float) -> None:
        if self._memory is None or not plan.chunk_tokens:
            return
        wanted = self._memory.step_peak(plan.tokens, plan.sampled, self._largest)
        if wanted > self._headroom:
            raise OutOfMemoryError(start, wanted, max(0.0, self._headroom))

    def _complete(self, flight: _InFlight) -> None:
        plan = flight.plan
        self._in_flight = None
        self.generated_tokens += plan.sampled
        self.prompt_tokens += plan.chunk_tokens
        edges = len(plan.first_tokens) + len(plan.finished)
        due = self.api.send(flight.end, plan.sampled, min(edges, plan.sampled), flight.end - flight.start)
        for sequence in plan.first_tokens:
            if sequence.first_due is None:
                sequence.first_due = due
        for sequence in plan.finished:
            sequence.finish_due = due
        self.outbox.append(StepOutput(due, plan.number, plan.tokens, plan.first_tokens, plan.finished))

    # -- many steps at once

    def _leap(self, until: float) -> None:
        """Run steps that only decode and that end by ``until``, with nothing of a step but its times."""
        if self._arriving:
            until = min(until, self._arriving[0].arrived)
        if self.free_at >= until:
            return
        quiet = self.scheduler.quiet_steps()
        if not quiet:
            return
        count = 0
        while count < quiet:
            factors = self._noise.ahead(quiet - count)
            run = self._decode_quietly(factors, until)
            self._noise.skip(run)
            count += run
            if run < len(factors):
                return

    def _decode_quietly(self, factors: list[float], until: float) -> int:
        """Run decode steps of these noise factors, as many as end by ``until``; returns how many."""
        api, slowdown, scheduler = self.api, self.slowdown, self.scheduler
        sequences = scheduler.decoding
        times = self.physics.decode_times(sequences, scheduler.decode_context)
        token_s, chunk_s = api.unhurried(sequences)
        sent = api.free_at
        now, seconds, count = self.free_at, 0.0, 0
        for plain_seconds, factor in zip(times, factors, strict=False):
            next_seconds = plain_seconds * factor * slowdown
            if now + next_seconds > until:
                break
            seconds = next_seconds
            self._previous_start = now
            now += seconds
            if sent > now:
                api.free_at = sent
                sent = api.send(now, sequences, 0, seconds)
            else:
                sent = now + token_s + chunk_s
            count += 1
        if count:
            api.free_at = sent
            scheduler.skip_quiet(count)
            self.generated_tokens += count * sequences
            self.busy_s += now - self.free_at
            self.last_step_s = seconds
            self.free_at = now
        return count
