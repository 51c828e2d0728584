"""How a bench goes: a live view in a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_duration
from autotune.cli.console import stderr_console
from autotune.load import LoadPlan, LoadProgress
from autotune.load.sweep import LevelResult
from autotune.spec import Metric

_PLAIN_INTERVAL_S = 10.0
_RECENT = 200


class BenchDisplay:
    """Follows a sweep; set ``interrupted`` to end it at the next look."""

    def __init__(self) -> None:
        self.interrupted = False
        self._console = stderr_console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=True) if sys.stderr.isatty() else None
        self._plan: LoadPlan | None = None
        self._place = ""
        self._last_line = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._console.print(Text(text))

    def begin(self, plan: LoadPlan, position: int, total: int | None) -> None:
        """A level begins."""
        self._plan = plan
        self._place = f"level {position + 1}" + (f" of {total}" if total is not None else "")
        self._last_line = time.monotonic()
        self.say(f"{self._place}: {plan.level}")

    def moved(self, progress: LoadProgress) -> bool:
        """Show where the level is."""
        if self._plan is not None:
            if self._live is not None:
                self._live.update(self._view(self._plan, progress))
            elif time.monotonic() - self._last_line >= _PLAIN_INTERVAL_S:
                self._last_line = time.monotonic()
                self.say("  " + ", ".join(f"{value} {name}" for name, value in _figures(self._plan, progress)))
        return self.interrupted

    def done(self, result: LevelResult) -> None:
        """One line on a finished level."""
        if self._live is not None:
            self._live.update(Text(""))
        summary = result.summary
        p99 = summary.percentile(Metric.LATENCY, 99)
        shown = "no answer" if not summary.succeeded else f"P99 {p99:.3g} s"
        self.say(
            f"  {summary.succeeded} of {summary.requests} answered in {format_duration(max(summary.duration, 1e-3))}, "
            f"{shown}, {summary.output_tokens_per_s:.4g} output tok/s"
        )

    def _view(self, plan: LoadPlan, progress: LoadProgress) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_row(Text(f"{self._place}: {plan.level}", style="bold"), Text(_bar(plan, progress)))
        for name, value in _figures(plan, progress):
            table.add_row(Text(name), Text(value))
        return table


def _figures(plan: LoadPlan, progress: LoadProgress) -> list[tuple[str, str]]:
    elapsed = max(progress.now - progress.started, 1e-9)
    failed = sum(not record.succeeded for record in progress.finished)
    recent = progress.finished[-_RECENT:]
    tokens = sum(record.output_tokens for record in recent)
    span = progress.now - min((record.finished for record in recent), default=progress.now)
    oldest = progress.now - progress.in_flight[0] if progress.in_flight else 0.0
    figures = [
        ("answered", str(len(progress.finished) - failed)),
        ("failed", str(failed)),
        ("under way", f"{len(progress.in_flight)} (oldest {oldest:.3g} s)"),
        ("sent per second", f"{progress.sent / elapsed:.3g}"),
        ("output tok/s lately", f"{tokens / span:.4g}" if span > 0 else "-"),
    ]
    left = _seconds_left(plan, progress)
    return figures if left is None else [*figures, ("of sending left", format_duration(max(left, 1.0)))]


def _seconds_left(plan: LoadPlan, progress: LoadProgress) -> float | None:
    """Engine seconds until the last request is sent, as far as one can tell."""
    elapsed = progress.now - progress.started
    by_duration = plan.max_duration - elapsed
    rate = plan.level.rate or (len(progress.finished) / elapsed if elapsed > 0 else 0.0)
    by_requests = (plan.max_requests - progress.sent) / rate if rate > 0 else float("inf")
    left = min(by_duration, by_requests)
    return left if 0 < left < float("inf") else None


def _bar(plan: LoadPlan, progress: LoadProgress, width: int = 30) -> str:
    elapsed = progress.now - progress.started
    share = max(progress.sent / plan.max_requests, elapsed / plan.max_duration)
    filled = round(width * min(1.0, share))
    return "█" * filled + "░" * (width - filled)
