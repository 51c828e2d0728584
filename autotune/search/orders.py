"""What the next trial is asked to do: where its capacity search begins, and when it may end early."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.search.baselines import DEFAULT_LABEL, FITTED_LABEL
from autotune.search.confirmation import configuration_key
from autotune.search.context import StudyContext
from autotune.search.mix import part_of, reference_of
from autotune.search.objective import Aim
from autotune.search.standing import comparison_with, confirming, start_factor
from autotune.spec import Arguments, Combine, Workload
from autotune.store.result import Role, TrialDocument, WorkloadFigures
from autotune.trial.order import Comparison, TrialOrder, WorkloadRates

REPEAT_UNCERTAINTY, NEIGHBOUR_UNCERTAINTY, MODEL_UNCERTAINTY = 1.5, 2.0, 3.0
"""Factors by which a capacity may differ from an earlier figure of the same configuration, from that of the best
one so far, and from what the models of speed say. Wide even for a repeat: a narrow prior would lean every repeat
towards the first figure and hide both the noise and the winner's curse."""
BRIEF, QUOTED = 0.5, 2.0
"""Effort of what is only compared, and of each round of the confirmation: relative to a test of independent
requests."""

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
    comparison = None
    if aim.ranks_by_capacity and not context.spec.mix and context.spec.load is None:
        comparison = replace(_comparison(trials, best, role, quoted=quoted), steepness=context.steepness())
        rates = _near_the_edge(context, trials, best, role, arguments, rates, attributes.get("block"))
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
        effort=_effort(role, quoted=quoted, compared=comparison is not None),
        guess_rate=rates[0],
        guess_uncertainty=rates[1],
        light_rate=next((t.light_rps for t in trials if t.light_rps is not None), None),
        comparison=comparison,
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


def _effort(role: Role, *, quoted: bool, compared: bool) -> float:
    """Without a comparison the default is measured in full from the beginning."""
    if compared:
        return QUOTED if role is Role.CONFIRMATION else BRIEF
    return 1.0 if role is Role.BASELINE and quoted else BRIEF


def _comparison(trials: Sequence[TrialDocument], best: TrialDocument | None, role: Role, *, quoted: bool) -> Comparison:
    """A confirmation and the default stand for themselves; all others are compared with the best so far."""
    if role is Role.CONFIRMATION:
        return confirming(trials)
    return Comparison() if quoted else comparison_with(best)


def _near_the_edge(
    context: StudyContext,
    trials: Sequence[TrialDocument],
    best: TrialDocument | None,
    role: Role,
    arguments: Arguments,
    rates: tuple[float | None, float],
    block: int | None,
) -> tuple[float | None, float]:
    """Where the edge is thought to be: in the confirmation, where its rounds put it so far; in the search, as far
    beyond the best one's as the models say."""
    if role is Role.CONFIRMATION:
        return _in_round(trials, arguments, block) or rates
    key = configuration_key(arguments)
    known = any(configuration_key(t.arguments) == key and t.capacity_rps and not t.dominated for t in trials)
    if best is None or not best.capacity_rps or known:
        return rates
    factor = start_factor(context.predicted_rate(arguments), context.predicted_rate(best.arguments))
    return best.capacity_rps * factor, rates[1]


def _in_round(trials: Sequence[TrialDocument], arguments: Arguments, block: int | None) -> tuple[float, float] | None:
    """Where a finalist's edge is thought to be in a round: where the search saw it, times what the round's arrivals did
    to those that met them already, or the earlier rounds to all."""
    searched: dict[str, float] = {}
    for trial in trials:
        if trial.role is not Role.CONFIRMATION and trial.capacity_rps and not trial.dominated:
            searched.setdefault(configuration_key(trial.arguments), trial.capacity_rps)
    own = searched.get(configuration_key(arguments))
    if own is None:
        return None
    shifts: dict[bool, list[float]] = {True: [], False: []}
    for trial in trials:
        then = searched.get(configuration_key(trial.arguments))
        if trial.role is Role.CONFIRMATION and trial.capacity_rps and then:
            shifts[trial.block == block].append(trial.capacity_rps / then)
    seen = shifts[True] or shifts[False]
    return own * (statistics.geometric_mean(seen) if seen else 1.0), REPEAT_UNCERTAINTY


def _to_beat(usual: WorkloadFigures | None, best: TrialDocument | None) -> float | None:
    """Capacity of a workload below which the worst ratio cannot be better than the best one's."""
    if usual is None or usual.capacity_rps is None or best is None or not best.relative:
        return None
    found = usual.capacity_rps * best.relative
    return found if math.isfinite(found) else None
