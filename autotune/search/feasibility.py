"""Refuses configurations that would only fail, before an engine is started for them."""

from __future__ import annotations

from autotune.base.errors import UsageError
from autotune.catalog import Gpu, ModelShape
from autotune.engine.api import Engine
from autotune.search.context import Refusal
from autotune.space import MemoryModel, SearchSpace
from autotune.spec import Arguments, StudySpec
from autotune.store.result import Outcome, TrialDocument


class Judge:
    """Rules of the space, the installed engine's own list of arguments, and the memory model."""

    def __init__(self, gpu: Gpu, model: ModelShape, spec: StudySpec, space: SearchSpace, engine: Engine) -> None:
        self._spec = spec
        self._space = space
        self._engine = engine
        self._memory = MemoryModel(gpu, model) if gpu.kind != "cpu" else None

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
        complaints = self._space.check(arguments) + self._engine.check(arguments)
        if complaints:
            return Refusal("invalid_config", complaints[0])
        if self._memory is None:
            return None
        predicted = self._memory.predict(arguments, self._spec.workload)
        return Refusal(predicted.reason, predicted.explanation) if predicted.hopeless else None

    def learn(self, document: TrialDocument) -> None:
        """Calibrate the memory model by what a started engine said."""
        facts = document.engine_facts
        if self._memory is None or document.outcome is not Outcome.MEASURED or not document.launched:
            return
        self._memory.calibrate(
            document.arguments,
            weights_gib=facts.get("weights_gib"),
            kv_gib=facts.get("kv_cache_gib"),
            graphs_gib=facts.get("graphs_gib"),
        )
