"""The recorder with devices that hang, fail and count; no test waits for a wall clock's speed."""

from __future__ import annotations

import csv
import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.base.clock import WallClock
from autotune.telemetry import DeviceError, Recorder, Row, Sample, Telemetry
from autotune.telemetry.recorder import _next_due

LONG = 3600.0


@dataclass
class Probe:
    """A device that answers from a function and tells how often it was asked."""

    name: str = "gpu0"
    answer: Callable[[int], Sample] = lambda n: {"energy_j": float(n)}
    counters: frozenset[str] = frozenset({"energy_j"})
    opened: int = 0
    closed: int = 0
    looks: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def open(self) -> None:
        self.opened += 1

    def sample(self) -> Sample:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
        return self.answer(self.looks)

    def close(self) -> None:
        self.closed += 1

    def wait_for(self, looks: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.looks >= looks, timeout=60)


@dataclass
class Ticking:
    """A clock that steps by one at each reading."""

    time: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        with self.lock:
            self.time += 1
            return self.time

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def test_first_and_last_look_are_taken_whatever_the_interval() -> None:
    device = Probe()
    recorder = Recorder([device], LONG, clock=Ticking())
    recorder.start()
    device.wait_for(1)
    telemetry = recorder.stop()
    assert device.looks >= 2
    assert (device.opened, device.closed) == (1, 1)
    assert telemetry.devices["gpu0"].samples == device.looks
    assert telemetry.summary()["gpu0.energy_j"]["delta"] == device.looks - 1
    times = [row.time for row in telemetry.rows]
    assert times == sorted(times)


def test_a_mark_looks_at_once() -> None:
    device = Probe()
    recorder = Recorder([device], LONG, clock=Ticking())
    recorder.start()
    device.wait_for(1)
    recorder.mark("probe 0")
    device.wait_for(2)
    telemetry = recorder.stop()
    ((time, label),) = telemetry.marks
    assert label == "probe 0"
    assert any(row.time > time for row in telemetry.rows)


def test_a_hanging_device_holds_up_nobody() -> None:
    release = threading.Event()

    def hang(_: int) -> Sample:
        release.wait(60)
        return {}

    slow, quick = Probe("engine", hang), Probe("gpu0")
    recorder = Recorder([slow, quick], 0.001, clock=WallClock())
    recorder.start()
    slow.wait_for(1)
    quick.wait_for(5)
    telemetry = recorder.stop(patience_s=0.05)
    assert telemetry.devices["engine"].off
    assert telemetry.devices["engine"].problem == "It does not come back."
    assert telemetry.devices["gpu0"].samples >= 5
    release.set()


def test_a_failing_device_is_turned_off_with_its_reason() -> None:
    def fail(_: int) -> Sample:
        raise DeviceError("The GPU has fallen off the bus.")

    device = Probe(answer=fail)
    recorder = Recorder([device], 0.0005, clock=WallClock(), give_up_after=3)
    recorder.start()
    device.wait_for(3)
    telemetry = recorder.stop()
    assert device.looks == 3
    assert device.closed == 1
    health = telemetry.devices["gpu0"]
    assert (health.off, health.errors, health.samples) == (True, 3, 0)
    assert health.problem == "The GPU has fallen off the bus."


def test_a_device_that_recovers_stays_on() -> None:
    def flaky(look: int) -> Sample:
        if look % 3:
            raise RuntimeError("busy")
        return {"energy_j": 1.0}

    device = Probe(answer=flaky)
    recorder = Recorder([device], 0.0005, clock=WallClock(), give_up_after=3)
    recorder.start()
    device.wait_for(9)
    health = recorder.stop().devices["gpu0"]
    assert not health.off
    assert health.problem == "RuntimeError: busy"


def test_a_device_that_does_not_open_is_off() -> None:
    class Missing(Probe):
        def open(self) -> None:
            raise DeviceError("There is no GPU 7 here.")

    telemetry_of = Recorder([Missing(), Probe("host")], LONG, clock=WallClock())
    telemetry_of.start()
    telemetry = telemetry_of.stop()
    assert telemetry.devices["gpu0"].off
    assert telemetry.devices["host"].samples >= 1


def test_memory_is_bounded_and_counters_lose_nothing() -> None:
    device = Probe()
    recorder = Recorder([device], 1e-6, clock=WallClock(), max_rows=16)
    recorder.start()
    for _ in range(40):
        recorder.mark("")
    device.wait_for(40)
    telemetry = recorder.stop()
    assert len(telemetry.rows) <= 17
    assert telemetry.summary()["gpu0.energy_j"]["delta"] == device.looks - 1


def test_runs_again() -> None:
    device = Probe()
    recorder = Recorder([device], LONG, clock=Ticking())
    recorder.start()
    with pytest.raises(RuntimeError):
        recorder.start()
    recorder.stop()
    first = device.looks
    recorder.start()
    device.wait_for(first + 1)
    assert recorder.stop().devices["gpu0"].samples == device.looks - first
    recorder.stop()


def test_two_devices_of_one_name() -> None:
    with pytest.raises(ValueError, match="same name"):
        Recorder([Probe(), Probe()], 1, clock=WallClock())


@pytest.mark.parametrize(
    ("due", "now", "expected"),
    [(10.0, 10.2, (11.0, 0)), (10.0, 13.5, (14.0, 3)), (10.0, 9.0, (10.0, 0)), (10.0, 10.0, (11.0, 0))],
)
def test_looks_passed_over_are_counted(due: float, now: float, expected: tuple[float, int]) -> None:
    assert _next_due(due, now, 1.0) == expected


def rows(device: str, times: list[float], **columns: list[float | None]) -> list[Row]:
    return [Row(t, device, {name: values[i] for name, values in columns.items()}) for i, t in enumerate(times)]


def test_summary_by_hand() -> None:
    telemetry = Telemetry(
        rows=rows("host", [0, 1, 2, 3], cpu=[None, 0.2, 0.4, 0.9], work=[5.0, 7.0, 1.0, 4.0]),
        counters=frozenset({"host.work"}),
    )
    summary = telemetry.summary()
    cpu = {"mean": 0.5, "min": 0.2, "max": 0.9, "last": 0.9, "samples": 3, "delta": None}
    assert summary["host.cpu"] == pytest.approx(cpu)
    assert summary["host.work"]["delta"] == 2 + 1 + 3
    assert telemetry.between(1, 2).summary()["host.work"]["delta"] == 1


def test_energy_by_counter_and_by_power() -> None:
    times = [0.0, 1.0, 3.0]
    counter = rows("gpu0", times, energy_j=[100.0, 160.0, 290.0], power_w=[1.0, 1.0, 1.0])
    power = rows("gpu1", times, energy_j=[None, None, None], power_w=[50.0, 70.0, 60.0])
    assert Telemetry(rows=counter).energy_joules() == 190
    assert Telemetry(rows=power).energy_joules() == 60 + 130
    assert Telemetry(rows=counter + power).energy_joules() == 380
    assert Telemetry(rows=rows("gpu0", times, power_w=[None] * 3)).energy_joules() is None
    assert Telemetry(rows=rows("host", times, cpu=[1.0] * 3)).energy_joules() is None


def test_throttle_shares_and_bit_sets() -> None:
    telemetry = Telemetry(
        rows=rows("gpu0", [0, 1, 2, 3], throttle_bits=[4.0, 4.0, 36.0, 0.0], throttle_power_cap=[1.0, 1.0, 1.0, 0.0])
    )
    assert telemetry.throttle_reasons() == {"power_cap": 0.75}
    assert "gpu0.throttle_bits" not in telemetry.summary()


def test_csv_reads_back(tmp_path: Path) -> None:
    telemetry = Telemetry(
        rows=[*rows("gpu0", [1.0], power_w=[66.5]), *rows("host", [2.0], cpu=[None])], marks=[(1.5, "probe 0")]
    )
    path = tmp_path / "telemetry.csv.gz"
    telemetry.to_csv_gz(path)
    with gzip.open(path, "rt", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["time_s"], line["device"], line["mark"]) for line in lines] == [
        ("1.000000", "gpu0", ""),
        ("1.500000", "", "probe 0"),
        ("2.000000", "host", ""),
    ]
    assert lines[0]["gpu0.power_w"] == "66.5"
    assert lines[2]["host.cpu"] == ""
