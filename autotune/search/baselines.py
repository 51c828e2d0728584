"""What every study measures first: vLLM without flags, and its one-flag modes."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec import Arguments

DEFAULT_LABEL = "vllm-default"
FITTED_LABEL = "vllm-default, context fitted"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A configuration that a tuned one must beat."""

    label: str
    arguments: Arguments


def default_baseline(user_fixed: Arguments) -> Baseline:
    """vLLM as it comes, plus what the user fixed."""
    return Baseline(DEFAULT_LABEL, dict(user_fixed))


def fitted_default(user_fixed: Arguments, derived: Arguments) -> Baseline | None:
    """The default with the context length that the workload needs: the fair rival where the bare one cannot start."""
    added = {name: value for name, value in derived.items() if name not in user_fixed}
    return Baseline(FITTED_LABEL, {**user_fixed, **added}) if added else None


def performance_modes(user_fixed: Arguments, base: Arguments, knows_modes: bool) -> list[Baseline]:
    """``--performance-mode`` throughput and interactivity on top of the default that runs."""
    if not knows_modes or "performance-mode" in user_fixed:
        return []
    return [
        Baseline(f"performance-mode {mode}", {**base, "performance-mode": mode})
        for mode in ("throughput", "interactivity")
    ]
