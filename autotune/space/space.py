"""The search space of one study."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from optuna.distributions import BaseDistribution

from autotune.space.parameter import UNSET, Parameter
from autotune.space.rules import RuleBook, Violation
from autotune.spec import Arguments, ArgumentValue


@dataclass(frozen=True)
class SearchSpace:
    """The engine arguments that vary, those that are fixed, and the rules between them."""

    parameters: tuple[Parameter, ...]
    fixed: Arguments
    book: RuleBook

    def distributions(self) -> dict[str, BaseDistribution]:
        """Ranges for Optuna, by argument name."""
        return {parameter.name: parameter.distribution() for parameter in self.parameters}

    def snap(self, params: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
        """The parameters brought to their grids.

        A sampler that stores snapped values makes dashboards show what ran, and equal configurations equal.
        """
        return {p.name: p.snap(params[p.name]) for p in self.parameters if p.name in params}

    def arguments(self, params: Mapping[str, ArgumentValue]) -> dict[str, ArgumentValue]:
        """The engine arguments of a proposal: fixed ones, and each parameter that differs from its default.

        Canonical: two proposals that mean the same engine give equal arguments in the same order.
        """
        chosen: dict[str, ArgumentValue] = dict(self.fixed)
        for parameter in self.parameters:
            if parameter.name not in params:
                continue
            value = parameter.snap(params[parameter.name])
            if not _same(value, UNSET) and not _same(value, parameter.default):
                chosen[parameter.name] = value
        return chosen

    def params_of(self, arguments: Arguments) -> dict[str, ArgumentValue]:
        """The coordinates of engine arguments: an unset one stands at its default, brought to the grid.

        A parameter whose default nobody knows is left out when it is unset.
        """
        params: dict[str, ArgumentValue] = {}
        for parameter in self.parameters:
            value = arguments.get(parameter.name, parameter.default)
            if value is not None:
                params[parameter.name] = parameter.snap(value)
        return params

    def violations(self, arguments: Arguments) -> list[Violation]:
        """The rules that the arguments break."""
        return self.book.violations(arguments)

    def check(self, arguments: Arguments) -> list[str]:
        """The rules that the arguments break, in words with the remedy; empty when they break none."""
        return [str(violation) for violation in self.violations(arguments)]

    def describe(self) -> dict[str, object]:
        """JSON form, for ``result.json`` and for saying what changed between two spaces."""
        return {
            "gpu": self.book.gpu.name,
            "model": self.book.model.repository,
            "parameters": {parameter.name: parameter.describe() for parameter in self.parameters},
            "fixed": dict(self.fixed),
        }

    def fingerprint(self) -> str:
        """Short hash of what decides which configurations exist and what they mean."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def size(self) -> int | None:
        """How many configurations there are, before rules; None when a parameter is continuous."""
        sizes = [parameter.size() for parameter in self.parameters]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None


def _same(value: ArgumentValue, other: ArgumentValue | None) -> bool:
    """Equality that tells True from 1."""
    return other is not None and value == other and isinstance(value, bool) == isinstance(other, bool)
