"""Works through a plan and writes rows as they come."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.telemetry import DeviceError, EngineMetricsDevice

from .clients import ClientPool, Records
from .engine import EngineProcess, ask
from .figures import figures
from .plan import Load, Plan
from .rows import append_row, write_records
from .sampling import Sampler, chosen_gpu, gpu_name
from .startup import start_columns

_SHORTEST_START_S = 40.0


@dataclass(frozen=True)
class LoadResult:
    """A load that was run. ``start`` is in CLOCK_MONOTONIC seconds."""

    records: Records
    errors: list[str]
    start: float
    duration: float
    sampler: Sampler


class Run:
    """One run: ``rows.csv``, ``details.json`` and a folder for each engine under ``out``."""

    def __init__(self, plan: Plan, out: Path, deadline_s: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._plan, self._out = plan, out
        self._deadline = time.monotonic() + deadline_s
        self._url = f"http://127.0.0.1:{plan.port}"
        self._gpu = chosen_gpu()
        self._gpu_name = gpu_name(self._gpu)
        self._pool = ClientPool(plan.clients)
        self._details: dict[str, object] = {}
        self._seed = 1

    def run(self) -> None:
        """Work through the plan; always leave no engine behind."""
        engines = [
            EngineProcess(self._plan, engine, self._out / f"{index:02d}-{engine.name}", self._gpu)
            for index, engine in enumerate(self._plan.engines)
        ]
        try:
            for engine in engines:
                if engine.plan.preload:
                    engine.spawn()
            for engine in engines:
                if self._left() < _SHORTEST_START_S:
                    self._details[engine.plan.name] = {"skipped": True, "left_s": self._left()}
                    continue
                self._one(engine)
        finally:
            for engine in engines:
                engine.kill()
            self._pool.close()

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _one(self, engine: EngineProcess) -> None:
        """Start, measure and stop one engine, and keep the details."""
        plan = engine.plan
        detail: dict[str, object] = {"argv": engine.argv, "flags": plan.flags, "preload": plan.preload}
        self._details[plan.name] = detail
        try:
            engine.go()
            ready = engine.wait_ready()
            detail |= {
                "ready_s": engine.ready_s,
                "milestones": engine.milestones,
                "facts": asdict(engine.facts),
                "exit_code": engine.exit_code,
            }
            print(f"{plan.name}: ready={ready} after {engine.ready_s:.1f} s, {self._left():.0f} s left", flush=True)
            if ready:
                detail["loads"] = self._measure(engine)
                if plan.before_stop:
                    engine.hook()
        finally:
            detail["stop"] = stopped = engine.stop()
            told = {name: value for name, value in stopped.items() if name != "memory_samples"}
            print(f"{plan.name}: stop {told}", flush=True)
            (self._out / "details.json").write_text(json.dumps(self._details, indent=1, default=str))

    def _measure(self, engine: EngineProcess) -> list[dict[str, object]]:
        """Warm up and run every load of a ready engine; returns the rows with what they were made of."""
        notes: list[dict[str, object]] = []
        version = self._version()
        for load in self._plan.warmup if engine.plan.loads else ():
            self._load(load)
        for load in engine.plan.loads:
            if self._left() < load.expected_s + 3:
                notes.append({"skipped": f"{load.kind} {load.level:g}", "left_s": round(self._left(), 1)})
                continue
            result = self._load(load)
            row = self._row(engine, version, load, result)
            append_row(self._out / "rows.csv", row)
            notes.append(
                {**row, "errors": result.errors, "metrics": result.sampler.engine, "device": result.sampler.gpu}
            )
            label = f"{engine.plan.name}-{load.label}"
            if load.raw:
                write_records(engine.folder / f"requests-{label}.csv.gz", result.records, result.start)
            print(
                f"{label}: {row['output_tok_s']} tok/s, {row['req_s']} req/s, "
                f"P50 {row['latency_p50_s']} P99 {row['latency_p99_s']} s, n {row['requests']}, "
                f"failed {row['failed']}, unfinished {row['unfinished']}, {self._left():.0f} s left",
                flush=True,
            )
            if ask(self._plan.port, "/health")[0] != 200:
                notes.append({"died": True})
                break
        return notes

    def _row(self, engine: EngineProcess, version: str, load: Load, result: LoadResult) -> dict[str, object]:
        return {
            "engine": engine.plan.name,
            "gpu": self._gpu_name,
            "vllm": version,
            "model": self._plan.model_label or self._plan.model,
            "flags": json.dumps(engine.plan.flags),
            "load": load.kind,
            "level": f"{load.level:g}",
            "repeat": load.repeat,
            "endpoint": "/v1/completions",
            "input_tokens": load.lengths(load.input_tokens),
            "output_tokens": load.lengths(load.output_tokens),
            "duration_s": f"{result.duration:.1f}",
            **start_columns(engine.milestones, engine.ready_s, engine.facts, engine.plan.preload),
            **figures(load, result.records, result.start, result.sampler),
        }

    def _load(self, load: Load) -> LoadResult:
        self._settle()
        self._seed += 1
        sampler = Sampler(self._url, self._gpu)
        sampler.start()
        start = time.monotonic() + 0.3
        records, errors = self._pool.run(self._url, self._plan.model, load, start, self._seed, self._plan.vocabulary)
        duration = time.monotonic() - start
        sampler.stop()
        return LoadResult(records, errors, start, duration, sampler)

    def _settle(self) -> None:
        """Wait until no request is left in the engine, then empty its prefix cache."""
        metrics = EngineMetricsDevice(self._url, timeout=5.0)
        metrics.open()
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            with contextlib.suppress(DeviceError):
                sample = metrics.sample()
                if sample["running"] == 0 and sample["waiting"] == 0:
                    break
            time.sleep(0.1)
        metrics.close()
        ask(self._plan.port, "/reset_prefix_cache", "POST")

    def _version(self) -> str:
        status, body = ask(self._plan.port, "/version")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(body)["version"]) if status == 200 else ""
        return ""
