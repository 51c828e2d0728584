"""Definitions of parameters as YAML has them: the base space, a GPU's ranges, a study's overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.space.parameter import UNSET, ChoiceParameter, FloatParameter, IntParameter, Parameter
from autotune.spec import ArgumentValue

_KEYS = ("type", "low", "high", "log", "step", "grid", "values", "default", "optional", "lossy")
_OVERRIDE_KEYS = ("low", "high", "log", "step", "values")
_REMEDY = "Write e.g. {low: 1, high: 64, log: true}, {values: [8, 16]} or [8, 16]."


@dataclass(frozen=True, slots=True)
class Definition:
    """A parameter before its default is known to be inside its range."""

    name: str
    kind: Literal["int", "float", "choice"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    grid: tuple[float, ...] | None = None
    values: tuple[ArgumentValue, ...] = ()
    default: ArgumentValue | None = None
    optional: bool = False
    lossy: bool = False

    def parameter(self) -> Parameter:
        """The search parameter."""
        if self.kind == "choice":
            return ChoiceParameter(self.name, self.values, self.default, self.lossy)
        grid = self._grid()
        if self.kind == "int":
            whole = None if grid is None else tuple(round(value) for value in grid)
            default = None if self.default is None else round(_number(self.name, "default", self.default))
            return IntParameter(self.name, round(self.low), round(self.high), self.log, whole, default, self.lossy)
        default_share = None if self.default is None else _number(self.name, "default", self.default)
        return FloatParameter(self.name, self.low, self.high, self.log, grid, default_share, self.lossy)

    def _grid(self) -> tuple[float, ...] | None:
        if self.step is not None:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            return tuple(round(self.low + index * self.step, 12) for index in range(count))
        if self.grid is None:
            return None
        inside = {value for value in self.grid if self.low <= value <= self.high}
        return tuple(sorted(inside | {self.low, self.high}))


def parse_definition(name: str, value: object) -> Definition:
    """A parameter of the base space.

    Raises:
        UsageError: a key that is not known, a missing one, or a range upside down.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: not a parameter.", _REMEDY)
    _refuse_unknown(name, value, _KEYS)
    kind = value.get("type")
    base = Definition(
        name=name,
        kind="choice" if kind == "choice" else "float" if kind == "float" else "int",
        default=_scalar_or_none(name, value.get("default")),
        optional=value.get("optional") is True,
        lossy=value.get("lossy") is True,
    )
    if kind not in ("int", "float", "choice"):
        raise UsageError(f"{name}: type '{kind}' is not known.", "Use int, float or choice.")
    if kind == "choice":
        return replace(base, values=_choices(name, value.get("values")))
    grid = value.get("grid")
    numbers = None if grid is None else tuple(sorted(_number(name, "grid", item) for item in _items(name, grid)))
    ranged = {key: value[key] for key in ("low", "high", "log", "step") if key in value}
    return override(replace(base, grid=numbers, low=-math.inf, high=math.inf), ranged)


def override(definition: Definition, value: object) -> Definition:
    """The definition narrowed or widened by a GPU's file or a study.

    Raises:
        UsageError: not one of the forms, an unknown key, a range upside down, or an empty list.
    """
    name = definition.name
    if isinstance(value, (list, tuple)):
        value = {"values": list(value)}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}: {value!r} is not a range.", f"{_REMEDY} A fixed value belongs under 'arguments'.")
    _refuse_unknown(name, value, _OVERRIDE_KEYS)
    if not value:
        return definition
    if "values" in value:
        if len(value) > 1:
            raise UsageError(f"{name}: 'values' excludes {', '.join(k for k in value if k != 'values')}.", _REMEDY)
        return _override_values(definition, value["values"])
    if definition.kind == "choice":
        raise UsageError(f"{name}: this argument has choices, not a range.", "Write a list of values.")
    low = _number(name, "low", value.get("low", definition.low))
    high = _number(name, "high", value.get("high", definition.high))
    log = value.get("log", definition.log)
    if not isinstance(log, bool):
        raise UsageError(f"{name}: log is {log!r}.", "Write true or false.")
    _check_range(name, low, high, definition.kind, log)
    step = None
    if "step" in value:
        step = _number(name, "step", value["step"])
        if step <= 0 or (definition.kind == "int" and step != round(step)):
            raise UsageError(f"{name}: a step of {step:g} leads nowhere.", "Give a positive step.")
        log = log and "log" in value
    return replace(definition, low=low, high=high, log=log, step=step)


def new_definition(name: str, value: object) -> Definition:
    """A parameter for an argument that the base space does not have; its type follows from its values."""
    if isinstance(value, Mapping) and "values" not in value:
        numbers = [value.get("low"), value.get("high"), value.get("step", 1)]
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        return override(Definition(name, "int" if whole else "float", low=-math.inf, high=math.inf), value)
    values = value.get("values") if isinstance(value, Mapping) else value
    choices = _choices(name, values)
    if UNSET not in choices:
        choices = (UNSET, *choices)
    return Definition(name, "choice", values=choices, default=UNSET)


def _override_values(definition: Definition, values: object) -> Definition:
    name = definition.name
    if definition.kind == "choice":
        return replace(definition, values=_choices(name, values))
    numbers = tuple(sorted({_number(name, "values", item) for item in _items(name, values)}))
    if definition.kind == "int" and any(number != round(number) for number in numbers):
        raise UsageError(f"{name}: values must be whole numbers.", _REMEDY)
    log = definition.log and numbers[0] > 0
    _check_range(name, numbers[0], numbers[-1], definition.kind, log)
    return replace(definition, low=numbers[0], high=numbers[-1], grid=numbers, step=None, log=log)


def _check_range(name: str, low: float, high: float, kind: str, log: bool) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError(f"{name}: a range needs low and high.", _REMEDY)
    if low > high:
        raise UsageError(f"{name}: the range is upside down ({low:g} to {high:g}).", "Give low before high.")
    if low < 0:
        raise UsageError(f"{name}: {low:g} is negative.", "Engine arguments of this kind start at 0.")
    if log and low <= 0:
        raise UsageError(f"{name}: a logarithmic range cannot start at {low:g}.", "Start it above zero.")
    if kind == "int" and (low != round(low) or high != round(high)):
        raise UsageError(f"{name}: the range must have whole numbers.", _REMEDY)


def _refuse_unknown(name: str, value: Mapping[object, object], known: tuple[str, ...]) -> None:
    for key in value:
        if key not in known:
            raise UsageError(f"{name}: unknown key '{key}'.", did_you_mean(str(key), known))


def _items(name: str, value: object) -> list[object]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name}: {value!r} is not a list of values.", _REMEDY)
    if not value:
        raise UsageError(f"{name}: the list of values is empty.", _REMEDY)
    return list(value)


def _choices(name: str, value: object) -> tuple[ArgumentValue, ...]:
    choices: list[ArgumentValue] = []
    for item in _items(name, value):
        scalar = _scalar_or_none(name, item)
        if scalar is None:
            raise UsageError(f"{name}: a value is missing.", f"Write {UNSET} for vLLM's default.")
        if any(scalar == other and isinstance(scalar, bool) == isinstance(other, bool) for other in choices):
            raise UsageError(f"{name}: {scalar} is listed twice.", "Leave one out.")
        choices.append(scalar)
    return tuple(choices)


def _scalar_or_none(name: str, value: object) -> ArgumentValue | None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(f"{name}: {value!r} is not a number, a text or a switch.", _REMEDY)


def _number(name: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise UsageError(f"{name}: {key} is {value!r}, not a number.", _REMEDY)
    return value
