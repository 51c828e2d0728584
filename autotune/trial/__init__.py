"""One trial and its capacity search."""

from autotune.trial.order import TrialOrder
from autotune.trial.prober import ProbeEvents
from autotune.trial.runner import TrialRunner, TrialSetup
from autotune.trial.virtual import VirtualTrial, virtual_setup

__all__ = ["ProbeEvents", "TrialOrder", "TrialRunner", "TrialSetup", "VirtualTrial", "virtual_setup"]
