"""What a simulated engine really carries: its capacity by long runs, without the statistics of a short probe."""

from __future__ import annotations

import math

from autotune.simulator.engine_model import EngineModel
from autotune.simulator.prediction import SETTLING_SHARE, draw_requests
from autotune.simulator.sequence import Sequence
from autotune.simulator.virtual import simulate_load
from autotune.spec import LoadLevel, Metric, Slo, SloTarget, Workload

_LOOK_AT = 60
"""Answers between two looks at how many requests missed."""
_LOWEST_RPS, _HIGHEST_RPS = 1e-4, 2e4
_LATENCIES_A_RUN = 6.0
"""A run offers its load for at least this many times the limit: a shorter one rides its transient."""
_MOST_REQUESTS = 30_000
_GUESSED_TOKEN_S = 0.03
"""Time of an output token where no objective limits it."""


class LongRuns:
    """Long runs of one workload under one objective: every engine is sent the same requests.

    Args:
        workload: lengths and burstiness.
        slo: each target must hold.
        requests: of one run, at least.
        seed: of lengths, arrivals and step times.
    """

    def __init__(self, workload: Workload, slo: Slo, *, requests: int = 4000, seed: int = 0) -> None:
        self._workload = workload
        self._slo = slo
        self._seed = seed
        self._requests = requests
        self._span = _LATENCIES_A_RUN * max(_longest_s(target, workload) for target in slo.targets)

    def requests_at(self, rate: float) -> int:
        """Requests of a run at ``rate``: doubled until the run is long enough."""
        doublings: int = math.ceil(math.log2(max(1.0, rate * self._span / self._requests)))
        return min(self._requests << doublings, _MOST_REQUESTS)

    def holds(self, engine: EngineModel, rate: float) -> bool:
        """Whether the objective holds at ``rate`` (req/s); a run that misses too often ends early."""
        count = self.requests_at(rate)
        inputs, outputs, arrivals = draw_requests(self._workload, count, self._seed)
        settled = int(SETTLING_SHARE * count)
        allowed = [math.floor(t.allowed_miss_share * (count - settled) + 1e-9) for t in self._slo.targets]
        sequences: list[Sequence] = []
        missed = False
        next_look = _LOOK_AT

        def stop(now: float, answered: int) -> bool:
            nonlocal missed, next_look
            if answered < next_look:
                return False
            next_look = answered + max(_LOOK_AT, answered // 8)
            missed = self._missed(sequences[settled:], now, allowed)
            return missed

        run = simulate_load(
            engine,
            LoadLevel.open(rate),
            inputs,
            outputs,
            arrivals=arrivals / rate,
            seed=self._seed,
            stop=stop,
            sequences=sequences,
        )
        return not missed and run.out_of_memory is None and not self._missed(sequences[settled:], run.ended, allowed)

    def _missed(self, counted: list[Sequence], now: float, allowed: list[int]) -> bool:
        return any(
            sum(_misses(sequence, target, now) for sequence in counted) > most
            for target, most in zip(self._slo.targets, allowed, strict=True)
        )

    def capacity(self, engine: EngineModel, near: float, *, precision: float = 0.01) -> float:
        """The highest rate (req/s) at which the objective holds, within ``precision``; 0 if it never does.

        Args:
            engine: a started engine.
            near: a guess.
            precision: relative width of the bracket at the end.
        """
        low, high = 0.0, math.inf
        rate, step = near, 1.0 + 4 * precision
        while math.isinf(high) or not low:
            if self.holds(engine, rate):
                low = rate
                if low > _HIGHEST_RPS:
                    return low
                rate *= step
            else:
                high = rate
                if high < _LOWEST_RPS:
                    return 0.0
                rate /= step
            step = min(step**2, 4.0)
        while high > low * (1 + precision):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.holds(engine, middle) else (low, middle)
        return low


def _longest_s(target: SloTarget, workload: Workload) -> float:
    """How long a request may be in the engine at the limit, s."""
    output = workload.output_tokens.mean
    match target.metric:
        case Metric.LATENCY:
            return target.limit_s
        case Metric.TPOT:
            return target.limit_s * output
        case Metric.TTFT:
            return max(target.limit_s, _GUESSED_TOKEN_S * output)


def _misses(sequence: Sequence, target: SloTarget, now: float) -> bool:
    """Whether a request misses the target, as far as ``now`` tells."""
    finished = sequence.finish_due
    if target.metric is Metric.LATENCY:
        return (now if finished is None else finished) - sequence.submitted > target.limit_s
    first = sequence.first_due
    if target.metric is Metric.TTFT:
        return (now if first is None else first) - sequence.submitted > target.limit_s
    if finished is None or first is None or sequence.target < 2:
        return False
    return (finished - first) / (sequence.target - 1) > target.limit_s
