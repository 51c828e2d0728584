"""What a study seeks."""

from __future__ import annotations

from enum import StrEnum

from autotune.base.errors import UsageError
from autotune.spec.load import LoadLevel


class Objective(StrEnum):
    """What makes one configuration better than another; the SLO must hold in any case."""

    CAPACITY = "capacity"
    """Most output tokens per second at the highest rate at which the SLO holds."""
    THROUGHPUT = "throughput"
    """Most output tokens per second at a given load."""
    LATENCY = "latency"
    """Lowest latency at a given load: the percentile that the first SLO limits."""
    COST = "cost"
    """Least money per million output tokens, at the capacity."""
    ENERGY = "energy"
    """Least energy per output token, at the capacity."""
    PARETO = "pareto"
    """The front of throughput and latency."""

    @classmethod
    def implied_by(cls, load: object) -> Objective:
        """What is sought where nothing is said: the capacity, or the throughput at the load that is given."""
        return cls.CAPACITY if load is None else cls.THROUGHPUT

    def check_load(self, load: LoadLevel | None) -> None:
        """Whether the objective can be sought at this load.

        Raises:
            UsageError: it needs a load and there is none, or it finds the load itself.
        """
        if self in (Objective.THROUGHPUT, Objective.LATENCY) and load is None:
            raise UsageError(
                f"objective {self}: the load is missing.",
                "Add --concurrency or --rate (in a study file 'load'), or seek the capacity.",
            )
        if self in (Objective.CAPACITY, Objective.COST, Objective.ENERGY) and load is not None:
            raise UsageError(
                f"objective {self}: it is judged at the capacity, and a load is given ({load}).",
                "Leave out --concurrency, --rate and 'load', or seek throughput or latency.",
            )
