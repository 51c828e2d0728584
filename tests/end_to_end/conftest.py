from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

AUTOTUNE = (sys.executable, "-m", "autotune.cli.main")


@dataclass
class CommandLine:
    """Runs the command in a folder of its own, as a user would."""

    folder: Path

    def run(self, *words: str, timeout: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AUTOTUNE, *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*AUTOTUNE, *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def result(self, study: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "studies" / study / "result.json").read_text())
        return found

    def wait_for(self, condition: Callable[[], bool], what: str, patience: float = 240) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, f"never saw: {what}"
            time.sleep(0.1)

    def engines(self, study: str) -> list[psutil.Process]:
        """Living processes that carry the mark of an engine of this study."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = any(study in v for k, v in process.environ().items() if k.startswith("AUTOTUNE_ENGINE"))
                if marked and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def cli(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def end() -> Callable[[subprocess.Popen[str], int], tuple[int, str]]:
    def finish(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[int, str]:
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        return process.returncode, errors

    return finish
