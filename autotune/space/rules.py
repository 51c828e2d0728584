"""Rules between arguments, GPU and model: which are violated, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.base.errors import UsageError
from autotune.catalog import Gpu, ModelShape, Rule
from autotune.space._expression import Names, Scalar, holds, names_in
from autotune.space.parameter import UNSET
from autotune.space.resolve import Resolver, parse_size
from autotune.spec import Arguments

_PLACEHOLDER = re.compile(r"\{([a-z0-9_]+)\}")
#: Arguments whose values may carry a unit, as vLLM accepts them.
_SIZES = ("max-num-batched-tokens", "max-model-len", "max-num-seqs", "block-size")
#: Arguments whose names begin like facts.
_LIKE_FACTS = {"gpu_memory_utilization", "model_impl", "model_loader_extra_config"}


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a configuration breaks. ``cause`` is how a launch would fail (a name of ``Cause``)."""

    rule: str
    message: str
    remedy: str
    cause: str

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class RuleBook:
    """The rules of one GPU and model."""

    rules: tuple[Rule, ...]
    gpu: Gpu
    model: ModelShape
    resolver: Resolver
    vllm_version: str | None = None
    """None is taken as the newest."""

    def violations(self, arguments: Arguments) -> list[Violation]:
        """The violated rules in the order of their definition.

        Raises:
            UsageError: an argument's value has the wrong type.
        """
        names = self._names(arguments)
        found = []
        for rule in self.rules:
            book = _with_unset(names, rule)
            if rule.when is not None and holds(rule.when, book) is not True:
                continue
            if holds(rule.require, book) is False:
                found.append(Violation(rule.name, _fill(rule.message, book), rule.remedy, rule.cause))
        return found

    def _names(self, arguments: Arguments) -> dict[str, Scalar | None]:
        names: dict[str, Scalar | None] = {}
        for name, value in self.resolver.resolve(arguments).items():
            sized = name in _SIZES and isinstance(value, str)
            names[name.replace("-", "_")] = _size(name, value) if sized and value is not None else value
        names.update(facts(self.gpu, self.model, self.vllm_version))
        return names


def _size(name: str, value: Scalar) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise UsageError(f"{name}: '{value}' is not a number.", "Write e.g. 2048.") from error


def facts(gpu: Gpu, model: ModelShape, vllm_version: str | None) -> dict[str, Scalar | None]:
    """What rules may know of the GPU, the model and the engine."""
    return {
        "gpu_kind": gpu.kind,
        "gpu_capability": gpu.capability,
        "gpu_memory_gib": gpu.memory_gib,
        "model_heads": model.heads,
        "model_kv_heads": model.kv_heads,
        "model_layers": model.layers,
        "model_context": model.context_length,
        "model_dtype": model.dtype,
        "model_quantization": UNSET if model.quantization is None else model.quantization.method,
        "model_architecture": model.architecture,
        "vllm_minor": _minor(vllm_version),
    }


def _minor(version: str | None) -> int:
    """33 for 0.33.x; versions from 1.0 on, and unknown ones, are newer than any rule's."""
    match = re.match(r"v?(\d+)\.(\d+)", version or "")
    if match is None:
        return 999
    return int(match.group(2)) if match.group(1) == "0" else 1000 * int(match.group(1)) + int(match.group(2))


def _with_unset(names: Names, rule: Rule) -> Names:
    """Arguments that a rule reads and nobody gave are unknown values, not errors."""
    read = names_in(rule.require) | (frozenset() if rule.when is None else names_in(rule.when))
    missing = dict.fromkeys(read - names.keys())
    return {**names, **missing} if missing else names


def _fill(message: str, names: Names) -> str:
    return _PLACEHOLDER.sub(lambda match: str(names.get(match.group(1), match.group(0))), message)


def check_rules(rules: Iterable[Rule], gpu: Gpu, model: ModelShape) -> None:
    """Parse all conditions and look up the facts they read, so that a mistake shows when a file is read.

    Raises:
        UsageError: a condition that is not of the language, or an unknown fact.
    """
    known = facts(gpu, model, None).keys()
    for rule in rules:
        for text in (rule.require, *([] if rule.when is None else [rule.when])):
            for name in names_in(text):
                if name.startswith(("gpu_", "model_", "vllm_")) and name not in known | _LIKE_FACTS:
                    raise UsageError(f"rule {rule.name}: there is no fact '{name}'.", f"Facts: {', '.join(known)}.")
