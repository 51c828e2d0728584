"""The golden server of the tests, for benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SERVER = Path(__file__).parents[1] / "tests/load/golden_server.py"


@dataclass(frozen=True)
class Golden:
    """A running golden server and its process."""

    url: str
    process: psutil.Process

    def record(self) -> list[list[Any]]:
        """What it sent since the last call: arrival, send times, end, prompt tokens, output tokens, key."""
        with urllib.request.urlopen(f"{self.url}/record") as response:
            record: list[list[Any]] = json.load(response)
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/reset", method="POST")).close()
        return record

    def cpu(self) -> float:
        """CPU seconds that it has used."""
        times = self.process.cpu_times()
        return times.user + times.system


@contextmanager
def golden_server(*, first: float, gap: float, spread: float = 0.5) -> Iterator[Golden]:
    """Start one; seconds to the first token, between tokens, and how far both are spread."""
    command = [sys.executable, str(SERVER), "--first", str(first), "--gap", str(gap), "--spread", str(spread)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Golden(f"http://127.0.0.1:{int(process.stdout.readline())}", psutil.Process(process.pid))
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def order_statistic(values: list[float], percentile: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(percentile * len(ordered) * 1000) // 100_000) - 1)]
