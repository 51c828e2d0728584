"""Load in virtual time: the requests of a plan on a simulated engine, with no HTTP and no sleeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from autotune.base.clock import VirtualClock
from autotune.engine.virtual import VirtualRunningEngine
from autotune.load._jobs import plan_jobs
from autotune.load.api import ClientHealth, LoadObserver, LoadPlan, LoadProgress, LoadRun
from autotune.load.records import ErrorKind, RequestRecord, TokenSource
from autotune.simulator.sequence import Sequence as EngineSequence
from autotune.simulator.virtual import SimulatedRun, simulate_load
from autotune.spec import Loop

LOOKS = 40
"""How often an observer looks at a run that goes to its end."""
_CLIENT = ClientHealth(slip_p99=0.0, loop_lag_max=0.0, cpu_seconds=0.0, processes=0)


@dataclass
class VirtualLoadGenerator:
    """Sends the same requests as the HTTP generator to a virtual engine; its clock moves on by what they take.

    A request that is out for longer than the plan's timeout counts as timed out; the engine does not learn of it.
    """

    running: VirtualRunningEngine
    clock: VirtualClock

    async def open(self) -> None:
        """Nothing is to be opened."""

    async def close(self) -> None:
        """Nothing is to be closed."""

    async def run(self, plan: LoadPlan, observer: LoadObserver | None = None) -> LoadRun:
        """Run one load level to its end, or until the observer ends it. The engine is idle afterwards."""
        core = self.running.new_core()
        jobs = list(islice(plan_jobs(plan, 1.0), plan.max_requests))
        turns = [job["turns"][0] for job in jobs]
        arrivals = [at for job in jobs if (at := job["at"]) is not None]
        look = _Look(plan, self.clock.now(), observer)
        simulated = simulate_load(
            self.running.engine,
            plan.level,
            [turn["input"] for turn in turns],
            [turn["output"] for turn in turns],
            arrivals=arrivals if plan.level.loop is Loop.OPEN else None,
            until=plan.max_duration if plan.level.loop is Loop.CLOSED else float("inf"),
            core=core,
            stop=look.at,
            sequences=look.sequences,
        )
        if simulated.out_of_memory is not None:
            self.running.die(simulated.out_of_memory)
        self.clock.advance_to(look.started + simulated.ended)
        return LoadRun(
            plan=plan,
            started=look.started,
            ended=look.started + simulated.ended,
            records=_records(plan, look.started, simulated, died=simulated.out_of_memory is not None),
            client=_CLIENT,
            ended_by_observer=look.stopped,
        )


@dataclass
class _Look:
    """Shows a running simulation to an observer now and then."""

    plan: LoadPlan
    started: float
    observer: LoadObserver | None
    sequences: list[EngineSequence] = field(default_factory=list)
    stopped: bool = False
    _finished: list[RequestRecord] = field(default_factory=list)
    _out: dict[int, EngineSequence] = field(default_factory=dict)
    _known: int = 0
    _next: int = 0

    def at(self, now: float, answered: int) -> bool:
        if self.observer is None or answered < self._next:
            return False
        self._next = answered + max(1, self.plan.max_requests // LOOKS)
        for index in range(self._known, len(self.sequences)):
            self._out[index] = self.sequences[index]
        self._known = len(self.sequences)
        for index, sequence in list(self._out.items()):
            if sequence.finish_due is not None and sequence.finish_due <= now:
                self._finished.append(_answered(self.plan, self.started, index, sequence))
                del self._out[index]
        progress = LoadProgress(
            now=self.started + now,
            started=self.started,
            sent=self._known,
            finished=self._finished,
            in_flight=[self.started + sequence.submitted for sequence in self._out.values()],
        )
        self.stopped = self.observer.observe(progress)
        return self.stopped


def _answered(plan: LoadPlan, started: float, index: int, sequence: EngineSequence) -> RequestRecord:
    assert sequence.finish_due is not None
    return _record(
        plan, started, index, sequence.submitted, sequence.first_due, sequence.finish_due, sequence.prompt_tokens,
        sequence.target,
    )  # fmt: skip


def _record(
    plan: LoadPlan,
    started: float,
    index: int,
    submitted: float,
    first: float | None,
    finished: float,
    inputs: int,
    outputs: int,
) -> RequestRecord:
    late = finished - submitted > plan.request_timeout
    return RequestRecord(
        index=index,
        scheduled=started + submitted,
        sent=started + submitted,
        first_token=None if first is None else started + first,
        last_token=started + finished,
        finished=started + (submitted + plan.request_timeout if late else finished),
        input_tokens=inputs,
        output_tokens=outputs,
        token_source=TokenSource.USAGE,
        chunks=outputs,
        error=ErrorKind.TIMEOUT if late else None,
        http_status=200,
        finish_reason=None if late else "length",
    )


def _records(plan: LoadPlan, started: float, run: SimulatedRun, *, died: bool) -> Sequence[RequestRecord]:
    """All requests that were sent, in order of arrival; those still out were cut off, or lost with the engine."""
    records = []
    lost = ErrorKind.ABORTED_BY_SERVER if died else ErrorKind.CANCELLED
    columns = (run.scheduled, run.first_token, run.finished, run.input_tokens, run.output_tokens, run.received_tokens)
    for index, (at, first, finished, inputs, outputs, received) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if np.isfinite(finished) and finished <= run.ended:
            records.append(_record(plan, started, index, at, first, finished, inputs, outputs))
            continue
        begun = np.isfinite(first) and first <= run.ended
        records.append(
            RequestRecord(
                index=index,
                scheduled=started + at,
                sent=started + at,
                first_token=started + first if begun else None,
                last_token=None,
                finished=started + run.ended,
                input_tokens=inputs,
                output_tokens=received,
                token_source=TokenSource.ESTIMATE,
                chunks=received,
                error=lost,
            )
        )
    return sorted(records, key=lambda record: (record.scheduled, record.index))
