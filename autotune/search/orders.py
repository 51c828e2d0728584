"""What the next trial is asked to do: where its capacity search begins, and when it may end early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.search.baselines import DEFAULT_LABEL, FITTED_LABEL
from autotune.search.confirmation import configuration_key
from autotune.search.context import StudyContext
from autotune.search.mix import part_of, reference_of
from autotune.search.objective import Aim
from autotune.spec import Arguments, Combine, Workload
from autotune.store.result import Role, TrialDocument, WorkloadFigures
from autotune.trial.order import TrialOrder, WorkloadRates

REPEAT_UNCERTAINTY, NEIGHBOUR_UNCERTAINTY, MODEL_UNCERTAINTY = 1.5, 2.0, 3.0
"""Factors by which a capacity may differ from an earlier figure of the same configuration, from that of the best
one so far, and from what the models of speed say. Wide even for a repeat: a narrow prior would lean every repeat
towards the first figure and hide both the noise and the winner's curse."""
BRIEF = 0.5
"""Effort of proposals, modes and single rounds of the confirmation, relative to the default's first measurement."""

Figures = TrialDocument | WorkloadFigures


def make_order(
    context: StudyContext,
    aim: Aim,
    trials: Sequence[TrialDocument],
    best: TrialDocument | None,
    number: int,
    role: Role,
    arguments: Arguments,
    attributes: Mapping[str, Any],
) -> TrialOrder:
    """The order of a trial, from what its predecessors showed; ``best`` is the best of them."""
    label = str(attributes.get("label", ""))
    quoted = role is Role.CONFIRMATION or label in (DEFAULT_LABEL, FITTED_LABEL)
    may_be_dropped = aim.ranks_by_capacity and not quoted and context.spec.combine is Combine.WORST
    rates = _rates(
        arguments,
        [(t.arguments, t) for t in trials],
        best,
        lambda: context.predicted_rate(arguments),
    )
    incumbent = best.capacity_rps if best is not None else None
    workloads = context.spec.workloads if context.spec.mix else ()
    reference = reference_of(trials)

    def of_workload(workload: Workload) -> WorkloadRates:
        parts = [(t.arguments, part) for t in trials if (part := part_of(t, workload.name)) is not None]
        usual = None if reference is None else part_of(reference, workload.name)
        guess = _rates(
            arguments,
            parts,
            None if best is None else part_of(best, workload.name),
            lambda: context.predicted_rate_of(arguments, workload),
        )
        return WorkloadRates(*guess, _to_beat(usual, best) if may_be_dropped else None)

    return TrialOrder(
        number=number,
        role=role,
        arguments=arguments,
        folder=context.folder.trial(number),
        label=label,
        block=attributes.get("block"),
        incumbent_rate=incumbent if may_be_dropped else None,
        must_resolve=not may_be_dropped,
        is_reference=label in (DEFAULT_LABEL, FITTED_LABEL),
        effort=1.0 if role is Role.BASELINE and quoted else BRIEF,
        guess_rate=rates[0],
        guess_uncertainty=rates[1],
        light_rate=next((t.light_rps for t in trials if t.light_rps is not None), None),
        rates={workload.name: of_workload(workload) for workload in workloads},
    )


def _rates(
    arguments: Arguments,
    trials: Sequence[tuple[Arguments, Figures]],
    best: Figures | None,
    predicted: Callable[[], float | None],
) -> tuple[float | None, float]:
    """A rate (req/s) to start from, and the factor by which it may be wrong.

    An earlier figure of this configuration, else that of the best, else what the models of speed say.
    """
    key = configuration_key(arguments)
    for given, figures in trials:
        if configuration_key(given) == key and figures.capacity_rps and not figures.dominated:
            return figures.capacity_rps, REPEAT_UNCERTAINTY
    if best is not None and best.capacity_rps:
        return best.capacity_rps, NEIGHBOUR_UNCERTAINTY
    return predicted(), MODEL_UNCERTAINTY


def _to_beat(usual: WorkloadFigures | None, best: TrialDocument | None) -> float | None:
    """Capacity of a workload below which the worst ratio cannot be better than the best one's."""
    if usual is None or usual.capacity_rps is None or best is None or not best.relative:
        return None
    found = usual.capacity_rps * best.relative
    return found if math.isfinite(found) else None
