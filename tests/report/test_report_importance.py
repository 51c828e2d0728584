from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from autotune.report.importance import LEAST_TRIALS, _ranks, _shares, importances
from autotune.store.result import Outcome, Role, StudyDocument, TrialDocument


def _study(document: StudyDocument, trials: int, seed: int) -> StudyDocument:
    """Output follows max-num-seqs alone; gpu-memory-utilization is noise."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(trials):
        seqs = int(rng.choice([8, 16, 32, 64, 128]))
        made.append(
            TrialDocument(
                number=number,
                role=Role.SEARCH,
                arguments={"max-num-seqs": seqs, "gpu-memory-utilization": float(rng.choice([0.85, 0.9, 0.95]))},
                outcome=Outcome.MEASURED,
                output_tokens_per_s=100 + 20 * np.log2(seqs) + 3 * rng.standard_normal(),
            )
        )
    return document.model_copy(update={"trials": made})


def test_share_is_the_adjusted_anova_share_of_the_ranks() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=24)
    groups = np.arange(24) % 3
    ranks = _ranks(list(values))
    assert ranks == pytest.approx(stats.rankdata(values))
    h = stats.kruskal(*(values[groups == g] for g in range(3))).statistic
    # Epsilon squared of Kruskal-Wallis in its adjusted form: (H - k + 1) / (n - k).
    share = _shares(ranks[None, :], np.ones((1, 24)), np.eye(3)[groups])
    assert share[0] == pytest.approx(max(0.0, (h - 2) / 21))


@pytest.mark.parametrize("seed", range(5))
def test_the_argument_that_acts_is_told_from_the_one_that_does_not(document: StudyDocument, seed: int) -> None:
    first, second = importances(_study(document, 24, seed))
    assert first.argument == "max-num-seqs"
    assert first.is_clear
    assert first.interval[0] > 0.5
    assert first.best_value.endswith("128")
    assert second.share < first.interval[0]


def test_chance_is_called_chance(document: StudyDocument) -> None:
    clear = [importances(_study(document, 24, seed))[1].is_clear for seed in range(40)]
    # 5 % of 40 are expected; 7 or more have a probability below one per cent.
    assert sum(clear) <= 6


def test_few_trials_say_nothing(document: StudyDocument) -> None:
    assert importances(_study(document, LEAST_TRIALS - 1, 0)) == []


def test_an_argument_that_did_not_vary_is_left_out(document: StudyDocument) -> None:
    assert "enable-prefix-caching" not in [
        i.argument for i in importances(document.model_copy(update={"trials": document.trials[:12]}))
    ]
