"""A real vLLM (CPU build): it starts, serves and leaves nothing; its failures are named right.

Needs AUTOTUNE_VLLM_PYTHON, a Python that has vLLM.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.engine import (
    Cause,
    EngineStartError,
    FailureKind,
    LaunchRequest,
    Phase,
    VllmEngine,
    detect_vllm,
    load_catalogue,
)
from autotune.engine import _supervised as supervised
from autotune.engine._marker import Marker
from autotune.engine._procfs import all_processes, command_of, environment_of, own_identity
from autotune.spec import Arguments

PYTHON = os.environ.get("AUTOTUNE_VLLM_PYTHON")
TINY_MODEL = Path(__file__).parents[1] / "tiny_model.py"
CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1"}
EAGER: Arguments = {"load-format": "dummy", "enforce-eager": True, "max-num-seqs": 8}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="AUTOTUNE_VLLM_PYTHON names no Python with vLLM"),
]


def processes_of_ours() -> list[int]:
    """Living processes of engines; those that wait for the next one, with vLLM imported, are left out."""
    me = own_identity()
    return [
        process.identity.pid
        for process in all_processes()
        if process.alive
        and (marker := Marker.read(environment_of(process.identity.pid))) is not None
        and marker.tuner == me
        and process.parent != os.getpid()
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    namespace: dict[str, object] = {"__name__": "tiny_model", "__file__": str(TINY_MODEL)}
    exec(compile(TINY_MODEL.read_text(), str(TINY_MODEL), "exec"), namespace)
    write = namespace["write_tiny_model"]
    assert callable(write)
    write(folder)
    return folder


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, VllmEngine]]:
    """Engines by their environment: each keeps a process with vLLM imported."""
    made: dict[str, VllmEngine] = {}
    yield made
    for engine in made.values():
        asyncio.run(engine.close())


@pytest.fixture
def make_engine(engines: dict[str, VllmEngine]) -> Iterator[Callable[..., VllmEngine]]:
    assert PYTHON is not None
    python = PYTHON

    def make(**environment: str) -> VllmEngine:
        key = str(sorted(environment.items()))
        if key not in engines:
            engines[key] = VllmEngine(detect_vllm(python), environment={**CPU, **environment})
        return engines[key]

    yield make
    assert processes_of_ours() == []


MakeEngine = Callable[..., VllmEngine]


async def fails(engine: VllmEngine, model: object, arguments: Arguments, folder: Path) -> EngineStartError:
    with pytest.raises(EngineStartError) as caught:
        await engine.start(LaunchRequest(str(model), {**EAGER, **arguments}, folder, 300.0))
    return caught.value


async def test_it_serves_and_leaves_nothing(make_engine: MakeEngine, model: Path, tmp_path: Path) -> None:
    engine = make_engine(**SMALL)
    assert engine.check(EAGER) == []
    running = await engine.start(LaunchRequest(str(model), EAGER, tmp_path, 300.0))
    assert running.facts.resolved["max-num-seqs"] == 8
    assert running.facts.kv_cache_tokens
    assert await running.reset_prefix_cache()
    assert len(processes_of_ours()) >= 2, "the renamed engine core must keep its mark"
    report = await running.stop()
    assert not report.forced


async def test_a_killed_engine_core(make_engine: MakeEngine, model: Path, tmp_path: Path) -> None:
    running = await make_engine(**SMALL).start(LaunchRequest(str(model), EAGER, tmp_path, 300.0))
    core = next(pid for pid in processes_of_ours() if "EngineCore" in " ".join(command_of(pid)))
    os.kill(core, signal.SIGKILL)
    failure = await running.diagnose()
    assert failure.cause is Cause.ENGINE_CRASH
    assert failure.kind is FailureKind.FAULT
    assert failure.phase is Phase.SERVING
    await running.stop()


async def test_a_killed_server_takes_its_engine_core_along(
    make_engine: MakeEngine, model: Path, tmp_path: Path
) -> None:
    running = await make_engine(**SMALL).start(LaunchRequest(str(model), EAGER, tmp_path, 300.0))
    os.kill(running.process_id, signal.SIGKILL)
    await asyncio.sleep(0.5)
    assert running.exited()
    assert (await running.diagnose()).cause is Cause.ENGINE_CRASH
    await running.stop()


async def test_a_model_that_is_not_there(make_engine: MakeEngine, tmp_path: Path) -> None:
    error = await fails(make_engine(HF_HUB_OFFLINE="1", **SMALL), tmp_path / "absent", {}, tmp_path)
    assert error.failure.cause is Cause.MODEL_NOT_FOUND
    assert error.failure.environment


async def test_a_context_that_the_model_does_not_have(make_engine: MakeEngine, model: Path, tmp_path: Path) -> None:
    error = await fails(make_engine(**SMALL), model, {"max-model-len": 100_000}, tmp_path)
    assert error.failure.cause is Cause.INVALID_CONFIG
    assert "4096" in error.failure.advice


async def test_a_kv_cache_that_holds_no_request(make_engine: MakeEngine, model: Path, tmp_path: Path) -> None:
    error = await fails(make_engine(), model, {"kv-cache-memory-bytes": 4 * 2**20}, tmp_path)
    assert error.failure.cause is Cause.OOM_KV_CACHE
    assert error.failure.kind is FailureKind.INFEASIBLE


async def test_a_flag_that_this_version_does_not_know(make_engine: MakeEngine, model: Path, tmp_path: Path) -> None:
    engine = make_engine(**SMALL)
    assert "swap-space" in engine.check({"swap-space": 4})[0]
    error = await fails(engine, model, {"swap-space": 4}, tmp_path)
    assert error.failure.cause is Cause.INVALID_CONFIG
    assert "--swap-space" in error.failure.advice


async def test_a_port_that_is_taken(
    make_engine: MakeEngine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(supervised, "free_port", lambda: taken.getsockname()[1])
        error = await fails(make_engine(**SMALL), model, {}, tmp_path)
    assert error.failure.cause is Cause.PORT_IN_USE


async def test_the_help_text_and_the_parser_tell_the_same(tmp_path: Path) -> None:
    assert PYTHON is not None
    installation = detect_vllm(PYTHON)
    asked = load_catalogue(installation, tmp_path)
    read = load_catalogue(dataclasses.replace(installation, python=None), tmp_path / "help")
    assert asked.names - read.names <= {"h"}
    assert {"max-num-seqs", "gpu-memory-utilization", "enable-prefix-caching"} <= read.names
