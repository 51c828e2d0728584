"""Share of late requests from the shape of the tail.

Counting misses needs hundreds of independent requests. The latencies below the limit say more: queues have
exponential tails (Kingman 1970, Abate, Choudhury and Whitt 1995), so the excesses over a high threshold are
exponential, and one parameter, their mean, gives the share beyond the limit (peaks over threshold, Pickands
1975). For tails lighter than that the share is overstated, so that a pass stays safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autotune.stats._arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Tail:
    """Excesses over the threshold that ``share`` of the values exceed."""

    threshold: float
    share: float
    mean_excess: float
    variation: float
    """Squared coefficient of variation of the excesses: 1 if exponential."""
    count: int

    @classmethod
    def of(cls, values: FloatArray, share: float) -> Tail | None:
        """The tail of values without NaN (infinite ones are failed requests); None with too few values."""
        n = len(values)
        count = round(n * share)
        if count < 3 or n - count < 1:
            return None
        ordered = np.sort(values)
        threshold = float(ordered[n - count - 1])
        excess = ordered[n - count :] - threshold if math.isfinite(threshold) else np.full(count, np.inf)
        mean = float(excess.mean())
        if not math.isfinite(mean):
            return cls(threshold, count / n, math.inf, 1.0, count)
        return cls(threshold, count / n, mean, float(excess.var()) / mean**2 if mean > 0 else 0.0, count)

    def evidence(self, limit: float, good: float, bad: float) -> float:
        """Log-likelihood ratio of share ``bad`` beyond ``limit`` to share ``good``, for independent values.

        Both hypotheses are exponential excesses. When the data are clearer than the good share, they are
        their own alternative, so that a clear pass is soon seen.
        """
        room = limit - self.threshold
        if not room > 0 or self.share <= bad or not math.isfinite(self.mean_excess):
            return math.inf
        mean_bad = room / math.log(self.share / bad)
        mean_good = room / math.log(self.share / good)
        mean = max(self.mean_excess, 1e-9 * room)
        alternative = min(mean, mean_good)
        ratio = math.log(alternative / mean_bad) + mean * (1 / alternative - 1 / mean_bad)
        # One sixth is lost to the threshold being estimated too.
        return ratio * self.count / 1.2

    def log_quantile_error(self, share: float, inflation: float) -> float:
        """Standard error of the log of the value that ``share`` of the requests exceed (delta method)."""
        reach = math.log(self.share / share) if share < self.share else 0.0
        value = self.threshold + self.mean_excess * reach
        if not (0 < value < math.inf):
            return math.inf
        variance = (1 + reach**2 * max(self.variation, 0.5)) * inflation / self.count
        return max(self.mean_excess / value * math.sqrt(variance), 0.01)
