"""Where the capacity search of a trial begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autotune.search.confirmation import configuration_key
from autotune.spec import Arguments
from autotune.store.result import TrialDocument

REPEAT_UNCERTAINTY, NEIGHBOUR_UNCERTAINTY, MODEL_UNCERTAINTY = 1.5, 2.0, 3.0
"""Factors by which a capacity may differ from an earlier figure of the same configuration, from that of the best
one so far, and from what the models of speed say. Wide even for a repeat: a narrow prior would lean every repeat
towards the first figure and hide both the noise and the winner's curse."""


def guess_rate(
    arguments: Arguments,
    trials: Iterable[TrialDocument],
    best: TrialDocument | None,
    predicted_rate: Callable[[Arguments], float | None],
) -> tuple[float | None, float]:
    """A rate (req/s) to start from, and the factor by which it may be wrong.

    An earlier figure of this configuration, else that of the best, else what the models of speed say.
    """
    key = configuration_key(arguments)
    for document in trials:
        if configuration_key(document.arguments) == key and document.capacity_rps and not document.dominated:
            return document.capacity_rps, REPEAT_UNCERTAINTY
    if best is not None and best.capacity_rps:
        return best.capacity_rps, NEIGHBOUR_UNCERTAINTY
    return predicted_rate(arguments), MODEL_UNCERTAINTY
