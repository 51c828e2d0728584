"""The mark that every process of an engine carries in its environment, by which orphans are found."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.engine._procfs import ProcessIdentity, namespace_of_processes, own_identity

_ENGINE = "AUTOTUNE_ENGINE_ID"
_TUNER = "AUTOTUNE_TUNER"
_STUDY = "AUTOTUNE_STUDY"


@dataclass(frozen=True, slots=True)
class Marker:
    """Which engine of which study a process belongs to, and which program started it."""

    engine_id: str
    tuner: ProcessIdentity
    namespace: str
    study: str = ""

    @classmethod
    def new(cls, study: str = "") -> Marker:
        """A mark for an engine that this process starts."""
        return cls(uuid.uuid4().hex[:12], own_identity(), namespace_of_processes(), study)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Marker | None:
        """The mark in an environment; None where there is none or it is damaged."""
        engine_id = environment.get(_ENGINE)
        parts = environment.get(_TUNER, "").split(":")
        if not engine_id or len(parts) != 3:
            return None
        try:
            tuner = ProcessIdentity(int(parts[0]), float(parts[1]))
        except ValueError:
            return None
        return cls(engine_id, tuner, parts[2], environment.get(_STUDY, ""))

    def environment(self) -> dict[str, str]:
        """The variables that carry the mark.

        ``SPT_NOENV`` keeps vLLM's renamed processes (``VLLM::EngineCore``) from overwriting them: setproctitle
        otherwise writes the title over the environment that ``/proc`` shows.
        """
        return {
            _ENGINE: self.engine_id,
            _TUNER: f"{self.tuner.pid}:{self.tuner.create_time}:{self.namespace}",
            _STUDY: self.study,
            "SPT_NOENV": "1",
        }


def without_marker(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without any mark, for processes that are no engines."""
    return {name: value for name, value in environment.items() if name not in {_ENGINE, _TUNER, _STUDY}}
