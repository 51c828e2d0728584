"""A golden server for the tests of this folder."""

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

import pytest

from autotune.load import Target

SERVER = Path(__file__).parent / "golden_server.py"


@dataclass(frozen=True)
class Golden:
    """A running golden server."""

    url: str

    def target(self, model: str = "golden") -> Target:
        return Target(self.url, model, vocabulary=32_000)

    def record(self) -> list[list[Any]]:
        """What it sent since the last call, and when."""
        with urllib.request.urlopen(f"{self.url}/record") as response:
            record: list[list[Any]] = json.load(response)
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/reset", method="POST")).close()
        return record


@contextmanager
def golden_server(**options: float) -> Iterator[Golden]:
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    process = subprocess.Popen(
        [sys.executable, str(SERVER), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Golden(f"http://127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


@pytest.fixture(scope="session")
def golden() -> Iterator[Golden]:
    """A server whose first token takes 60 ms and each further one 5 ms."""
    with golden_server(first=0.06, gap=0.005) as server:
        yield server


@pytest.fixture(scope="session")
def slow_golden() -> Iterator[Golden]:
    """A server slow enough that one per cent of its times is more than a client can be off."""
    with golden_server(first=0.4, gap=0.03) as server:
        yield server
