"""Which Optuna sampler proposes the configurations."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable

from optuna.samplers import BaseSampler, GPSampler, QMCSampler, RandomSampler, TPESampler

from autotune.base.errors import EnvironmentProblemError
from autotune.spec import SamplerChoice

STARTUP_TRIALS = 6
"""Trials before the model of a sampler takes over; the baselines count among them."""


def sampler_factory(choice: SamplerChoice, seed: int) -> Callable[[int], BaseSampler]:
    """Samplers by the number of the proposal, each seeded by the study's seed and that number.

    Raises:
        EnvironmentProblemError: packages that the sampler needs are missing.
    """
    make_sampler(choice, seed)
    return lambda proposal: make_sampler(choice, seed * 1_000_003 + proposal)


def make_sampler(choice: SamplerChoice, seed: int) -> BaseSampler:
    """A sampler.

    Raises:
        EnvironmentProblemError: ``gp`` or ``qmc`` was asked for and its packages are missing.
    """
    if choice in (SamplerChoice.AUTO, SamplerChoice.TPE):
        return TPESampler(n_startup_trials=STARTUP_TRIALS, seed=seed)
    if choice is SamplerChoice.RANDOM:
        return RandomSampler(seed=seed)
    needed = ("scipy", "torch") if choice is SamplerChoice.GP else ("scipy",)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblemError(
            f"sampler {choice}: {' and '.join(missing)} not installed.",
            "Install 'vllm-autotune[gp]', or use --sampler tpe.",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if choice is SamplerChoice.GP:
            return GPSampler(n_startup_trials=STARTUP_TRIALS, seed=seed)
        return QMCSampler(scramble=True, seed=seed)
