"""Probes on one running engine, with telemetry, validity and what is kept of them."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotune.base.clock import Clock
from autotune.engine.api import RunningEngine
from autotune.engine.failure import Cause, Failure, FailureKind, Phase
from autotune.load.api import LoadGenerator, LoadPlan, LoadProgress, LoadRun
from autotune.load.records import ErrorKind, RequestRecord
from autotune.spec import LoadLevel, Metric, Slo, Workload
from autotune.stats.compared import NARROW_FAIL
from autotune.stats.probe import ProbeJudge, ProbeVerdict
from autotune.store.result import ProbeDocument
from autotune.telemetry import Device, DeviceError, EngineMetricsDevice, Recorder, Telemetry
from autotune.telemetry.validity import judge_validity
from autotune.trial.figures import describe_probe, finite, smooth_margin
from autotune.trial.files import write_requests
from autotune.trial.order import TrialOrder
from autotune.trial.watch import ProbeWatch

WARM_UP_CONCURRENCY = 8
WARM_UP_REQUESTS = 16
HANG_FLOOR_S = 120.0
NEWS_DELAY_S = 0.5
"""Wall seconds after which a worker's report has surely arrived, on a busy machine, too."""
IDLE_PATIENCE_S = 30.0
"""Wall seconds that an engine gets to drop the requests of the probe before."""


class ProbeEvents(Protocol):
    """Told of what is being done."""

    def phase(self, text: str) -> None:
        """What is being done now."""
        ...

    def probe_moved(self, order: TrialOrder, index: int, plan: LoadPlan, progress: LoadProgress, misses: int) -> None:
        """A running probe moved on."""
        ...


class EngineFailedError(Exception):
    """The engine died or hung while it was measured."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(str(failure))


class RequestsFailedError(EngineFailedError):
    """The engine lives and answers every request with an error."""


class ProbesVoidError(EngineFailedError):
    """Every probe was spoiled by something other than the engine, so nothing is known of the configuration."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            Failure(
                cause=Cause.PROBES_VOID,
                kind=FailureKind.FAULT,
                phase=Phase.SERVING,
                line=f"every probe was void: {reason}",
                advice="Free the machine of other work; on the simulated engine, or give a smaller --time-scale.",
            )
        )


@dataclass(frozen=True, slots=True)
class JudgedProbe:
    """A finished probe with its verdict."""

    document: ProbeDocument
    verdict: ProbeVerdict
    tokens_per_request: tuple[float, float]
    """Mean output and total tokens of an answered request."""


@dataclass
class Prober:
    """Makes the probes of one trial."""

    order: TrialOrder
    running: RunningEngine
    generator: LoadGenerator
    devices: Sequence[Device]
    clock: Clock
    workload: Workload
    slo: Slo
    seed: int
    events: ProbeEvents
    on_probe: Callable[[TrialOrder, ProbeDocument], None]
    settle: Callable[[RunningEngine], Awaitable[None]]
    """Waits until the requests of the probe before are gone."""
    time_scale: float = 1.0
    """Engine seconds per wall second."""
    keep_files: bool = True
    """Whether requests and telemetry are written into the trial's folder."""
    several: bool = False
    """Whether other workloads are served as well, so that probes name theirs."""
    probes: list[ProbeDocument] = field(default_factory=list)
    light_latency_s: float | None = None
    """Median latency of the warm-up, engine seconds: what a request takes when few are served."""
    _records: list[tuple[int, float, Sequence[RequestRecord]]] = field(default_factory=list)
    _telemetry: list[Telemetry] = field(default_factory=list)

    @property
    def request_timeout(self) -> float:
        """Engine seconds after which a request is given up: far beyond every limit, a miss long before."""
        limits = [t.limit_s for t in self.slo.targets if t.metric is not Metric.TPOT]
        tpot = [t.limit_s * self.workload.output_tokens.high for t in self.slo.targets if t.metric is Metric.TPOT]
        return max(120.0, 5 * max(limits + tpot))

    async def warm_up(self) -> None:
        """Load the engine with prompts that are never measured, until its kernels and graphs are warm.

        Raises:
            EngineFailedError: the engine died of it.
        """
        plan = LoadPlan(
            level=LoadLevel.closed(WARM_UP_CONCURRENCY),
            workload=self.workload,
            seed=self.seed,
            stream="warm-up",
            max_requests=WARM_UP_REQUESTS,
            max_duration=math.inf,
            request_timeout=max(600.0, self.request_timeout),
        )
        run = await self.generator.run(plan, _DeathWatch(self.running))
        await self._raise_if_failed(run, hung=False)
        latencies = [record.latency for record in run.records if record.succeeded]
        self.light_latency_s = statistics.median(latencies) if latencies else None

    async def probe(
        self,
        level: LoadLevel,
        purpose: str,
        max_requests: int,
        max_duration: float,
        *,
        whole: bool = False,
        compared: bool = False,
    ) -> JudgedProbe:
        """Run one load level until it is decided, or, ``whole``, to its end unless it fails.

        ``compared``: whole, going on after a narrow fail, too, and with the lengths and arrivals of all others of
        its kind. The result is on disk when this returns.

        Raises:
            EngineFailedError: the engine died or hung.
        """
        index = len(self.probes)
        self.events.phase(f"probe {index} at {level}: {purpose}")
        await self.settle(self.running)
        await self.running.reset_prefix_cache()
        plan = LoadPlan(
            level=level,
            workload=self.workload,
            seed=self.seed,
            stream=self._common_stream() if compared else self._stream(index),
            max_requests=max_requests,
            max_duration=max_duration,
            request_timeout=self.request_timeout,
            prompt_stream=self._stream(index),
        )
        recorder = Recorder(self.devices, clock=self.clock)
        watch = ProbeWatch(
            judge=ProbeJudge(self.slo),
            engine=self.running,
            recorder=recorder,
            hang_after=max(HANG_FLOOR_S, self.request_timeout / 2),
            news_delay=NEWS_DELAY_S * self.time_scale,
            whole=whole or compared,
            tolerated=NARROW_FAIL if compared else 0.0,
            report=lambda progress, misses: self.events.probe_moved(self.order, index, plan, progress, misses),
        )
        recorder.start()
        try:
            run = await self.generator.run(plan, watch)
        finally:
            telemetry = await asyncio.to_thread(recorder.stop) if self.devices else recorder.stop()
        await self._raise_if_failed(run, hung=watch.hung)
        verdict = watch.conclude(run)
        document = self._document(index, purpose, run, verdict, telemetry)
        if compared and not run.ended_by_observer:
            document = document.model_copy(update={"smooth_margin": finite(smooth_margin(run.records, self.slo))})
        self._keep(index, run, telemetry, document)
        return JudgedProbe(document, verdict, _tokens_per_request(run.records))

    def _stream(self, index: int) -> str:
        """Name of a probe's prompts: those of one workload do not depend on how many probes another one took."""
        if not self.several:
            return f"{self.order.prompt_stream}-{index}"
        own = sum(probe.workload == self.workload.name for probe in self.probes)
        return f"{self.order.prompt_stream}-{self.workload.name}-{own}"

    def _common_stream(self) -> str:
        """Lengths and arrivals that all configurations meet at every rate; those of a round are its own."""
        name = f"{self.order.prompt_stream}-common"
        return f"{name}-{self.workload.name}" if self.several else name

    def _document(
        self, index: int, purpose: str, run: LoadRun, verdict: ProbeVerdict, telemetry: Telemetry
    ) -> ProbeDocument:
        document = describe_probe(index, purpose, run, verdict)
        summary = telemetry.summary()
        validity = judge_validity(
            telemetry, run.client, slo=self.slo, duration=run.ended - run.started, scale=self.time_scale
        )
        update: dict[str, object] = {
            "workload": self.workload.name if self.several else "",
            "telemetry": {k: dict(v) for k, v in summary.items()},
            "valid": validity.valid,
            "invalid_reason": validity.reason,
        }
        queries, hits = summary.get("engine.prefix_cache_queries"), summary.get("engine.prefix_cache_hits")
        if queries is not None and hits is not None and queries["delta"]:
            update["prefix_hit_rate"] = (hits["delta"] or 0.0) / queries["delta"]
        energy, tokens = telemetry.energy_joules(), sum(r.output_tokens for r in run.records)
        if energy is not None and tokens:
            update["energy_per_token_j"] = energy / tokens
        return document.model_copy(update=update)

    def _keep(self, index: int, run: LoadRun, telemetry: Telemetry, document: ProbeDocument) -> None:
        self.probes.append(document)
        if self.keep_files:
            self._write(index, run, telemetry)
        self.on_probe(self.order, document)

    def _write(self, index: int, run: LoadRun, telemetry: Telemetry) -> None:
        self._records.append((index, run.started, run.records))
        self._telemetry.append(telemetry)
        write_requests(self.order.folder / "requests.csv.gz", self._records)
        joined = Telemetry(
            rows=[row for part in self._telemetry for row in part.rows],
            counters=telemetry.counters,
            marks=[mark for part in self._telemetry for mark in part.marks],
            devices=telemetry.devices,
        )
        joined.to_csv_gz(self.order.folder / "telemetry.csv.gz")

    async def _raise_if_failed(self, run: LoadRun, *, hung: bool) -> None:
        if hung or self.running.exited():
            raise EngineFailedError(await self.running.diagnose(hung=hung))
        done = [r for r in run.records if r.error is not ErrorKind.CANCELLED]
        if done and all(not r.succeeded for r in done):
            await asyncio.sleep(1.0)
            if self.running.exited():
                raise EngineFailedError(await self.running.diagnose())
            raise RequestsFailedError(
                Failure(
                    cause=Cause.UNKNOWN,
                    kind=FailureKind.FAULT,
                    phase=Phase.SERVING,
                    line=f"every request failed: {done[0].error}: {done[0].detail}",
                    advice="Send one such request by hand and read the server's answer.",
                )
            )


async def wait_until_idle(running: RunningEngine) -> None:
    """Wait until a server's ``/metrics`` shows no request: what was cut off must be gone before the next load."""
    device = EngineMetricsDevice(running.url)
    deadline = asyncio.get_running_loop().time() + IDLE_PATIENCE_S
    device.open()
    try:
        while asyncio.get_running_loop().time() < deadline and not running.exited():
            try:
                sample = await asyncio.to_thread(device.sample)
            except DeviceError:
                return
            if not (sample.get("running") or sample.get("waiting")):
                return
            await asyncio.sleep(0.05)
    finally:
        device.close()


@dataclass(frozen=True, slots=True)
class _DeathWatch:
    running: RunningEngine

    def observe(self, progress: LoadProgress) -> bool:
        return self.running.exited()


def _tokens_per_request(records: Sequence[RequestRecord]) -> tuple[float, float]:
    done = [r for r in records if r.succeeded]
    if not done:
        return 0.0, 0.0
    output = sum(r.output_tokens for r in done) / len(done)
    return output, output + sum(r.input_tokens for r in done) / len(done)
