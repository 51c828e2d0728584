"""Which arguments mattered: how much of the ranking of the trials each explains by itself, and how sure that is.

For each argument the trials are put into at most three groups by its value, and the share of the variance of
their ranks that lies between the groups is computed, adjusted for the number of groups (epsilon squared of
the Kruskal-Wallis test). The interval comes from resampling the trials, the probability of as large a share
by chance from shuffling their ranks. Arguments that act only together with others can be missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.objective import aim_of_result
from autotune.spec import ArgumentValue
from autotune.store.result import Outcome, Role, StudyDocument, TrialDocument

LEAST_TRIALS = 8
_GROUPS = 3
_RESAMPLES = 1000

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Importance:
    """One argument. ``share`` and ``interval`` (90 %) are 0 to 1; ``chance`` is the probability by chance."""

    argument: str
    share: float
    interval: tuple[float, float]
    chance: float
    best_value: str
    """The value, or range of values, of the group that ranked best."""

    @property
    def is_clear(self) -> bool:
        """Unlikely to be chance."""
        return self.chance < 0.05


def importances(document: StudyDocument) -> list[Importance]:
    """Arguments that varied, the most important first; empty with fewer than ``LEAST_TRIALS`` measured trials."""
    trials = [t for t in document.trials if t.role is not Role.CONFIRMATION and t.outcome is Outcome.MEASURED]
    if len(trials) < LEAST_TRIALS:
        return []
    score = aim_of_result(document).score
    ranks = _ranks([score.merit(t) for t in trials])
    found = []
    for name, default in _arguments(document):
        values = [_value(trial, name, default) for trial in trials]
        groups, labels = _grouped(values)
        if len(labels) > 1:
            found.append(_judge(name, ranks, groups, labels))
    return sorted(found, key=lambda each: each.share, reverse=True)


def _arguments(document: StudyDocument) -> list[tuple[str, ArgumentValue | None]]:
    """Searched arguments with what the unset one stands for."""
    parameters = document.space.get("parameters")
    if not isinstance(parameters, dict):
        return []
    return [(name, facts.get("default") if isinstance(facts, dict) else None) for name, facts in parameters.items()]


def _value(trial: TrialDocument, name: str, default: ArgumentValue | None) -> ArgumentValue | None:
    return trial.arguments.get(name, default)


def _grouped(values: list[ArgumentValue | None]) -> tuple[Groups, list[str]]:
    """Group number of each value, and what each group is called."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    distinct = sorted(set(numbers))
    if len(numbers) < len(values) or len(distinct) <= _GROUPS:
        names = sorted({str(v) for v in values})
        return np.array([names.index(str(v)) for v in values]), names
    edges = np.quantile(np.array(numbers, dtype=float), np.arange(1, _GROUPS) / _GROUPS)
    raw = np.searchsorted(edges, np.array(numbers, dtype=float), side="left")
    kept = sorted(set(raw.tolist()))
    groups = np.array([kept.index(g) for g in raw.tolist()])
    labels = []
    for index in range(len(kept)):
        members = [n for n, g in zip(numbers, groups.tolist(), strict=True) if g == index]
        low, high = min(members), max(members)
        labels.append(f"{low:g}" if low == high else f"{low:g} to {high:g}")
    return groups, labels


def _judge(name: str, ranks: Floats, groups: Groups, labels: list[str]) -> Importance:
    n = len(ranks)
    members = np.eye(len(labels))[groups]
    rng = np.random.default_rng(0)
    once = np.ones((1, n))
    share = float(_shares(ranks[None, :], once, members)[0])
    resampled = _shares(ranks[None, :], rng.multinomial(n, np.full(n, 1 / n), _RESAMPLES).astype(float), members)
    shuffled = _shares(rng.permuted(np.tile(ranks, (_RESAMPLES, 1)), axis=1), once, members)
    low, high = np.quantile(resampled, (0.05, 0.95))
    means = (ranks @ members) / members.sum(axis=0)
    return Importance(
        argument=name,
        share=share,
        interval=(float(low), float(high)),
        chance=(int((shuffled >= share - 1e-12).sum()) + 1) / (_RESAMPLES + 1),
        best_value=labels[int(np.argmax(means))],
    )


def _shares(values: Floats, weights: Floats, members: Floats) -> Floats:
    """Adjusted share of the variance between the groups, at least 0, for each row.

    Args:
        values: a row of values each, or one row for all.
        weights: how often each value counts, a row each or one for all.
        members: 1 where a value (row) belongs to a group (column).
    """
    weighted = values * weights
    sizes = weights @ members
    sums = weighted @ members
    squares = (weighted * values).sum(axis=1)
    n, k = weights.sum(axis=1), (sizes > 0).sum(axis=1)
    total = squares - weighted.sum(axis=1) ** 2 / n
    within = squares - np.divide(sums**2, sizes, out=np.zeros_like(sums), where=sizes > 0).sum(axis=1)
    possible = (k > 1) & (n > k) & (total > 1e-9)
    spread = np.where(possible, total / (n - 1), 1.0)
    residual = within / np.maximum(n - k, 1)
    return np.where(possible, np.maximum(0.0, 1 - residual / spread), 0.0)


def _ranks(values: list[float]) -> Floats:
    """Ranks from 1, equal values sharing their mean rank."""
    array = np.array(values)
    below = (array[None, :] < array[:, None]).sum(axis=1)
    equal = (array[None, :] == array[:, None]).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2, dtype=float)
