"""What Optuna does not hold: probes, telemetry, failures, measured configurations."""

from autotune.store.measured import MeasuredConfigurations, SimilarConfiguration, configuration_fingerprint
from autotune.store.records import (
    Circumstances,
    EventRecord,
    FailureRecord,
    MeasuredConfiguration,
    ProbeRecord,
    StudyRecord,
    TrialRecord,
)
from autotune.store.store import Store

__all__ = [
    "Circumstances",
    "EventRecord",
    "FailureRecord",
    "MeasuredConfiguration",
    "MeasuredConfigurations",
    "ProbeRecord",
    "SimilarConfiguration",
    "Store",
    "StudyRecord",
    "TrialRecord",
    "configuration_fingerprint",
]
