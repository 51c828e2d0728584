"""May a configuration be launched? Rules, the memory model and experience in one answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.space._experience import Experience
from autotune.space.memory import MemoryModel
from autotune.space.space import SearchSpace
from autotune.spec import Arguments, Workload


class Layer(StrEnum):
    """What refused a configuration."""

    RULES = "rules"
    MEMORY = "memory"
    EXPERIENCE = "experience"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a configuration is not launched. ``cause`` is a name of ``autotune.engine.failure.Cause``."""

    layer: Layer
    cause: str
    message: str
    probability: float = 1.0
    """How likely a launch would fail."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class TrialEvidence:
    """What a trial showed: its cause of failure (None: it ran under load) and what its engine printed, in GiB."""

    arguments: Arguments
    cause: str | None = None
    weights_gib: float | None = None
    kv_gib: float | None = None
    graphs_gib: float | None = None
    kv_tokens: int | None = None
    least_free_gib: float | None = None
    """Least memory seen free on the GPU while it served."""
    workload: Workload | None = None
    """Of the study that the trial was part of; None: this one's."""


class Feasibility:
    """Decides before each launch, and learns from each trial."""

    def __init__(self, space: SearchSpace, workload: Workload, memory: MemoryModel | None = None) -> None:
        """``memory`` brings what earlier studies taught; without it the catalogue's figures are the start."""
        book = space.book
        self.space = space
        self.workload = workload
        self.memory = memory or MemoryModel(
            book.gpu, book.model, resolver=book.resolver, vllm_version=book.vllm_version
        )
        self._experience = Experience(frozenset(space.fixed))

    def check(self, arguments: Arguments) -> Refusal | None:
        """Why these arguments must not be launched; None when they may.

        Experience has the last word both ways: what was proved to run is not refused for its memory.
        """
        for violation in self.space.violations(arguments):
            return Refusal(Layer.RULES, violation.cause, str(violation))
        guilt = self._experience.guilt(arguments)
        if guilt is not None:
            return Refusal(Layer.EXPERIENCE, guilt.cause, f"{guilt}: leave it out.")
        asked = self.memory.demand(arguments, self.workload)
        proved = self._experience.proved_failure(asked)
        if proved is not None:
            return Refusal(
                Layer.EXPERIENCE, proved, f"a configuration that asked for no more memory failed here ({proved})."
            )
        if self.memory.gpu.kind == "cpu":
            return None
        for outlook in self.memory.outlooks(asked, self.workload):
            if outlook.hopeless and not self._experience.proved_fit(outlook.cause, asked):
                message = self.memory.explain(asked, outlook)
                return Refusal(Layer.MEMORY, outlook.cause, message, outlook.failure_probability)
        return None

    def failure_probability(self, arguments: Arguments) -> float:
        """How likely a launch would fail of memory, 0 to 1; 1 for what the rules or experience refuse."""
        refusal = self.check(arguments)
        if refusal is not None:
            return refusal.probability
        return self.memory.predict(arguments, self.workload).failure_probability

    def learn(self, evidence: TrialEvidence) -> list[str]:
        """Take in a finished trial, of this or an earlier study of the same GPU and model.

        Faults (a busy GPU, a full disk) are not evidence: leave them out.

        Returns:
            The values that are refused from now on, each in a sentence.
        """
        workload = evidence.workload or self.workload
        self.memory.calibrate(
            evidence.arguments,
            weights_gib=evidence.weights_gib,
            kv_gib=evidence.kv_gib,
            graphs_gib=evidence.graphs_gib,
            kv_tokens=evidence.kv_tokens,
        )
        self.memory.observe_outcome(
            evidence.arguments, workload, evidence.cause, least_free_gib=evidence.least_free_gib
        )
        asked = self.memory.demand(evidence.arguments, workload)
        before = self._experience.guilts()
        self._experience.add(evidence.arguments, asked, evidence.cause)
        return [f"{guilt}: it is left out from now on." for guilt in self._experience.guilts() if guilt not in before]
