"""Refuses configurations that would only fail, before an engine is started for them; learns from every trial."""

from __future__ import annotations

from autotune.base.errors import UsageError
from autotune.engine.api import Engine
from autotune.search.context import Refusal
from autotune.space import Feasibility, SearchSpace, TrialEvidence
from autotune.spec import Arguments, StudySpec, Workload
from autotune.store.result import Outcome, TrialDocument


class Judge:
    """The installed engine's own list of arguments, then the space's rules, memory model and experience."""

    def __init__(self, spec: StudySpec, space: SearchSpace, engine: Engine) -> None:
        self._space = space
        self._engine = engine
        self._feasibility = Feasibility(space, spec.longest_workload)

    def check_fixed(self, arguments: Arguments) -> None:
        """Refuse what the user fixed, if this installation would.

        Raises:
            UsageError: the reason and the nearest known names.
        """
        complaints = self._engine.check(arguments) + self._space.check(arguments)
        if complaints:
            raise UsageError(f"arguments: {complaints[0]}")

    def refuse(self, arguments: Arguments) -> Refusal | None:
        """Why these arguments cannot run; None when they may."""
        complaints = self._engine.check(arguments)
        if complaints:
            return Refusal("invalid_config", complaints[0])
        refusal = self._feasibility.check(arguments)
        return None if refusal is None else Refusal(refusal.cause, refusal.message)

    def learn(self, document: TrialDocument, workload: Workload | None = None) -> list[str]:
        """Take in a trial that an engine was started for; says what is left out from now on. Faults teach nothing.

        ``workload`` is that of the earlier study that it was part of; None: it is this one's.
        """
        if not document.launched or document.outcome is Outcome.FAULT:
            return []
        facts = document.engine_facts
        return self._feasibility.learn(
            TrialEvidence(
                arguments=document.arguments,
                cause=document.reason if document.outcome is Outcome.INFEASIBLE else None,
                weights_gib=facts.get("weights_gib"),
                kv_gib=facts.get("kv_cache_gib"),
                graphs_gib=facts.get("graphs_gib"),
                kv_tokens=facts.get("kv_cache_tokens"),
                least_free_gib=None,
                workload=workload,
            )
        )
