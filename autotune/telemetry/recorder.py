"""Samples devices in the background while probes run."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from autotune.base.clock import Clock
from autotune.telemetry.data import DeviceHealth, Row, Telemetry
from autotune.telemetry.device import Device, DeviceError


class Recorder:
    """Looks at each device in a thread of its own, so that a slow one delays neither the probe nor another.

    A look that is due while the one before still runs is left out and counted. A device that fails
    ``give_up_after`` times in a row is turned off with its reason. When a device has ``max_rows`` rows, every
    second one is dropped and the interval doubled: hours fit, and counters lose nothing.

    Args:
        devices: closed devices with distinct names; the recorder opens and closes them.
        interval_s: wall seconds between looks (a look costs the machine wall time, whatever the clock's scale).
        clock: gives the rows their time.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        interval_s: float = 0.5,
        *,
        clock: Clock,
        give_up_after: int = 5,
        max_rows: int = 4096,
    ) -> None:
        names = [device.name for device in devices]
        if len(set(names)) != len(names):
            raise ValueError(f"two devices have the same name: {', '.join(names)}")
        if not interval_s > 0:
            raise ValueError(f"the sampling interval must be positive, not {interval_s}")
        self._devices = tuple(devices)
        self._interval = interval_s
        self._clock = clock
        self._give_up_after = give_up_after
        self._max_rows = max(4, max_rows)
        self._marks: list[tuple[float, str]] = []
        self._samplers: list[_Sampler] = []
        self._running = False

    def start(self) -> None:
        """Open the devices and begin; the first look follows at once."""
        if self._running:
            raise RuntimeError("the recorder is already running")
        self._running = True
        self._marks = []
        # New samplers each time: a thread that still hangs from an earlier run keeps its own rows.
        self._samplers = [
            _Sampler(device, self._interval, self._clock, self._give_up_after, self._max_rows)
            for device in self._devices
        ]
        for sampler in self._samplers:
            sampler.start()

    def mark(self, label: str) -> None:
        """Note a moment, such as the start of a probe, and look at every device once more right then."""
        self._marks.append((self._clock.now(), label))
        for sampler in self._samplers:
            sampler.look_now()

    def so_far(self) -> Telemetry:
        """What has been recorded up to now; the recorder goes on."""
        rows = sorted((row for sampler in self._samplers for row in sampler.rows()), key=lambda row: row.time)
        return Telemetry(
            rows=rows,
            counters=frozenset(c for sampler in self._samplers for c in sampler.counters),
            marks=tuple(self._marks),
            devices={sampler.name: sampler.health for sampler in self._samplers},
        )

    def stop(self, patience_s: float = 3.0) -> Telemetry:
        """A last look, then the end. Waits at most ``patience_s`` wall seconds for devices that hang.

        Safe to call twice. Blocks: from a coroutine, call it in a thread.
        """
        for sampler in self._samplers:
            sampler.ask_to_stop()
        deadline = time.monotonic() + patience_s
        for sampler in self._samplers:
            sampler.wait(max(0.0, deadline - time.monotonic()))
        self._running = False
        return self.so_far()


class _Sampler:
    """The thread of one device."""

    def __init__(self, device: Device, interval: float, clock: Clock, give_up_after: int, max_rows: int) -> None:
        self.name = device.name
        self.counters = frozenset(f"{device.name}.{c}" for c in device.counters)
        self.health = DeviceHealth()
        self._device = device
        self._interval = interval
        self._clock = clock
        self._give_up_after = give_up_after
        self._max_rows = max_rows
        self._rows: list[Row] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"telemetry-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look_now(self) -> None:
        self._wake.set()

    def ask_to_stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def wait(self, patience: float) -> None:
        self._thread.join(patience)
        if self._thread.is_alive():
            self.health = replace(self.health, problem="It does not come back.", off=True)

    def rows(self) -> list[Row]:
        with self._lock:
            return list(self._rows)

    def _run(self) -> None:
        interval = self._interval
        failures = 0
        try:
            self._device.open()
        except Exception as error:
            self._note_problem(error, off=True)
            self._close()
            return
        due = time.monotonic()
        while True:
            last = self._stopping.is_set()
            self._wake.clear()
            began = time.monotonic()
            failures = 0 if self._look() else failures + 1
            ended = time.monotonic()
            self.health = replace(self.health, seconds=self.health.seconds + ended - began)
            if failures >= self._give_up_after:
                self.health = replace(self.health, off=True)
            if last or self.health.off:
                break
            interval = self._make_room(interval)
            due, skipped = _next_due(due, ended, interval)
            self.health = replace(self.health, skipped=self.health.skipped + skipped)
            if not self._stopping.is_set():
                self._wake.wait(max(0.0, due - time.monotonic()))
        self._close()

    def _look(self) -> bool:
        before = self._clock.now()
        try:
            values = self._device.sample()
        except Exception as error:
            self._note_problem(error)
            return False
        # The middle of the look is when its values were true, as nearly as can be said.
        row = Row((before + self._clock.now()) / 2, self.name, dict(values))
        with self._lock:
            self._rows.append(row)
        self.health = replace(self.health, samples=self.health.samples + 1)
        return True

    def _make_room(self, interval: float) -> float:
        with self._lock:
            if len(self._rows) < self._max_rows:
                return interval
            self._rows = [*self._rows[:-1:2], self._rows[-1]]
        return interval * 2

    def _note_problem(self, error: Exception, *, off: bool = False) -> None:
        problem = str(error) if isinstance(error, DeviceError) else f"{type(error).__name__}: {error}"
        self.health = replace(self.health, errors=self.health.errors + 1, problem=problem, off=off)

    def _close(self) -> None:
        try:
            self._device.close()
        except Exception as error:
            self._note_problem(error, off=self.health.off)


def _next_due(due: float, now: float, interval: float) -> tuple[float, int]:
    """The next moment of the grid after ``now``, and how many moments were passed over."""
    if now < due:
        return due, 0
    late = int((now - due) // interval)
    return due + interval * (late + 1), late
