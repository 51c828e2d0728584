"""Which configurations are confirmed, and in which order.

Finalists and the default are measured again on freshly started engines with unseen prompts, interleaved:
each round starts with another configuration, so that a drift of the machine falls on all alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.search.baselines import DEFAULT_LABEL, FITTED_LABEL
from autotune.search.objective import OUTPUT, Figure
from autotune.spec import Arguments
from autotune.store.result import Outcome, Role, TrialDocument

CONFIRMATION_BLOCKS = 3
_ROUNDS = {1: 2, 2: 4}
"""Rounds by the number of finalists, where it is not :data:`CONFIRMATION_BLOCKS`: the noise is estimated from all of
them together, so two alone need a round more, and the default alone has nobody to be compared with."""
MAX_CHALLENGERS = 2
MOST_CONFIRMATIONS = max(
    finalists * _ROUNDS.get(finalists, CONFIRMATION_BLOCKS) for finalists in range(1, MAX_CHALLENGERS + 2)
)
"""Trials of a confirmation at most, before the first look at the gain."""
WORTH_CONFIRMING = 0.97
"""A configuration below this share of the reference's search figure is no challenger."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A configuration to be measured in every confirmation round."""

    label: str
    arguments: Arguments
    search_merit: float
    """Merit of its figure as the search saw it."""

    @property
    def key(self) -> str:
        """One text per configuration."""
        return configuration_key(self.arguments)


def configuration_key(arguments: Arguments) -> str:
    """One text per configuration, whatever the order of its arguments."""
    return json.dumps(dict(arguments), sort_keys=True)


def reference_trial(trials: Iterable[TrialDocument]) -> TrialDocument | None:
    """The default to beat: vLLM without flags, or with the fitted context where the bare one cannot run."""
    baselines = {d.label: d for d in trials if d.role is Role.BASELINE and d.outcome is Outcome.MEASURED}
    return baselines.get(DEFAULT_LABEL) or baselines.get(FITTED_LABEL)


def choose_finalists(trials: Iterable[TrialDocument], score: Figure = OUTPUT) -> list[Finalist]:
    """The reference first, then at most two challengers that came close to it or above it."""
    documents = list(trials)
    reference = reference_trial(documents)
    floor = WORTH_CONFIRMING * score.merit(reference) if reference is not None else 0.0
    seen = {configuration_key(reference.arguments)} if reference is not None else set()
    challengers: list[TrialDocument] = []
    candidates = [d for d in documents if d.outcome is Outcome.MEASURED and d.role is not Role.CONFIRMATION]
    for document in sorted(candidates, key=lambda d: (-score.merit(d), len(d.arguments))):
        value = score.merit(document)
        if (
            value > 0
            and value >= floor
            and not document.dominated
            and configuration_key(document.arguments) not in seen
        ):
            seen.add(configuration_key(document.arguments))
            challengers.append(document)
    chosen = ([reference] if reference is not None else []) + challengers[:MAX_CHALLENGERS]
    return [Finalist(d.label, d.arguments, score.merit(d)) for d in chosen]


def confirmation_rounds(finalists: int) -> int:
    """Rounds in which so many finalists are measured, before the first look at the gain."""
    return _ROUNDS.get(finalists, CONFIRMATION_BLOCKS)


def first_round(finalists: Sequence[Finalist], trials: Iterable[TrialDocument]) -> int:
    """Number of the round in which the confirmation of these finalists begins.

    A study that is extended after its confirmation may have other finalists. Then all of them are measured in rounds of
    their own: what was measured of one of them before the search went on is not comparable with what is measured now.
    """
    documents = list(trials)
    confirmed = [t for t in documents if t.role is Role.CONFIRMATION and t.block is not None]
    searched = [t.number for t in documents if t.role is not Role.CONFIRMATION]
    if not confirmed:
        return 0
    newest = max(t.number for t in confirmed)
    before = max((number for number in searched if number < newest), default=-1)
    start = min(t.block or 0 for t in confirmed if t.number > before)
    rounds = range(start, start + confirmation_rounds(len(finalists)))
    if newest > max(searched, default=-1) or not confirmations_left(finalists, rounds, documents):
        return start
    return 1 + max(t.block or 0 for t in confirmed)


def confirmations_left(finalists: Sequence[Finalist], rounds: Iterable[int], trials: Sequence[TrialDocument]) -> int:
    """Trials that are still to be run in these rounds."""
    return sum(not is_settled(finalist, block, trials) for block in rounds for finalist in finalists)


def round_order(finalists: Sequence[Finalist], block: int) -> list[Finalist]:
    """The order within one round: rotated, and reversed every other round."""
    if not finalists:
        return []
    shift = block % len(finalists)
    rotated = [*finalists[shift:], *finalists[:shift]]
    return rotated[::-1] if block % 2 else rotated


def is_settled(finalist: Finalist, block: int, trials: Iterable[TrialDocument]) -> bool:
    """Whether a round's result is known: it was measured, or another round showed that it cannot run."""
    rounds = [t for t in trials if t.role is Role.CONFIRMATION and configuration_key(t.arguments) == finalist.key]
    return any(t.outcome is Outcome.INFEASIBLE or (t.block == block and t.outcome is Outcome.MEASURED) for t in rounds)
