"""Search spaces, rules, feasibility before launch, translation to flags and to Optuna's distributions."""

from autotune.space.arguments import explain_argument, normalise, to_argv
from autotune.space.build import build_space
from autotune.space.feasibility import Feasibility, Layer, Refusal, TrialEvidence
from autotune.space.memory import MemoryModel, MemoryPrediction
from autotune.space.parameter import UNSET, ChoiceParameter, FloatParameter, IntParameter, Parameter
from autotune.space.resolve import Resolver, max_model_len
from autotune.space.rules import RuleBook, Violation
from autotune.space.space import SearchSpace

__all__ = [
    "UNSET",
    "ChoiceParameter",
    "Feasibility",
    "FloatParameter",
    "IntParameter",
    "Layer",
    "MemoryModel",
    "MemoryPrediction",
    "Parameter",
    "Refusal",
    "Resolver",
    "RuleBook",
    "SearchSpace",
    "TrialEvidence",
    "Violation",
    "build_space",
    "explain_argument",
    "max_model_len",
    "normalise",
    "to_argv",
]
