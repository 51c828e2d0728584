"""Watches a running probe: judges it, sees a dead or a stuck engine, tells how it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.engine.api import RunningEngine
from autotune.load.api import LoadProgress, LoadRun
from autotune.load.judging import probe_view
from autotune.load.records import ErrorKind, RequestRecord
from autotune.stats.probe import ProbeJudge, ProbeVerdict
from autotune.stats.slo_test import Verdict
from autotune.telemetry import Recorder

_HANG_WALL_S = 20.0
_LOOK_AT_TOKENS_EVERY_S = 2.0


@dataclass
class ProbeWatch:
    """A load observer that ends the run when it is decided, or when the engine died or hangs.

    ``hang_after`` is engine seconds without a single token while requests are out. ``news_delay`` is how old the
    parent's picture may be, engine seconds: workers report every few tenths of a wall second, which a scaled clock
    multiplies, so a request that looks overdue may have been answered long ago.
    """

    judge: ProbeJudge
    engine: RunningEngine
    recorder: Recorder
    hang_after: float
    report: Callable[[LoadProgress, int], None]
    news_delay: float = 0.0
    whole: bool = False
    """Go on after a pass: the percentile itself is wanted, not only on which side of its limit it lies."""
    tolerated: float = 0.0
    """A whole probe goes on after a fail, too, while the log of the percentile over its limit is below this."""
    hung: bool = False
    verdict: ProbeVerdict | None = None
    _moment: float = -math.inf
    _progress_mark: float = -1.0
    _moved_at: float = -math.inf
    _moved_wall: float = field(default_factory=time.monotonic)
    _looked_at: float = -math.inf

    def observe(self, progress: LoadProgress) -> bool:
        """Judge what is there so far; True ends the run."""
        if self.engine.exited():
            return True
        self._moment = progress.now - self.news_delay
        if self._moment > progress.started:
            self.verdict = self._judge_at(self._moment, progress.finished, progress.in_flight, progress.started)
            self.report(progress, self.verdict.misses)
        self.hung = self._is_stuck(progress)
        return self.hung or self._is_over()

    def _is_over(self) -> bool:
        if self.verdict is None or not self.verdict.decided:
            return False
        if not self.whole:
            return True
        beyond = self.verdict.saturated or not self.verdict.log_margin < self.tolerated
        return self.verdict.decision is Verdict.FAIL and beyond

    def conclude(self, run: LoadRun) -> ProbeVerdict:
        """The verdict on a finished run.

        A run that was ended because it was decided is judged at that same moment again, now that all that had
        happened by then is known; what came in while it was being ended would be a second look, which the test's
        error rates do not cover. Otherwise requests cut off by us count as out at the moment of the end.
        """
        decided = run.ended_by_observer and self.verdict is not None and self.verdict.decided
        out = [r.scheduled for r in run.records if r.error is ErrorKind.CANCELLED]
        return self._judge_at(self._moment if decided else run.ended, run.records, out, run.started)

    def _judge_at(
        self, moment: float, records: Sequence[RequestRecord], out: Sequence[float], started: float
    ) -> ProbeVerdict:
        """What was true at a moment: answers that came after it were still out then."""
        done = [r for r in records if r.finished <= moment and r.error is not ErrorKind.CANCELLED]
        later = [r.scheduled for r in records if r.finished > moment and r.error is not ErrorKind.CANCELLED]
        in_flight = [s for s in (*later, *out) if s <= moment]
        return self.judge.judge(probe_view(done, in_flight, self.judge.slo, started=started, now=moment))

    def _is_stuck(self, progress: LoadProgress) -> bool:
        wall = time.monotonic()
        if wall - self._looked_at < _LOOK_AT_TOKENS_EVERY_S:
            return False
        self._looked_at = wall
        mark = self._tokens() + len(progress.finished)
        if mark != self._progress_mark or not progress.in_flight:
            self._progress_mark, self._moved_at, self._moved_wall = mark, progress.now, wall
        return progress.now - self._moved_at > self.hang_after and wall - self._moved_wall > _HANG_WALL_S

    def _tokens(self) -> float:
        telemetry = self.recorder.so_far()
        return sum(
            series[-1]
            for column in ("engine.generation_tokens", "engine.prompt_tokens")
            if (series := telemetry.series(column)[1])
        )
