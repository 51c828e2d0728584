"""Launch, readiness, watch, stop; failure classification; the engines: vLLM and simulated."""

from autotune.engine._process import LifeHooks
from autotune.engine._procfs import ProcessIdentity
from autotune.engine._watchdog import StartWatchdog
from autotune.engine.api import (
    Engine,
    EngineFacts,
    EngineKind,
    EngineStartError,
    LaunchRequest,
    RunningEngine,
    StopReport,
)
from autotune.engine.catalogue import ArgumentCatalogue, ArgumentFact, load_catalogue
from autotune.engine.diagnosis import Evidence, diagnose
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.engine.installation import CommandStyle, VllmInstallation, detect_vllm
from autotune.engine.orphans import Orphan, end_orphan, find_orphans
from autotune.engine.simulated import SimulatedEngine
from autotune.engine.vllm import VllmEngine

__all__ = [
    "ArgumentCatalogue",
    "ArgumentFact",
    "Cause",
    "CommandStyle",
    "Engine",
    "EngineFacts",
    "EngineKind",
    "EngineStartError",
    "Evidence",
    "Failure",
    "FailureKind",
    "LaunchRequest",
    "LifeHooks",
    "Orphan",
    "Phase",
    "ProcessIdentity",
    "RunningEngine",
    "SimulatedEngine",
    "StartWatchdog",
    "StopReport",
    "VllmEngine",
    "VllmInstallation",
    "detect_vllm",
    "diagnose",
    "end_orphan",
    "find_orphans",
    "load_catalogue",
]
