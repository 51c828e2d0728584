"""Engines that are small programs of ours, and a look at what is left of them."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.engine import CommandStyle, LaunchRequest, VllmEngine, VllmInstallation
from autotune.engine._marker import Marker
from autotune.engine._procfs import ProcessState, all_processes, environment_of, own_identity

FAKE = Path(__file__).parent / "fake_vllm.py"


def marked_processes() -> list[ProcessState]:
    """Living processes of engines that this very process started."""
    me = own_identity()
    found = []
    for process in all_processes():
        marker = Marker.read(environment_of(process.identity.pid))
        if marker is not None and marker.tuner == me and process.alive and process.identity.pid != os.getpid():
            found.append(process)
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves a process of an engine behind."""
    yield
    deadline = time.monotonic() + 5
    while marked_processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked_processes() == []


MakeEngine = Callable[..., VllmEngine]
MakeRequest = Callable[..., LaunchRequest]


@pytest.fixture
def make_engine(nothing_left: None) -> MakeEngine:
    """Builds an engine whose ``vllm`` is the stand-in, behaving as told."""

    def make(behaviour: dict[str, Any] | None = None, **options: Any) -> VllmEngine:
        installation = VllmInstallation((sys.executable, str(FAKE)), "0.99.0", CommandStyle.SERVE)
        environment = {"FAKE_VLLM": json.dumps(behaviour or {}), **options.pop("environment", {})}
        supervised = {name: options.pop(name) for name in ("watchdog", "grace") if name in options}
        engine = VllmEngine(installation, environment=environment, **options)
        engine._supervision = dataclasses.replace(engine._supervision, **({"grace": 1.0} | supervised))
        return engine

    return make


@pytest.fixture
def engine_processes() -> Callable[[], list[ProcessState]]:
    """Looks for living processes of the engines that this test started."""
    return marked_processes


@pytest.fixture
def make_request(tmp_path: Path) -> MakeRequest:
    """Builds a request to start the stand-in."""

    def make(deadline: float = 20.0, **arguments: Any) -> LaunchRequest:
        spelt = {name.replace("_", "-"): value for name, value in arguments.items()}
        return LaunchRequest("some/model", spelt, tmp_path / "trial", deadline)

    return make
