"""Workloads, arrivals, HTTP transport, stream parser, workers, request records."""

from autotune.load.api import (
    ClientHealth,
    LoadGenerator,
    LoadObserver,
    LoadPlan,
    LoadProgress,
    LoadRun,
    Target,
)
from autotune.load.generator import HttpLoadGenerator
from autotune.load.records import ErrorKind, RequestRecord, TokenSource
from autotune.load.summary import ErrorGroup, LoadSummary, order_statistic, summarise
from autotune.load.warmup import warm_up

__all__ = [
    "ClientHealth",
    "ErrorGroup",
    "ErrorKind",
    "HttpLoadGenerator",
    "LoadGenerator",
    "LoadObserver",
    "LoadPlan",
    "LoadProgress",
    "LoadRun",
    "LoadSummary",
    "RequestRecord",
    "Target",
    "TokenSource",
    "order_statistic",
    "summarise",
    "warm_up",
]
