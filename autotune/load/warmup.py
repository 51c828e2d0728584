"""Warming an engine up with prompts that are never measured."""

from __future__ import annotations

from autotune.load.api import LoadGenerator, LoadPlan, LoadRun
from autotune.spec import LoadLevel, Workload

WARM_UP_STREAM = "warm-up"


async def warm_up(
    generator: LoadGenerator,
    workload: Workload,
    *,
    seed: int,
    concurrency: int = 8,
    requests: int = 16,
    max_duration: float = 120.0,
    request_timeout: float = 300.0,
) -> LoadRun:
    """Send ``requests`` requests of the workload, ``concurrency`` at once, from a stream of their own.

    Compiled kernels, captured graphs and caches of the engine are then in place, and the client's
    connections open. Durations are engine seconds.

    Raises:
        EnvironmentProblemError: the client itself failed. What the engine did is in the records.
    """
    plan = LoadPlan(
        level=LoadLevel.closed(min(concurrency, requests)),
        workload=workload,
        seed=seed,
        stream=WARM_UP_STREAM,
        max_requests=requests,
        max_duration=max_duration,
        request_timeout=request_timeout,
    )
    return await generator.run(plan)
