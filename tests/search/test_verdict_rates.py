"""How often the confirmation claims a gain that is none, and how often it misses one that is: many simulated ones.

The logarithms of the figures are normal, and each round moves all configurations alike, ten times as much as the noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from autotune.search.confirmation import confirmation_rounds
from autotune.search.verdict import conclude, deserves_another_round
from autotune.store.result import Decision, Outcome, Role, TrialDocument

REPEATS = 2000
ROUND_DEVIATION = 0.3


def trial(number: int, configuration: int, tokens: float, block: int | None) -> TrialDocument:
    role = Role.CONFIRMATION if block is not None else Role.SEARCH if configuration else Role.BASELINE
    return TrialDocument(
        number=number, role=role, label="" if configuration else "vllm-default", outcome=Outcome.MEASURED, block=block,
        arguments={"max-num-seqs": configuration} if configuration else {}, output_tokens_per_s=tokens, requests=100,
    )  # fmt: skip


def decide(rng: np.random.Generator, gains: Sequence[float], noise: Sequence[float]) -> tuple[Decision, int]:
    """The verdict on a default and challengers with these gains over it, and the rounds it took."""
    count = len(gains) + 1
    search = [trial(i, i, 100.0 + i, None) for i in range(count)]
    rounds = confirmation_rounds(count)

    def measure(block: int) -> list[TrialDocument]:
        common = rng.normal(0, ROUND_DEVIATION)
        logs = common + np.log1p([0.0, *gains]) + rng.normal(0, noise)
        return [trial(100 * (block + 1) + i, i, 100 * float(np.exp(logs[i])), block) for i in range(count)]

    trials = search + [one for block in range(rounds) for one in measure(block)]
    if deserves_another_round(trials):
        trials += measure(rounds)
        rounds += 1
    return conclude(trials).verdict.decision, rounds


def claims(gains: Sequence[float], noise: Sequence[float], seed: int) -> int:
    rng = np.random.default_rng(seed)
    return sum(decide(rng, gains, noise)[0] is Decision.TUNED for _ in range(REPEATS))


def most_at(rate: float) -> int:
    """What a true rate of this exceeds in one of a thousand such tests."""
    return int(stats.binom.ppf(0.999, REPEATS, rate))


@pytest.mark.parametrize(
    ("gains", "noise"),
    [([0, 0], [0.03] * 3), ([0], [0.03] * 2), ([-0.05, 0], [0.03] * 3), ([0, 0], [0.02, 0.02, 0.05])],
    ids=["two challengers", "one challenger", "one is worse", "one is noisier"],
)
def test_a_gain_is_claimed_where_none_is_in_at_most_one_of_twenty_studies(gains, noise) -> None:
    assert claims(gains, noise, seed=3) <= most_at(0.05)


@pytest.mark.parametrize(("gains", "power"), [([0.1, 0.1], 0.9), ([0.1, 0.0], 0.85), ([0.1], 0.9), ([0.26, 0.2], 0.99)])
def test_a_gain_of_ten_percent_in_three_percent_of_noise_is_found(gains, power) -> None:
    assert claims(gains, [0.03] * (len(gains) + 1), seed=5) >= stats.binom.ppf(0.001, REPEATS, power)


def test_another_round_is_run_only_where_it_may_decide() -> None:
    rng = np.random.default_rng(8)
    clear = [decide(rng, [0.3, 0.3], [0.01] * 3)[1] for _ in range(50)]
    hopeless = [decide(rng, [-0.2, -0.2], [0.01] * 3)[1] for _ in range(50)]
    assert set(clear) == set(hopeless) == {3}
    close = [decide(rng, [0.08, 0.06], [0.03] * 3)[1] for _ in range(50)]
    assert set(close) == {3, 4}


@pytest.mark.parametrize(("better", "winner"), [(1.002, {"max-num-seqs": 8}), (1.2, {"max-num-seqs": 9, "x": 1})])
def test_without_a_default_the_fewest_flags_within_the_noise_win_too(better: float, winner: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    trials = [trial(0, 0, 0.0, None), trial(1, 8, 100.0, None), trial(2, 9, 100.0 * better, None)]
    for block in range(confirmation_rounds(3)):
        noise = np.exp(rng.normal(0, 0.01, 2))
        figures = (0.0, 100.0 * noise[0], 100.0 * better * noise[1])
        trials += [trial(10 * (block + 1) + i, (0, 8, 9)[i], float(figures[i]), block) for i in range(3)]
    for one in trials:
        if 9 in one.arguments.values():
            one.arguments["x"] = 1
    conclusion = conclude(trials)
    assert conclusion.verdict.decision is Decision.TUNED
    assert conclusion.best is not None
    assert conclusion.best.arguments == winner
