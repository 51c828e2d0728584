from __future__ import annotations

import pytest

from autotune.base.errors import UsageError
from autotune.search.identity import refuse_changes
from autotune.spec import Slo, SloTarget


def test_another_objective_is_told_as_it_was_written() -> None:
    stored, wanted = (
        {"gpu": "t4", "slo": Slo(targets=(SloTarget.parse("p99_latency", limit),)).model_dump(mode="json")}
        for limit in ("10s", "9s")
    )
    with pytest.raises(UsageError, match=r": slo\.p99_latency was 10s, now 9s\."):
        refuse_changes("mine", stored, wanted)
    refuse_changes("mine", stored, dict(stored))
