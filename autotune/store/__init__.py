"""What Optuna does not hold: probes, telemetry, failures, measured configurations."""

from autotune.store._identity import host_identity, is_same_process
from autotune.store.engines import EngineLedger, EngineProcess
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
    "EngineLedger",
    "EngineProcess",
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
    "host_identity",
    "is_same_process",
]
