"""The rule of a void probe, case by case, each just below and just above its threshold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from autotune.spec import Slo
from autotune.telemetry import Row, Telemetry
from autotune.telemetry.validity import Validity, judge_validity

TEN_SECONDS = Slo.from_mapping({"p99_latency": "10s"})


@dataclass(frozen=True)
class Client:
    slip_p99: float = 0.0
    loop_lag_p99: float = 0.0


def judge(
    *samples: dict[str, float],
    device: str = "gpu0",
    client: Client | None = None,
    slo: Slo = TEN_SECONDS,
    duration: float = 60.0,
    scale: float = 1.0,
) -> Validity:
    rows = [Row(float(i), device, sample) for i, sample in enumerate(samples)]
    telemetry = Telemetry(rows=rows, counters=frozenset({"host.quota_throttled_seconds"}))
    return judge_validity(telemetry, client or Client(), slo=slo, duration=duration, scale=scale)


def share(count: int, field: str, of: int = 100) -> list[dict[str, float]]:
    return [{field: 1.0 if i < count else 0.0} for i in range(of)]


def test_nothing_recorded_accuses_nobody() -> None:
    verdict = judge()
    assert (verdict.valid, verdict.reason) == (True, "")


@pytest.mark.parametrize(("slip", "valid"), [(0.09, True), (0.11, False)])
def test_slip_is_measured_by_the_objective(slip: float, valid: bool) -> None:
    verdict = judge(client=Client(slip_p99=slip))
    assert verdict.valid is valid
    assert valid or verdict.reason == "the client sent late (P99 slip 110ms, allowed 100ms)"


def test_the_tightest_latency_objective_counts() -> None:
    slo = Slo.from_mapping({"p99_latency": "10s", "p99_ttft": "500ms", "p99_tpot": "20ms"})
    assert judge(client=Client(slip_p99=0.004), slo=slo).valid
    assert not judge(client=Client(slip_p99=0.006), slo=slo).valid


def test_time_per_token_alone_is_measured_by_the_duration() -> None:
    slo = Slo.from_mapping({"p99_tpot": "20ms"})
    assert judge(client=Client(slip_p99=0.5), slo=slo).valid
    assert not judge(client=Client(slip_p99=0.7), slo=slo).valid


def test_lag_is_wall_time_and_grows_with_the_scale() -> None:
    assert judge(client=Client(loop_lag_p99=0.01)).valid
    assert "short of CPU" in judge(client=Client(loop_lag_p99=0.01), scale=60).reason


@pytest.mark.parametrize(("count", "valid"), [(5, True), (6, False)])
def test_heat(count: int, valid: bool) -> None:
    samples = [s | {"throttle_sw_thermal": s["throttled"]} for s in share(count, "throttled")]
    verdict = judge(*samples)
    assert verdict.valid is valid
    assert valid or verdict.reason == "gpu0 was held down by heat for 6% of the time"


def test_the_power_limit_is_no_disturbance() -> None:
    assert judge(*[{"throttle_power_cap": 1.0, "throttled": 0.0}] * 10).valid


@pytest.mark.parametrize(("used", "valid"), [(0.005, True), (0.02, False)])
def test_another_process_computes(used: float, valid: bool) -> None:
    verdict = judge({"foreign_utilization": used, "foreign_processes": 1.0})
    assert verdict.valid is valid
    assert valid or verdict.reason == "another process took 2% of the time of gpu0"


def test_presence_is_enough_where_use_is_unknown() -> None:
    assert "does not tell" in judge({"foreign_processes": 1.0}).reason
    assert judge({"foreign_processes": 0.0}).valid


def test_a_busy_host_matters_beside_a_gpu_only() -> None:
    busy = [Row(0.0, "host", {"cpu": 0.99})]
    gpu = [Row(0.0, "gpu0", {"utilization": 0.9})]
    on_cpu, on_gpu = Telemetry(rows=busy), Telemetry(rows=gpu + busy)
    assert judge_validity(on_cpu, Client(), slo=TEN_SECONDS, duration=60).valid
    verdict = judge_validity(on_gpu, Client(), slo=TEN_SECONDS, duration=60)
    assert verdict.reason == "the host ran out of CPU (busy 99% of the time)"


def test_stolen_time() -> None:
    assert judge({"cpu_steal": 0.04}, device="host").valid
    assert "hypervisor took 6%" in judge({"cpu_steal": 0.06}, device="host").reason


def test_quota_is_measured_by_wall_time() -> None:
    samples = [{"quota_throttled_seconds": 10.0}, {"quota_throttled_seconds": 12.0}]
    assert judge(*samples, device="host").valid
    assert "quota" in judge(*samples, device="host", scale=10).reason


@pytest.mark.parametrize(("lag", "valid"), [(0.4, True), (0.6, False)])
def test_simulator_behind_its_clock(lag: float, valid: bool) -> None:
    verdict = judge({"simulator_lag_seconds": lag}, device="engine")
    assert verdict.valid is valid
    assert valid or verdict.reason == "the simulated engine fell behind its clock (by 600ms, allowed 500ms)"


def test_the_simulated_engine_allows_more_slip() -> None:
    assert judge({"simulator_lag_seconds": 0.0}, device="engine", client=Client(slip_p99=0.4)).valid
    assert not judge({"simulator_lag_seconds": 0.0}, device="engine", client=Client(slip_p99=0.6)).valid


def test_all_reasons_are_told() -> None:
    verdict = judge({"throttled": 1.0, "foreign_utilization": 0.5}, client=Client(slip_p99=1.0))
    assert len(verdict.reasons) == 3
    assert verdict.reason.count("; ") == 2
