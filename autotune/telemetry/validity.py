"""When a probe is void: something other than the engine and its settings decided what was measured.

A void probe says nothing about a configuration; it is measured again. The thresholds are shares, of the tightest
latency objective or of the probe's duration, so that one rule serves a 200 ms objective and a 10 s one:

==========================  =======================================================================================
the client sent late        P99 of the slip above 1 % of the limit
the client lacked CPU       P99 of the event loops' lateness above 1 % of the limit
the GPU was held down       heat, a hardware slowdown or a power brake in more than 5 % of the samples; reaching the
                            power limit is no disturbance, it is how a small card works under load
somebody else computed      other processes took more than 1 % of the GPU's time; where the driver cannot tell how
                            much they took, their presence is enough
the host ran out of CPU     all cores busy for 95 % of the time on average (not where the engine itself computes on
                            the CPU), more than 5 % of the time stolen by the hypervisor, or held back by a
                            container's quota
the simulator lagged        on average behind its clock by more than 5 % of the limit
==========================  =======================================================================================

On the simulated engine the client may slip by 5 % instead of 1 %: its clock runs many times faster than the wall's,
which multiplies every delay of this machine, and its figures are predictions anyway.

Latencies count from the scheduled arrival, so a late client makes an engine look worse, never better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from autotune.base.units import format_duration
from autotune.spec import Metric, Slo
from autotune.telemetry.data import ColumnSummary, Summary, Telemetry

SLIP_SHARE = 0.01
SIMULATED_SLIP_SHARE = 0.05
SIMULATOR_LAG_SHARE = 0.05
THROTTLED_SHARE = 0.05
FOREIGN_UTILIZATION = 0.01
HOST_BUSY = 0.95
STOLEN_SHARE = 0.05
QUOTA_SHARE = 0.05

_LAG = "engine.simulator_lag_seconds"
_DISTURBANCE_WORDS = {
    "hw_slowdown": "a hardware slowdown",
    "sw_thermal": "heat",
    "hw_thermal": "heat",
    "power_brake": "a power brake",
}


class ClientFigures(Protocol):
    """What the load generator says of itself."""

    @property
    def slip_p99(self) -> float:
        """P99 of sent minus scheduled, engine seconds."""
        ...

    @property
    def loop_lag_p99(self) -> float:
        """P99 of the event loops' lateness, wall seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Validity:
    """Whether a probe counts, and in words why not."""

    reasons: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """True when nothing disturbed the probe."""
        return not self.reasons

    @property
    def reason(self) -> str:
        """All reasons in one line; empty for a valid probe."""
        return "; ".join(self.reasons)


def judge_validity(
    telemetry: Telemetry, client: ClientFigures, *, slo: Slo, duration: float, scale: float = 1.0
) -> Validity:
    """Decide whether a probe counts.

    What was not recorded accuses nobody: without a GPU's telemetry its rules are silent.

    Args:
        telemetry: recorded while the probe ran.
        client: of the load generator.
        slo: its shortest limit on a latency or time to first token is the measure of lateness; with a limit on the
            time per output token alone, which lateness hardly touches, the measure is the duration.
        duration: of the probe, engine seconds.
        scale: engine seconds per wall second.
    """
    summary = telemetry.summary()
    limits = [target.limit_s for target in slo.targets if target.metric is not Metric.TPOT]
    measure = min(limits, default=duration)
    reasons = (
        *_client_reasons(client, measure, scale, simulated=_LAG in summary),
        *_throttle_reasons(telemetry, summary),
        *_foreign_reasons(summary),
        *_host_reasons(summary, duration / scale),
        *_simulator_reasons(summary, measure),
    )
    return Validity(reasons)


def _client_reasons(client: ClientFigures, measure: float, scale: float, *, simulated: bool) -> Iterator[str]:
    allowed = measure * (SIMULATED_SLIP_SHARE if simulated else SLIP_SHARE)
    if client.slip_p99 > allowed:
        yield f"the client sent late (P99 slip {_span(client.slip_p99)}, allowed {_span(allowed)})"
    lag = client.loop_lag_p99 * scale
    if lag > allowed:
        yield f"the client was short of CPU (P99 lag {_span(lag)}, allowed {_span(allowed)})"


def _throttle_reasons(telemetry: Telemetry, summary: Summary) -> Iterator[str]:
    for gpu, share in _means(summary, "throttled"):
        if share > THROTTLED_SHARE:
            found = telemetry.throttle_reasons()
            causes = dict.fromkeys(words for name, words in _DISTURBANCE_WORDS.items() if name in found)
            yield f"{gpu} was held down by {' and '.join(causes) or 'a slowdown'} for {share:.0%} of the time"


def _foreign_reasons(summary: Summary) -> Iterator[str]:
    utilization = dict(_means(summary, "foreign_utilization"))
    for gpu, share in utilization.items():
        if share > FOREIGN_UTILIZATION:
            yield f"another process took {share:.0%} of the time of {gpu}"
    for gpu, processes in _means(summary, "foreign_processes"):
        if gpu not in utilization and processes > 0:
            yield f"another process was on {gpu}, and the driver does not tell how much it used"


def _host_reasons(summary: Summary, wall_duration: float) -> Iterator[str]:
    engine_is_on_a_gpu = any(column.startswith("gpu") for column in summary)
    busy, stolen = _mean(summary, "host.cpu"), _mean(summary, "host.cpu_steal")
    if engine_is_on_a_gpu and busy is not None and busy > HOST_BUSY:
        yield f"the host ran out of CPU (busy {busy:.0%} of the time)"
    if stolen is not None and stolen > STOLEN_SHARE:
        yield f"the hypervisor took {stolen:.0%} of the CPU away"
    held_back = _delta(summary, "host.quota_throttled_seconds")
    if held_back is not None and wall_duration > 0 and held_back > QUOTA_SHARE * wall_duration:
        yield f"the container's CPU quota held processes back for {_span(held_back)}"


def _simulator_reasons(summary: Summary, measure: float) -> Iterator[str]:
    lag = _mean(summary, _LAG)
    allowed = SIMULATOR_LAG_SHARE * measure
    if lag is not None and lag > allowed:
        yield f"the simulated engine fell behind its clock (by {_span(lag)}, allowed {_span(allowed)})"


def _means(summary: Summary, field: str) -> Iterator[tuple[str, float]]:
    for column, found in summary.items():
        device, _, name = column.partition(".")
        if device.startswith("gpu") and name == field:
            yield device, found["mean"]


def _mean(summary: Summary, column: str) -> float | None:
    found: ColumnSummary | None = summary.get(column)
    return None if found is None else found["mean"]


def _delta(summary: Summary, column: str) -> float | None:
    found: ColumnSummary | None = summary.get(column)
    return None if found is None else found["delta"]


def _span(seconds: float) -> str:
    return format_duration(seconds)
