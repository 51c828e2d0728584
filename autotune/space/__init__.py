"""Search spaces, rules, feasibility before launch, translation to flags and to Optuna's distributions."""

from autotune.space.arguments import explain_argument, normalise, to_argv
from autotune.space.build import build_space
from autotune.space.memory import MemoryModel, MemoryPrediction
from autotune.space.parameter import UNSET, ChoiceParameter, FloatParameter, IntParameter, Parameter
from autotune.space.resolve import Resolver, max_model_len
from autotune.space.rules import RuleBook, Violation
from autotune.space.space import SearchSpace

__all__ = [
    "UNSET",
    "ChoiceParameter",
    "FloatParameter",
    "IntParameter",
    "MemoryModel",
    "MemoryPrediction",
    "Parameter",
    "Resolver",
    "RuleBook",
    "SearchSpace",
    "Violation",
    "build_space",
    "explain_argument",
    "max_model_len",
    "normalise",
    "to_argv",
]
