"""A simulated engine as a subprocess, and small HTTP helpers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

SCALE = 200.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> tuple[int, str]:
        return self._call(urllib.request.Request(self.url + path))

    def post(self, path: str, document: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        body = json.dumps(document).encode() if document is not None else b""
        return self._call(
            urllib.request.Request(self.url + path, data=body, headers=dict(headers or {}), method="POST")
        )

    def events(self, path: str, document: object) -> list[dict[str, object]]:
        status, text = self.post(path, document)
        assert status == 200
        lines = [line[6:] for line in text.split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def wait_ready(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(self.log)

    def wait_exit(self, seconds: float = 30.0) -> int:
        return self.process.wait(seconds)

    @staticmethod
    def _call(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


Launch = Callable[..., Server]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start simulated engines; what is still running at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    folder = tmp_path_factory.mktemp("engines")

    def start(
        *words: str, gpu: str = "t4", model: str = "qwen3-4b", environment: Mapping[str, str] | None = None
    ) -> Server:
        port = free_port()
        log_path = folder / f"engine-{len(started)}.log"
        command = [sys.executable, "-m", "autotune.simulator", "serve", model, f"--sim-gpu={gpu}", f"--port={port}"]
        command += [f"--time-scale={SCALE}", *words]
        variables = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CACHE_ROOT": str(folder)} | dict(environment or {})
        with log_path.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=variables)
        started.append(process)
        return Server(process, port, log_path)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
