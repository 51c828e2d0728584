"""Measures a claim again: does this configuration still carry what was said of it?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.base.errors import EnvironmentProblemError
from autotune.search.events import StudyObserver
from autotune.search.run import PreparedStudy
from autotune.search.setup import TrialEvents, trial_setup
from autotune.spec import Arguments, LoadLevel
from autotune.store.result import Outcome, Role, TrialDocument
from autotune.trial import TrialOrder, TrialRunner

TOLERANCE = 0.05
"""The precision of a capacity: a claim holds when the objective holds at this much less load."""
_UNSEEN = 9001
"""Number of a prompt stream that no study uses."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What measuring again showed."""

    holds: bool
    level: LoadLevel
    trial: TrialDocument

    @property
    def text(self) -> str:
        """One sentence."""
        trial, probe = self.trial, self.trial.probes[-1] if self.trial.probes else None
        if trial.outcome is Outcome.INFEASIBLE:
            return f"The configuration does not run any more: {trial.reason} ({trial.detail})."
        assert probe is not None
        share = f"{probe.misses} of {probe.requests} requests missed the objective"
        return f"At {self.level} the objective {'holds' if self.holds else 'is missed'}: {share}."


def claimed_level(load: LoadLevel | None, capacity_rps: float | None) -> LoadLevel | None:
    """The load at which a claim is tried: the fixed one, or a little below the claimed capacity."""
    if load is not None:
        return load
    return None if capacity_rps is None else LoadLevel.open(capacity_rps * (1 - TOLERANCE))


def verify_claim(
    prepared: PreparedStudy, arguments: Arguments, level: LoadLevel, folder: Path, observer: StudyObserver
) -> Verification:
    """Start the engine with the arguments and judge the objective at one load, with prompts no study has used.

    Of several workloads the first is sent, whose capacity the exported file names.

    Raises:
        EnvironmentProblemError: something other than the configuration stood in the way.
    """
    setup = replace(trial_setup(prepared.context, prepared.selection), load=level, more_workloads=())
    runner = TrialRunner(setup, TrialEvents(observer))
    order = TrialOrder(number=0, role=Role.CONFIRMATION, arguments=arguments, folder=folder, block=_UNSEEN)
    trial = asyncio.run(runner.run(order))
    if trial.outcome is Outcome.FAULT:
        raise EnvironmentProblemError(f"the claim could not be measured: {trial.reason}: {trial.detail}.", trial.advice)
    return Verification(bool(trial.output_tokens_per_s), level, trial)
