"""What a study concludes, from its confirmation runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.search.confirmation import (
    Finalist,
    choose_finalists,
    configuration_key,
    first_round,
    reference_trial,
)
from autotune.search.mix import mean_parts
from autotune.search.objective import CAPACITY_AIM, Aim, Figure, front
from autotune.stats.compare import Choice, Gain, choose, noise_within_rounds, winners_curse
from autotune.stats.compare import gain as gain_of
from autotune.store.result import BestDocument, Decision, Outcome, QualityDocument, Role, TrialDocument, VerdictDocument

WORTH_ANOTHER_ROUND_PERCENT = 2.0
"""A smaller gain would drown in the noise of another round as well."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict and the configuration to use."""

    verdict: VerdictDocument
    best: BestDocument | None


def conclude(trials: Sequence[TrialDocument], aim: Aim = CAPACITY_AIM) -> Conclusion:
    """Judge the confirmed finalists against the default.

    The configuration with the fewest flags among those that are within the noise of the best wins; a gain
    counts only when its 95 % interval lies above zero. A finalist that missed the objective, or failed the quality
    check, in any round of its confirmation is out. A front has no winner; its knee is judged.
    """
    conclusion = _with_changed_output(_judge(trials, aim.score), trials)
    points = len(front(trials, aim))
    if points == 0 or conclusion.best is None:
        return conclusion
    number = f"{points} configurations form" if points > 1 else "one configuration forms"
    knee = f"the knee, the most {aim.score.title} ({aim.score.unit}) that was confirmed"
    if conclusion.verdict.decision is Decision.KEEP_DEFAULT:
        knee = f"the default, since none of them is confirmed to have more {aim.score.title} ({aim.score.unit})"
    text = (
        f"No single winner: {number} the front of {' and '.join(figure.title for figure in aim.told)}; best.yaml has"
        f" {knee}. {conclusion.verdict.text}"
    )
    return Conclusion(conclusion.verdict.model_copy(update={"text": text}), conclusion.best)


def _with_changed_output(conclusion: Conclusion, trials: Sequence[TrialDocument]) -> Conclusion:
    """Says how many configurations are out because their output is not the default's."""
    changed = {configuration_key(d.arguments) for d in trials if d.changes_output}
    if not changed:
        return conclusion
    number = f"{len(changed)} configurations are" if len(changed) > 1 else "One configuration is"
    text = f"{conclusion.verdict.text} {number} out because the output differs too much from the default's."
    return Conclusion(conclusion.verdict.model_copy(update={"text": text}), conclusion.best)


def _judge(trials: Sequence[TrialDocument], score: Figure) -> Conclusion:
    finalists = choose_finalists(trials, score)
    start = first_round(finalists, trials)
    repeats = {f.key: _confirmations(trials, f.arguments, start) for f in finalists}
    held = [f for f in finalists if all(score.merit(d) > 0 for d in repeats[f.key])]
    if not held:
        return Conclusion(_nothing_feasible(trials), None)
    requests = sum(d.requests for runs in repeats.values() for d in runs)
    reference = reference_trial(trials)
    default = next((f for f in held if reference is not None and f.arguments == reference.arguments), None)
    if default is None:
        return _without_default(trials, held, repeats, requests, score)
    measured = _measured(held, repeats, score)
    noise = noise_within_rounds(measured)
    choice = choose(measured, baseline=default.key, flags={f.key: len(f.arguments) for f in held}, noise=noise)
    winner = next(f for f in held if f.key == choice.winner)
    best = _best(trials, winner.arguments, repeats[winner.key])
    usual = _best(trials, default.arguments, repeats[default.key])
    gain = _of_figure(choice.gain, score) if len(held) > 1 else None
    bounded = gain is not None and math.isfinite(gain.high)
    return Conclusion(
        VerdictDocument(
            decision=Decision.TUNED if choice.is_gain else Decision.KEEP_DEFAULT,
            gain_percent=gain.percent if gain is not None else None,
            interval_95=(gain.low, gain.high) if gain is not None and bounded else None,
            requests=requests,
            text=_sentence(choice, gain if bounded else None, default.label, requests, score),
            noise_percent=None if noise is None else 100 * math.expm1(noise.deviation),
            winners_curse_percent=_curse(winner, best, score) if choice.is_gain else None,
            default_capacity_rps=usual.capacity_rps,
            best_capacity_rps=best.capacity_rps,
        ),
        best,
    )


def _measured(
    held: Sequence[Finalist], repeats: Mapping[str, Sequence[TrialDocument]], score: Figure
) -> dict[str, list[float]]:
    """Merits of each finalist in the rounds that all of them have; of the search where nothing was confirmed."""
    common = set.intersection(*({d.block for d in repeats[f.key]} for f in held))
    return {f.key: [score.merit(d) for d in repeats[f.key] if d.block in common] or [f.search_merit] for f in held}


def deserves_another_round(trials: Sequence[TrialDocument], aim: Aim = CAPACITY_AIM) -> bool:
    """Whether a gain that would be worth having is not told from none yet, so that one more round may tell.

    Each look claims a gain that is none with a probability of at most 2.5 % (the upper half of a 95 % interval), so two
    looks do with at most 5 %.
    """
    verdict = conclude(trials, aim).verdict
    undecided = verdict.decision is Decision.KEEP_DEFAULT and verdict.interval_95 is not None
    return undecided and (verdict.gain_percent or 0.0) >= WORTH_ANOTHER_ROUND_PERCENT


def _of_figure(gain: Gain, score: Figure) -> Gain:
    """A gain in merit as one in the figure itself."""
    percent, low, high = (score.improvement(value) for value in (gain.percent, gain.low, gain.high))
    return Gain(percent, low, high, gain.repeats)


def _sentence(choice: Choice, gain: Gain | None, default: str, requests: int, score: Figure) -> str:
    if gain is None:
        return f"Keep {default}: nothing that was tried came near it."
    interval = f"{score.change_words}{gain.percent:+.1f} %, 95 % interval {gain.low:+.1f} to {gain.high:+.1f} %"
    if choice.is_gain:
        return f"{interval}, against {default}; confirmed on fresh engines with {requests} requests."
    return f"Keep {default}: the best challenger's gain ({interval}) is not above the noise."


def _without_default(
    trials: Sequence[TrialDocument],
    held: Sequence[Finalist],
    repeats: Mapping[str, Sequence[TrialDocument]],
    requests: int,
    score: Figure,
) -> Conclusion:
    """The default does not run or does not hold the objective: the best configuration that does is the answer."""
    measured = _measured(held, repeats, score)
    noise = noise_within_rounds(measured)
    mean = {key: statistics.fmean(merits) for key, merits in measured.items()}
    top = max(mean, key=lambda key: mean[key])
    tied = [f for f in held if gain_of(measured[f.key], measured[top], noise=noise).high >= 0]
    winner = min(tied, key=lambda f: (len(f.arguments), -mean[f.key]))
    best = _best(trials, winner.arguments, repeats[winner.key])
    reference = reference_trial(trials)
    runs = [] if reference is None else repeats[configuration_key(reference.arguments)]
    kept = sum(score.merit(d) > 0 for d in runs)
    text = f"vLLM's defaults do not hold the objective here; this configuration does ({requests} requests)."
    if kept:
        text = (
            f"vLLM's defaults held the objective in {kept} of {len(runs)} rounds; this configuration did in all of them"
            f" ({requests} requests)."
        )
    return Conclusion(
        VerdictDocument(
            decision=Decision.TUNED,
            requests=requests,
            text=text,
            winners_curse_percent=_curse(winner, best, score),
            best_capacity_rps=best.capacity_rps,
        ),
        best,
    )


def _curse(winner: Finalist, best: BestDocument, score: Figure) -> float | None:
    confirmed = score.merit(best)
    return winners_curse(winner.search_merit, confirmed) if best.confirmed and confirmed else None


def _nothing_feasible(trials: Iterable[TrialDocument]) -> VerdictDocument:
    reasons = sorted({d.reason for d in trials if d.outcome is Outcome.INFEASIBLE and d.reason})
    missed = any(d.outcome is Outcome.MEASURED for d in trials)
    parts = ["the objective was missed at every load tried"] if missed else []
    parts += [f"failed with {', '.join(reasons)}"] if reasons else []
    return VerdictDocument(
        decision=Decision.NO_FEASIBLE_CONFIGURATION,
        text=f"No configuration holds the objective: {'; '.join(parts) or 'nothing was tried'}.",
    )


def _confirmations(trials: Iterable[TrialDocument], arguments: object, start: int) -> list[TrialDocument]:
    """What the rounds from this one on showed; or that it could not run in an earlier one, which is for good."""
    runs = [
        d
        for d in trials
        if d.role is Role.CONFIRMATION
        and d.arguments == arguments
        and (d.outcome is Outcome.INFEASIBLE or (d.outcome is Outcome.MEASURED and (d.block or 0) >= start))
    ]
    return sorted(runs, key=lambda d: d.block or 0)


def _best(trials: Sequence[TrialDocument], arguments: object, runs: Sequence[TrialDocument]) -> BestDocument:
    """The confirmed figures: means over the rounds, or the search's own where nothing was confirmed."""
    found = next(
        d
        for d in trials
        if d.arguments == arguments and d.role is not Role.CONFIRMATION and d.outcome is Outcome.MEASURED
    )
    source = list(runs) or [found]

    def mean(name: str) -> float | None:
        values = [v for d in source if (v := getattr(d, name)) is not None]
        return statistics.fmean(values) if values else None

    return BestDocument(
        number=found.number,
        label=found.label,
        arguments=dict(found.arguments),
        capacity_rps=mean("capacity_rps"),
        output_tokens_per_s=mean("output_tokens_per_s"),
        total_tokens_per_s=mean("total_tokens_per_s"),
        p50_latency_s=mean("p50_latency_s"),
        p99_latency_s=mean("p99_latency_s"),
        p99_ttft_s=mean("p99_ttft_s"),
        p99_tpot_s=mean("p99_tpot_s"),
        target_latency_s=mean("target_latency_s"),
        light_rps=mean("light_rps"),
        power=mean("power"),
        cost_per_million_tokens=mean("cost_per_million_tokens"),
        energy_per_token_j=mean("energy_per_token_j"),
        workloads=mean_parts(source),
        relative=mean("relative"),
        requests=sum(d.requests for d in source),
        confirmed=bool(runs),
        quality=None if found.role is Role.BASELINE else _least_agreement([found, *runs]),
    )


def _least_agreement(runs: Iterable[TrialDocument]) -> QualityDocument | None:
    found = [d.quality for d in runs if d.quality is not None]
    return min(found, key=lambda q: -1.0 if q.agreement is None else q.agreement.first_tokens, default=None)
