"""The host's figures against the kernel's own files and against work that was really done."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.telemetry import HostDevice, process_tree
from autotune.telemetry._processes import parse_stat, read_processes, tree
from autotune.telemetry.host import _cpu_pressure, _quota_throttled
from autotune.telemetry.testing import DeviceConformance

# Prints its child's id; the child burns CPU time until it has used half a second, then both wait.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import time, sys
while time.process_time() < 0.5:
    pass
print("burnt", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


class TestHostDeviceConforms(DeviceConformance):
    def make_device(self) -> HostDevice:
        return HostDevice([os.getpid()])

    def make_broken_device(self) -> None:
        return None


@pytest.fixture
def engine() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


def test_engines_tree_is_counted_apart_from_ours(engine: tuple[subprocess.Popen[str], int]) -> None:
    process, child = engine
    device = HostDevice(lambda: [process.pid])
    device.open()
    first, second = device.sample(), device.sample()
    device.close()
    assert first["engine_cpu_seconds"] is not None
    # The system counts whole ticks, of user and system time apart.
    assert first["engine_cpu_seconds"] >= 0.5 - 2 / os.sysconf("SC_CLK_TCK")
    assert first["engine_memory_bytes"] is not None
    assert first["engine_memory_bytes"] > 2**20
    own = first["own_cpu_seconds"]
    used = os.times()
    others = [p for p in psutil.Process().children(recursive=True) if p.pid not in (process.pid, child)]
    by_others = sum(sum(p.cpu_times()[:2]) for p in others)
    assert own is not None
    assert own <= used.user + used.system + by_others + 0.05
    assert second["cpu"] is None or 0 <= second["cpu"] <= 1
    assert process_tree(process.pid) == {process.pid, child}


def test_orphaned_worker_stays_in_its_session(engine: tuple[subprocess.Popen[str], int]) -> None:
    process, child = engine
    os.kill(process.pid, 9)
    process.wait()
    assert process_tree(process.pid) <= {child}
    leader_gone = read_processes()
    assert process.pid not in leader_gone
    assert child not in leader_gone or child in tree(leader_gone, [process.pid])


def test_cpu_of_an_ended_engine_stays_counted(engine: tuple[subprocess.Popen[str], int]) -> None:
    process, _ = engine
    device = HostDevice([process.pid])
    device.open()
    before = device.sample()["engine_cpu_seconds"]
    process.communicate()
    after = device.sample()
    assert before is not None
    assert after["engine_cpu_seconds"] is not None
    assert after["engine_cpu_seconds"] >= before


def test_stat_line_with_a_hostile_name() -> None:
    line = "123 (a) S (b c)) R 1 123 77 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 5000 1000000 200 18446744073709551615"
    stat = parse_stat(line)
    ticks = os.sysconf("SC_CLK_TCK")
    assert (stat.pid, stat.parent, stat.session, stat.start_ticks) == (123, 1, 77, 5000)
    assert stat.cpu_seconds == pytest.approx(200 / ticks)
    assert stat.resident_bytes == 200 * os.sysconf("SC_PAGE_SIZE")


def test_our_own_stat_line() -> None:
    stat = read_processes()[os.getpid()]
    assert (stat.parent, stat.session) == (os.getppid(), os.getsid(0))


def test_pressure_and_quota_files(tmp_path: Path) -> None:
    pressure, quota = tmp_path / "cpu", tmp_path / "cpu.stat"
    assert _cpu_pressure(pressure) is None
    assert _quota_throttled(quota) is None
    pressure.write_text("some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\nfull avg10=0.00 total=7\n")
    quota.write_text("usage_usec 1\nnr_throttled 3\nthrottled_usec 1500000\n")
    assert _cpu_pressure(pressure) == 2.5
    assert _quota_throttled(quota) == 1.5
