"""The display of a running study: a live view in a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_duration
from autotune.report import figures
from autotune.search.events import ProbeProgress, StudyPlan, TrialStarted
from autotune.search.objective import aim_of_result
from autotune.space import to_argv
from autotune.store.result import (
    Decision,
    Outcome,
    Role,
    StudyDocument,
    TrialDocument,
    VerdictDocument,
    WorkloadFigures,
)

_PLAIN_INTERVAL_S = 10.0


def summarise_trial(trial: TrialDocument) -> str:
    """One line on how a trial ended."""
    if trial.outcome is not Outcome.MEASURED:
        how = trial.outcome.value if trial.launched or trial.reused_from else "refused before launch"
        return f"{how}: {trial.reason}" + (f" ({trial.detail})" if trial.detail else "")
    if not trial.launched:
        return f"known already ({trial.detail})"
    if not trial.output_tokens_per_s:
        return "the objective is missed at every load tried"
    below = " (dropped: cannot beat the best)" if trial.dominated else ""
    rate = "" if trial.capacity_rps is None else f"{trial.capacity_rps:.3g} req/s, "
    p99 = "" if trial.p99_latency_s is None else f", P99 {trial.p99_latency_s:.3g} s"
    light = "" if trial.light_rps is None else f", {_light_text(trial)}"
    changed = "; cannot win: it changes the output too much" if trial.changes_output else ""
    if trial.workloads:
        rates = ", ".join(f"{part.workload} {_part_text(part)}" for part in trial.workloads)
        relative = "" if trial.relative is None else f", {trial.relative:.3g} times the default"
        return f"{rates}{relative} from {trial.requests} requests{below}{changed}"
    carried = f"{rate}{trial.output_tokens_per_s:.4g} output tok/s{p99}{light}"
    return f"{carried} from {trial.requests} requests{below}{changed}"


def _part_text(part: WorkloadFigures) -> str:
    if not part.output_tokens_per_s:
        return "missed"
    return figures.rate(part.capacity_rps) if part.capacity_rps else figures.tokens_per_second(part.output_tokens_per_s)


def _light_text(trial: TrialDocument) -> str:
    latency = "none" if trial.target_latency_s is None else f"{trial.target_latency_s:.3g} s"
    return f"{latency} at {trial.light_rps:.3g} req/s"


class _ProbePace:
    """How long a probe still takes at its pace: at most, for it may be decided early."""

    def __init__(self) -> None:
        self._probe: tuple[int, int] | None = None
        self._began = 0.0

    def left(self, progress: ProbeProgress) -> str:
        """``at most 20s more``; empty before the first answers."""
        now = time.monotonic()
        if self._probe != (progress.trial, progress.index):
            self._probe, self._began = (progress.trial, progress.index), now
        spent = now - self._began
        if spent <= 0 or progress.finished <= 0:
            return ""
        seconds = spent * (progress.planned - progress.finished) / progress.finished
        return f"at most {format_duration(round(seconds))} more" if seconds >= 1 else ""


class PlainDisplay:
    """One line per event; for pipes, logs and CI."""

    def __init__(self, headline: str) -> None:
        self._headline = headline
        self._started = time.monotonic()
        self._last_probe = 0.0
        self._announced = False
        self._pace = _ProbePace()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def line(self, text: str) -> None:
        """Write one line with the time since the start."""
        print(
            f"[{format_duration(max(1, round(time.monotonic() - self._started))):>7}] {text}",
            file=sys.stderr,
            flush=True,
        )

    def planned(self, plan: StudyPlan) -> None:
        """Announce the plan."""
        count = "as many trials as the time allows" if plan.trials is None else _counted(plan.trials, "trial")
        resumed = f" Resuming after {_counted(plan.resumed_trials, 'finished trial')}." if plan.resumed_trials else ""
        self.announce()
        self.line(f"Plan: baselines, then {count}, then confirmation on fresh engines.{resumed}")

    def trial_started(self, event: TrialStarted) -> None:
        """Announce a trial with the ETA."""
        eta = "" if event.eta_seconds is None else f", about {format_duration(max(1, round(event.eta_seconds)))} left"
        proposal = f"proposal {event.position + 1}" + (f" of {event.total}" if event.total else "")
        what = event.label or ("a finalist" if event.role == Role.CONFIRMATION.value else proposal)
        self.line(f"Trial {event.number} ({event.role}: {what}{eta}): {event.flags}")

    def phase(self, text: str) -> None:
        """Phases are too many for plain lines."""

    def probe(self, progress: ProbeProgress) -> None:
        """A line every ten seconds at most."""
        left = self._pace.left(progress)
        if time.monotonic() - self._last_probe >= _PLAIN_INTERVAL_S:
            self._last_probe = time.monotonic()
            self.line(f"  probe {progress.index}: {_probe_text(progress)}" + (f", {left}" if left else ""))

    def trial_finished(self, trial: TrialDocument, best: TrialDocument | None) -> None:
        """How the trial ended."""
        self.line(f"  -> {summarise_trial(trial)}")

    def notice(self, text: str) -> None:
        """Pass it on, below what the study is."""
        self.announce()
        self.line(text)

    def announce(self) -> None:
        """Say what the study is, once."""
        if not self._announced:
            self._announced = True
            self.line(self._headline)

    def saved(self, document: StudyDocument) -> None:
        """Not worth a line."""

    def concluded(self, verdict: VerdictDocument) -> None:
        """The verdict."""
        self.line(f"Verdict: {verdict.decision.value}. {verdict.text}")


class LiveDisplay(PlainDisplay):
    """Finished trials scroll by; the running one and the best so far stay at the bottom."""

    def __init__(self, headline: str) -> None:
        super().__init__(headline)
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._trial: TrialStarted | None = None
        self._trial_began = 0.0
        self._phase = ""
        self._probe: ProbeProgress | None = None
        self._probe_left = ""
        self._best: TrialDocument | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def line(self, text: str) -> None:
        """Write one line above the live view."""
        elapsed = format_duration(max(1, round(time.monotonic() - self._started)))
        self._console.print(Text(f"[{elapsed:>7}] {text}"))

    def trial_started(self, event: TrialStarted) -> None:
        """Announce it and show it below."""
        super().trial_started(event)
        self._trial, self._probe, self._trial_began = event, None, time.monotonic()
        self._refresh()

    def phase(self, text: str) -> None:
        """Show what is being done."""
        self._phase, self._probe = text, None
        self._refresh()

    def probe(self, progress: ProbeProgress) -> None:
        """Show the running probe."""
        self._probe, self._probe_left = progress, self._pace.left(progress)
        self._refresh()

    def trial_finished(self, trial: TrialDocument, best: TrialDocument | None) -> None:
        """Move the trial up, keep the best."""
        super().trial_finished(trial, best)
        self._best, self._trial, self._probe = best, None, None
        self._refresh()

    def _refresh(self) -> None:
        rows = Table.grid(padding=(0, 2))
        if self._trial is not None:
            eta = self._trial.eta_seconds
            remaining = 0.0 if eta is None else eta - (time.monotonic() - self._trial_began)
            left = f"about {format_duration(round(remaining))} left" if remaining >= 1 else ""
            rows.add_row(Text("now", style="bold"), Text(f"trial {self._trial.number}: {self._phase}"), Text(left))
        if self._probe is not None:
            rows.add_row("", Text(_probe_text(self._probe)), Text(f"{_bar(self._probe)} {self._probe_left}".rstrip()))
        if self._best is not None:
            rows.add_row(
                Text("best", style="bold"), Text(f"trial {self._best.number}: {summarise_trial(self._best)}"), ""
            )
        self._live.update(Group(rows))


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("" if count == 1 else "s")


def _probe_text(progress: ProbeProgress) -> str:
    return (
        f"{progress.level}: {progress.finished} of at most {progress.planned} answered, "
        f"{progress.sent - progress.finished} under way, {progress.misses} late or failed"
    )


def _bar(progress: ProbeProgress, width: int = 20) -> str:
    filled = round(width * min(1.0, progress.finished / max(1, progress.planned)))
    return "█" * filled + "░" * (width - filled)


def make_display(headline: str) -> PlainDisplay:
    """A live view in a terminal, plain lines otherwise."""
    return LiveDisplay(headline) if sys.stderr.isatty() else PlainDisplay(headline)


def final_summary(document: StudyDocument) -> str:
    """What a person wants to read at the end."""
    verdict, best = document.verdict, document.best
    simulated = " (SIMULATED engine)" if document.simulated else ""
    lines = [f"Verdict{simulated}: {verdict.decision.value}. {verdict.text}"]
    if best is not None:
        flags = shlex.join(to_argv(best.arguments))
        rate = "" if best.capacity_rps is None else f"{best.capacity_rps:.3g} req/s, "
        tokens = "" if best.output_tokens_per_s is None else f"{best.output_tokens_per_s:.4g} output tok/s"
        lines.append(f"Use: vllm serve {shlex.quote(document.model_source)} {flags or '(no flags)'}")
        lines.append(f"Carries{simulated}: {rate}{tokens} at {_slo_text(document)}, from {best.requests} requests.")
        lines += [
            f"{figure.title[0].upper()}{figure.title[1:]}{simulated}: {figures.quantity(figure.of(best), figure.unit)}"
            + (f" at {figures.rate(best.light_rps)}." if best.light_rps is not None else ".")
            for figure in aim_of_result(document).beside_output
        ]
        lines += [
            f"With {part.workload}{simulated}: "
            + (f"{figures.rate(part.capacity_rps)}, " if part.capacity_rps is not None else "")
            + f"{figures.tokens_per_second(part.output_tokens_per_s)} out, P99 {figures.seconds(part.p99_latency_s)}."
            for part in best.workloads
        ]
        if best.quality is not None:
            lines.append(f"Output{simulated} against the default: {best.quality.text}.")
    elif verdict.decision is Decision.NO_FEASIBLE_CONFIGURATION:
        lines.append("No best.yaml was written.")
    return "\n".join(lines)


def _slo_text(document: StudyDocument) -> str:
    return " and ".join(f"{key} <= {limit}" for key, limit in document.slo.items())
