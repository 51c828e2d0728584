"""Sequential test of the share of requests that miss the objective.

Wald's sequential probability ratio test (1945) between a good share and a bad share on either side of the
allowed one. The misses of one run come in bursts, so the log-likelihood ratio is divided by their variance
inflation (quasi-likelihood, McCullagh 1983): a burst of ten says as much as one or two lone misses.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from autotune.stats._distributions import binomial_cdf
from autotune.stats.correlation import inflation as estimate_inflation


class Verdict(StrEnum):
    """Answer of a test: the objective holds, it does not, or there is not enough to say."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNDECIDED = "undecided"


class SloTest:
    """Does at most ``allowed_share`` of the requests miss?

    Shares at or below ``good_share`` = allowed / margin are failed with probability at most ``error``, and
    shares at or above ``bad_share`` = allowed * margin are passed with probability at most ``error``;
    between them either answer is right. On a queue a factor of two in the share of late requests is a few
    percent of load.
    """

    def __init__(
        self,
        allowed_share: float,
        *,
        error: float = 0.05,
        fail_error: float | None = None,
        margin: float = 2.0,
        strict: bool = False,
    ) -> None:
        """Set up the test.

        Args:
            allowed_share: e.g. 0.01 for P99.
            error: probability of a wrong pass, and of a wrong fail unless ``fail_error`` is given.
            fail_error: probability of a wrong fail.
            margin: ratio of the bad share to the allowed one, and of the allowed one to the good one.
            strict: put the bad share at the allowed one itself (and the good one at allowed / margin^2):
                a pass then says with confidence that the objective as written holds.
        """
        if not 0 < allowed_share < 1 or not margin > 1 or not 0 < error < 0.5:
            raise ValueError("a share in (0, 1), a margin above 1 and an error below one half are needed")
        self.allowed_share = allowed_share
        self.error = error
        self.fail_error = error if fail_error is None else fail_error
        self.bad_share = allowed_share if strict else min(allowed_share * margin, (1 + allowed_share) / 2)
        self.good_share = allowed_share / margin**2 if strict else allowed_share / margin

    @property
    def fixed_size(self) -> int:
        """Requests of the fixed-size test with the same error rates, if requests were independent."""
        return _fixed_size(self.good_share, self.bad_share, self.error, self.fail_error)[0]

    @property
    def least_requests(self) -> int:
        """Fewest requests with which a run without one miss can pass."""
        return math.ceil(
            math.log((1 - self.fail_error) / self.error) / -_log_ratio(0, 1, self.good_share, self.bad_share)
        )

    def evidence(self, misses: int, requests: int, inflation: float = 1.0) -> float:
        """Log-likelihood ratio of the bad share to the good share, discounted for correlation."""
        return _log_ratio(misses, requests, self.good_share, self.bad_share) / max(1.0, inflation)

    def update(self, misses: ArrayLike, *, inflation: float | None = None) -> Verdict:
        """Judge all requests so far.

        Args:
            misses: one flag a request, in order of scheduled arrival, without gaps: a request counts once
                it and all that were scheduled before it are known to have held or missed the limit.
            inflation: variance inflation of the misses; estimated from the misses alone if not given.
        """
        flags = np.asarray(misses, dtype=bool).ravel()
        factor = estimate_inflation(flags) if inflation is None else inflation
        return self.judge(int(flags.sum()), len(flags), factor)

    def judge(self, misses: int, requests: int, inflation: float = 1.0) -> Verdict:
        """The verdict on ``misses`` among ``requests``."""
        return self.decide(self.evidence(misses, requests, inflation))

    def decide(self, evidence: float) -> Verdict:
        """The verdict on a log-likelihood ratio of the bad share to the good share (Wald's boundaries)."""
        if evidence >= math.log((1 - self.error) / self.fail_error):
            return Verdict.FAIL
        if evidence <= -math.log((1 - self.fail_error) / self.error):
            return Verdict.PASS
        return Verdict.UNDECIDED


def _log_ratio(misses: int, requests: int, good: float, bad: float) -> float:
    return misses * math.log(bad / good) + (requests - misses) * math.log((1 - bad) / (1 - good))


@lru_cache(maxsize=256)
def _fixed_size(good: float, bad: float, pass_error: float, fail_error: float) -> tuple[int, int]:
    """Smallest n, and the most misses that pass, of the binomial test with both error rates."""
    for most in range(10_000):
        low, high = most + 1, most + 2
        while binomial_cdf(most, high, bad) > pass_error:
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            if binomial_cdf(most, middle, bad) <= pass_error:
                high = middle
            else:
                low = middle + 1
        if 1 - binomial_cdf(most, low, good) <= fail_error:
            return low, most
    raise ValueError("the good and the bad share are too close")
