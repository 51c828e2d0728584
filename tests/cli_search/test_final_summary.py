from __future__ import annotations

import pytest

from autotune.cli.progress import PlainDisplay, final_summary
from autotune.search.events import TrialStarted
from autotune.store.result import BestDocument, Decision, EngineDocument, StudyDocument, VerdictDocument


def test_the_command_to_use_turns_off_what_the_best_configuration_turns_off() -> None:
    arguments = {"max-num-seqs": 64, "enable-prefix-caching": False, "async-scheduling": True}
    document = StudyDocument(
        study="s", created="2026-01-01T00:00:00Z", engine=EngineDocument(kind="vllm", version="0.24.0"), gpu={},
        model={"repository": "qwen3-4b"}, slo={"p99_latency": "10s"}, workload={}, definition={}, space={},
        best=BestDocument(number=3, arguments=arguments), verdict=VerdictDocument(decision=Decision.TUNED),
    )  # fmt: skip
    use = "vllm serve qwen3-4b --max-num-seqs 64 --no-enable-prefix-caching --async-scheduling"
    assert f"Use: {use}" in final_summary(document).splitlines()


@pytest.mark.parametrize(("role", "named"), [("search", "proposal 3 of 4"), ("confirmation", "a finalist")])
def test_a_trial_without_a_label_is_called_by_what_it_is(role: str, named: str, capsys) -> None:
    event = TrialStarted(number=9, role=role, label="", flags="--x 1", position=2, total=4, eta_seconds=None)
    PlainDisplay("").trial_started(event)
    assert f"Trial 9 ({role}: {named}): --x 1" in capsys.readouterr().err
