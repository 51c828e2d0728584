"""The victim of the chaos benchmark: runs trials on simulated engines and tells each step on standard output.

Usage: python benchmarks/_chaos_tuner.py FOLDER FIRST_TRIAL. Ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx

from autotune.base.clock import WallClock
from autotune.catalog import load_gpu
from autotune.engine import (
    EngineStartError,
    Failure,
    LaunchRequest,
    RunningEngine,
    SimulatedEngine,
    StartWatchdog,
    end_orphan,
    find_orphans,
)
from autotune.store import Store, StudyRecord, TrialRecord

STUDY = "chaos"
SCALE = 200.0
SERVING_WALL_S = 0.7
REQUEST_TIMEOUT_S = 1.0
ARGUMENTS = {"max-model-len": 8192, "max-num-seqs": 16}


def tell(**event: object) -> None:
    """One line of JSON for the benchmark, with the machine's monotonic time."""
    sys.stdout.write(json.dumps({"at": time.monotonic(), **event}) + "\n")
    sys.stdout.flush()


async def serve(running: RunningEngine) -> Failure | None:
    """Send requests for a while; why the engine failed, if it did."""
    clock = asyncio.get_running_loop()
    until = clock.time() + SERVING_WALL_S
    async with httpx.AsyncClient(base_url=running.url, timeout=REQUEST_TIMEOUT_S, trust_env=False) as client:
        while clock.time() < until:
            body = {"model": running.served_model, "prompt": [1, 2, 3, 4], "max_tokens": 8}
            try:
                answer = await client.post("/v1/completions", json=body)
            except httpx.TimeoutException:
                return await running.diagnose(hung=True)
            except httpx.HTTPError:
                return await running.diagnose()
            if answer.status_code != httpx.codes.OK:
                return await running.diagnose()
    return await running.diagnose() if running.exited() else None


async def trial(engine: SimulatedEngine, store: Store, folder: Path, number: int) -> None:
    """One trial, from start to stop, and its record."""
    tell(trial=number, phase="starting")
    failure: Failure | None = None
    try:
        running = await engine.start(LaunchRequest("qwen3-4b", ARGUMENTS, folder / str(number), 3600.0))
    except EngineStartError as error:
        failure = error.failure
    else:
        tell(trial=number, phase="serving")
        try:
            failure = await serve(running)
        finally:
            tell(trial=number, phase="stopping")
            report = await running.stop()
        tell(trial=number, phase="stopped", memory_returned=report.memory_returned)
    cause = "" if failure is None else failure.cause.value
    outcome = "measured" if failure is None else failure.kind.value
    store.save_trial(
        STUDY, TrialRecord(number, ARGUMENTS, outcome=outcome, reason=cause, finished_at=datetime.now(UTC))
    )
    tell(trial=number, phase="finished", cause=cause, line="" if failure is None else failure.line[:200])


async def main(folder: Path, first: int) -> None:
    """End what a killed predecessor left, then trials until told to leave."""
    for orphan in find_orphans():
        if orphan.study == f"{STUDY}-{folder.name}":
            end_orphan(orphan)
            tell(orphan=orphan.pid)
    store = Store.open(f"sqlite:///{folder / 'chaos.db'}")
    with contextlib.suppress(ValueError):
        store.add_study(StudyRecord(STUDY, {}, {}, "simulated", "0"))
    engine = SimulatedEngine(
        load_gpu("a10g"),
        clock=WallClock(SCALE),
        study=f"{STUDY}-{folder.name}",
        options=("--sim-child",),
        environment={"AUTOTUNE_SIM_GPU_STATE": str(folder / "gpu")},
        watchdog=StartWatchdog(stopped=1.0),
    )
    leave = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        leave.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    number = first
    while not leave.is_set():
        await trial(engine, store, folder, number)
        number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
