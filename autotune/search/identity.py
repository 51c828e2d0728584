"""What must not change when a study is resumed, and how a change is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from autotune.base.errors import UsageError
from autotune.engine.api import EngineKind
from autotune.space import SearchSpace
from autotune.spec import Slo, StudySpec


def study_identity(spec: StudySpec, space: SearchSpace, engine: EngineKind) -> dict[str, Any]:
    """Everything that a figure of the study depends on."""
    identity = spec.measured_identity()
    identity["space"] = space.describe()
    identity["engine"] = engine.value
    return identity


def refuse_changes(name: str, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Compare a stored study with what is asked for now.

    Raises:
        UsageError: something that the figures depend on is different; the message says what.
    """
    changes = list(_differences("", _readable(stored), _readable(wanted)))
    if not changes:
        return
    shown = "; ".join(changes[:3]) + (f"; and {len(changes) - 3} more" if len(changes) > 3 else "")
    raise UsageError(
        f"study '{name}' exists with another definition: {shown}.",
        "Give the new one a name of its own with --name, or ask for the stored definition.",
    )


def _readable(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition with the objective as people write it."""
    try:
        slo = Slo.model_validate(definition.get("slo")).to_mapping()
    except ValidationError:
        return dict(definition)
    return {**definition, "slo": slo}


def _differences(path: str, stored: object, wanted: object) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*stored, *wanted}, key=str):
            yield from _differences(f"{path}.{key}" if path else str(key), stored.get(key), wanted.get(key))
    elif stored != wanted:
        yield f"{path} was {_shown(stored)}, now {_shown(wanted)}"


def _shown(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
