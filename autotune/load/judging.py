"""A run judged against an objective while it goes on, with the statistics of ``autotune.stats``."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.load.api import LoadProgress, LoadRun
from autotune.load.records import ErrorKind, RequestRecord
from autotune.spec import Slo
from autotune.stats import ProbeJudge, ProbeVerdict, ProbeView


def probe_view(
    records: Sequence[RequestRecord], in_flight: Sequence[float], slo: Slo, *, started: float, now: float
) -> ProbeView:
    """What the judge looks at. Requests cut off by us count as out, failed ones as infinitely late."""
    done = [r for r in records if r.error is not ErrorKind.CANCELLED]
    out = [*in_flight, *(r.scheduled for r in records if r.error is ErrorKind.CANCELLED)]
    return ProbeView(
        started=started,
        now=now,
        scheduled=np.asarray([r.scheduled for r in done], dtype=np.float64),
        finished=np.asarray([r.finished for r in done], dtype=np.float64),
        values=np.asarray([_values(r, slo) for r in done], dtype=np.float64).reshape(len(done), len(slo.targets)),
        in_flight=np.asarray(sorted(out), dtype=np.float64),
    )


def judge_run(run: LoadRun, slo: Slo, *, error: float = 0.05) -> ProbeVerdict:
    """The verdict on a finished run."""
    return ProbeJudge(slo, error=error).judge(probe_view(run.records, (), slo, started=run.started, now=run.ended))


class SloWatch:
    """An observer that ends a run as soon as the objective is decided."""

    def __init__(self, slo: Slo, *, error: float = 0.05) -> None:
        self._slo = slo
        self._error = error
        self._judge = ProbeJudge(slo, error=error)
        self._verdict: ProbeVerdict | None = None

    def observe(self, progress: LoadProgress) -> bool:
        """Judge what is there so far; True ends the run."""
        view = probe_view(progress.finished, progress.in_flight, self._slo, started=progress.started, now=progress.now)
        self._verdict = self._judge.judge(view)
        return self._verdict.decided

    def conclude(self, run: LoadRun) -> ProbeVerdict:
        """The verdict on the run: the one that ended it, since a second look is not covered by the error rates."""
        if run.ended_by_observer and self._verdict is not None and self._verdict.decided:
            return self._verdict
        return judge_run(run, self._slo, error=self._error)


def _values(record: RequestRecord, slo: Slo) -> list[float]:
    if not record.succeeded:
        return [math.inf] * len(slo.targets)
    values = (record.value(target.metric) for target in slo.targets)
    return [math.nan if value is None else value for value in values]
