"""Building the search space of a study from the base space, the GPU's file and the study's own wishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.catalog import Gpu, ModelShape
from autotune.space._base import base_defaults, base_space
from autotune.space._definition import Definition, new_definition, override
from autotune.space.arguments import explain_argument, normalise
from autotune.space.parameter import UNSET, ChoiceParameter, Parameter
from autotune.space.resolve import Resolver, max_model_len
from autotune.space.rules import RuleBook, check_rules
from autotune.space.space import SearchSpace
from autotune.spec import Arguments, ArgumentValue, Endpoint, Workload

#: Tokens that a chat template adds to a prompt.
_TEMPLATE_TOKENS = 64
#: max-model-len is part of vLLM's compile cache key, so it is rounded up to a multiple of this.
_LENGTH_STEP = 256


def build_space(
    gpu: Gpu,
    model: ModelShape,
    workload: Workload,
    *,
    overrides: Mapping[str, object] | None = None,
    fixed: Arguments | None = None,
    allow_lossy: bool = False,
    known: Collection[str] | None = None,
    vllm_version: str | None = None,
    vllm_defaults: Mapping[str, ArgumentValue | None] | None = None,
) -> SearchSpace:
    """The search space of a study.

    Args:
        overrides: a study's ``space``: ranges by argument; None as a range leaves the argument out of the search.
        fixed: a study's ``arguments``: engine arguments that do not vary.
        allow_lossy: whether arguments that change the model's output may vary.
        known: the arguments that the installed vLLM knows; parameters it does not know are left out, and
            a user's own that it does not know are errors. None: not asked.
        vllm_version: decides rules that came with a version; None is the newest.
        vllm_defaults: what unset arguments resolve to in the installed vLLM, where it says; before the files' data.

    Raises:
        UsageError: a wish that cannot be met, with the nearest names or the form it should have.
    """
    base, rules = base_space()
    wishes = {normalise(name): value for name, value in (overrides or {}).items()}
    given = {normalise(name): value for name, value in (fixed or {}).items()}
    _refuse_conflicts(wishes, given, base, known)
    defaults = _defaults(gpu, vllm_defaults or {})
    parameters = [
        _parameter(definition, gpu, defaults)
        for definition in _chosen(base, gpu, wishes, given, known, allow_lossy).values()
        if _allowed(definition, allow_lossy, wishes)
    ]
    if not any(parameter.name == "max-model-len" for parameter in parameters):
        length = _model_len(model, workload, given)
        if length is not None:
            given["max-model-len"] = length
    every_rule = (*rules, *gpu.unsupported)
    check_rules(every_rule, gpu, model)
    book = RuleBook(every_rule, gpu, model, Resolver(gpu, model, defaults), vllm_version)
    usable = [p for p in parameters if p.name in wishes or not p.lossy or _has_choice(p, given, book)]
    return SearchSpace(tuple(usable), given, book)


def _has_choice(parameter: Parameter, given: Arguments, book: RuleBook) -> bool:
    """Whether the rules leave a lossy parameter more than one value on this GPU and model."""
    if not isinstance(parameter, ChoiceParameter):
        return True
    allowed = [v for v in parameter.values if v == UNSET or not book.violations({**given, parameter.name: v})]
    return len(allowed) > 1


def _refuse_conflicts(
    wishes: Mapping[str, object],
    given: Arguments,
    base: Mapping[str, Definition],
    known: Collection[str] | None,
) -> None:
    both = sorted(wishes.keys() & given.keys())
    if both:
        raise UsageError(f"{both[0]}: fixed under 'arguments' and varied under 'space'.", "Keep one of the two.")
    for name in (*wishes, *given):
        if known is not None:
            complaint = explain_argument(name, known)
            if complaint is not None:
                raise UsageError(f"space: {complaint}")
        elif name in wishes and name not in base:
            old = explain_argument(name, base.keys())
            raise UsageError(f"space: '{name}' is not an argument that can be searched.", old or "")


def _defaults(gpu: Gpu, vllm_defaults: Mapping[str, ArgumentValue | None]) -> dict[str, ArgumentValue | None]:
    said = {normalise(name): value for name, value in vllm_defaults.items() if value is not None}
    return {**base_defaults(), **gpu.defaults, **said}


def _chosen(
    base: Mapping[str, Definition],
    gpu: Gpu,
    wishes: Mapping[str, object],
    given: Arguments,
    known: Collection[str] | None,
    allow_lossy: bool,
) -> dict[str, Definition]:
    """The definitions that the study searches: the base's, narrowed by the GPU's file, then by the study.

    Optional ones are searched where a file or the study names them, lossy ones also where they are allowed.
    """
    spelt = None if known is None else {normalise(name) for name in known}
    unknown = [name for name in gpu.space if name not in base]
    if unknown:
        raise UsageError(f"gpu {gpu.name}: space: unknown argument '{unknown[0]}'.", did_you_mean(unknown[0], base))
    chosen: dict[str, Definition] = {}
    for name, definition in base.items():
        wanted = wishes.get(name, ...)
        here = gpu.space.get(name, ...)
        if name in given or wanted is None or (spelt is not None and name not in spelt):
            continue
        if wanted is ... and (
            here is None or (here is ... and definition.optional and not (allow_lossy and definition.lossy))
        ):
            continue
        narrowed = definition if here is None or here is ... else override(definition, here)
        chosen[name] = narrowed if wanted is ... else override(narrowed, wanted)
    for name, wanted in wishes.items():
        if name not in base and wanted is not None:
            chosen[name] = new_definition(name, wanted)
    return chosen


def _allowed(definition: Definition, allow_lossy: bool, wishes: Mapping[str, object]) -> bool:
    if not definition.lossy or allow_lossy:
        return True
    if definition.name in wishes:
        raise UsageError(f"{definition.name}: changes the model's output.", "Add --allow-lossy to let it vary.")
    return False


def _parameter(definition: Definition, gpu: Gpu, defaults: Mapping[str, ArgumentValue | None]) -> Parameter:
    default = defaults.get(definition.name, definition.default)
    if isinstance(default, str) and definition.kind != "choice":
        default = None
    return replace(definition, default=default).parameter()


def _model_len(model: ModelShape, workload: Workload, given: Arguments) -> int | None:
    """The context length to fix: what the workload needs, where the model offers more; None to leave it."""
    needed = workload.longest_sequence
    chat = workload.endpoint is Endpoint.CHAT
    rounded = -(-(needed + (_TEMPLATE_TOKENS if chat else 0)) // _LENGTH_STEP) * _LENGTH_STEP
    if needed > model.context_length:
        raise UsageError(
            f"workload {workload.name}: its longest sequence has {needed} tokens, "
            f"{model.alias} takes {model.context_length}.",
            "Shorten the lengths or choose a model with a longer context.",
        )
    if "max-model-len" in given:
        asked = max_model_len(given, model)
        if asked < needed:
            raise UsageError(
                f"max-model-len {asked}: workload {workload.name} has sequences of up to {needed} tokens.",
                f"Raise it to {rounded}, or shorten the workload's lengths.",
            )
        return None
    return rounded if rounded < model.context_length else None
