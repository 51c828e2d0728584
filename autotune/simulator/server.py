"""The HTTP face of the simulated engine: routes, readiness, death, shutdown."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable
from typing import NoReturn

from autotune.base.clock import WallClock
from autotune.simulator import VERSION
from autotune.simulator.child import CoreProcess
from autotune.simulator.driver import EngineDriver
from autotune.simulator.engine_model import EngineModel
from autotune.simulator.faults import Faults
from autotune.simulator.http import HttpRequest, HttpServer, Reply
from autotune.simulator.log import EngineLog
from autotune.simulator.openai_requests import Limits, RefusedError, parse_generation, parse_text
from autotune.simulator.prometheus import EngineMetrics
from autotune.simulator.tokens import answer_text

_DEATH_WATCH_S = 5.0
"""Engine seconds after which vLLM's watchdog stops a server whose engine is dead."""

Route = Callable[[HttpRequest, Reply], None]


class EngineServer:
    """Serves one engine until it is told to stop or its engine dies."""

    def __init__(
        self,
        engine: EngineModel,
        namespace: argparse.Namespace,
        clock: WallClock,
        log: EngineLog,
        faults: Faults,
        core_process: CoreProcess | None,
    ) -> None:
        self._engine = engine
        self._namespace = namespace
        self._clock = clock
        self._log = log
        self._faults = faults
        self._core_process = core_process
        self._names = tuple(namespace.served_model_name or [namespace.model])
        self._limits = Limits(self._names, engine.model.vocabulary, engine.options.max_model_len)
        self._keys = frozenset(namespace.api_key or ())
        self._created = int(time.time())
        self._stop = asyncio.Event()
        self._requests = 0
        core = engine.new_core(seed=namespace.sim_seed, noise=namespace.sim_noise)
        self._metrics = EngineMetrics(engine, core, self._names[0])
        self._driver = EngineDriver(
            engine,
            core,
            clock,
            self._metrics,
            log,
            faults,
            merge_s=namespace.sim_merge_ms / 1000,
            seed=namespace.sim_seed,
            on_death=self._schedule_end,
        )
        self._routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": self._load},
            "/version": {"GET": lambda _, reply: reply.send_json(200, {"version": VERSION})},
            "/v1/models": {"GET": self._models},
            "/metrics": {"GET": self._show_metrics},
            "/v1/completions": {"POST": lambda request, reply: self._generate(request, reply, chat=False)},
            "/v1/chat/completions": {"POST": lambda request, reply: self._generate(request, reply, chat=True)},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }
        if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            self._routes |= {
                "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
                "/reset_mm_cache": {"POST": lambda _, reply: reply.send(200, b"")},
                "/reset_encoder_cache": {"POST": lambda _, reply: reply.send(200, b"")},
                "/server_info": {"GET": self._server_info},
            }

    async def run(self, sock: socket.socket) -> None:
        """Serve until the end; returns when the process should exit with code 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if self._core_process is not None:
            loop.add_reader(self._core_process, self._lose_core, self._core_process)
        http = HttpServer(self._handle)
        host, port = sock.getsockname()[:2]
        self._log.api("api_server.py:581", f"Starting vLLM server on http://{host}:{port}")
        self._log.plain(f"(APIServer pid={os.getpid()}) INFO:     Started server process [{os.getpid()}]")
        self._log.plain(f"(APIServer pid={os.getpid()}) INFO:     Waiting for application startup.")
        await http.listen(sock)
        self._log.plain(f"(APIServer pid={os.getpid()}) INFO:     Application startup complete.")
        await self._stop.wait()
        await self._drain()
        self._log.api("launcher.py:100", "[shutdown] API server: shutdown triggered")
        self._driver.abort_all()
        await http.close()
        for line in ("Shutting down", "Waiting for application shutdown.", "Application shutdown complete."):
            self._log.plain(f"(APIServer pid={os.getpid()}) INFO:     {line}")

    # -- endings

    def _on_signal(self) -> None:
        if not self._faults.ignore_sigterm:
            self._stop.set()

    def _lose_core(self, process: CoreProcess) -> None:
        asyncio.get_running_loop().remove_reader(process)
        self._driver.lose_core()

    def _schedule_end(self) -> None:
        asyncio.get_running_loop().call_later(_DEATH_WATCH_S / self._clock.scale, self._stop.set)

    async def _drain(self) -> None:
        timeout = self._namespace.shutdown_timeout / self._clock.scale
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._driver.quiet.wait(), timeout)

    # -- routes

    def _handle(self, request: HttpRequest, reply: Reply) -> None:
        methods = self._routes.get(request.path)
        if methods is None:
            reply.send_json(404, {"detail": "Not Found"})
            return
        route = methods.get(request.method)
        if route is None:
            reply.send_json(405, {"detail": "Method Not Allowed"})
            return
        if self._keys and request.path.startswith("/v1") and not self._authorized(request):
            reply.send_json(401, {"error": "Unauthorized"})
            return
        try:
            route(request, reply)
        except RefusedError as error:
            reply.send_json(error.status, error.body())

    def _authorized(self, request: HttpRequest) -> bool:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and key in self._keys

    def _generate(self, request: HttpRequest, reply: Reply, *, chat: bool) -> None:
        self._require_life()
        generation = parse_generation(request.body, self._limits, chat=chat)
        self._requests += 1
        if self._faults.fail_share and zlib.crc32(b"%d" % self._requests) / 2**32 < self._faults.fail_share:
            raise RefusedError(500, "The server had an error while processing your request.", "InternalServerError")
        self._driver.submit(generation, reply)

    def _require_life(self) -> None:
        if self._driver.dead:
            raise RefusedError(
                500,
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "InternalServerError",
            )

    def _health(self, request: HttpRequest, reply: Reply) -> None:
        reply.send(503 if self._driver.dead else 200, b"")

    def _load(self, request: HttpRequest, reply: Reply) -> None:
        reply.send_json(200, {"server_load": 0})

    def _models(self, request: HttpRequest, reply: Reply) -> None:
        cards = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._namespace.model,
                "parent": None,
                "max_model_len": self._engine.options.max_model_len,
                "permission": [],
            }
            for name in self._names
        ]
        reply.send_json(200, {"object": "list", "data": cards})

    def _show_metrics(self, request: HttpRequest, reply: Reply) -> None:
        self._driver.refresh()
        reply.send(200, self._metrics.text().encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: HttpRequest, reply: Reply) -> None:
        tokens = parse_text(request.body, self._limits)
        document = {"count": len(tokens), "max_model_len": self._limits.max_model_len, "tokens": tokens}
        reply.send_json(200, document | {"token_strs": None})

    def _detokenize(self, request: HttpRequest, reply: Reply) -> None:
        try:
            tokens = json.loads(request.body)["tokens"]
            text = answer_text(0, len(tokens))
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(400, f"1 validation error: {error}") from error
        reply.send_json(200, {"prompt": text})

    def _reset_prefix_cache(self, request: HttpRequest, reply: Reply) -> None:
        reply.send_json(200, {"success": self._driver.reset_prefix_cache()})

    def _server_info(self, request: HttpRequest, reply: Reply) -> None:
        reply.send_json(200, server_info(self._engine, self._clock.scale))


async def serve(
    sock: socket.socket,
    engine: EngineModel,
    namespace: argparse.Namespace,
    clock: WallClock,
    log: EngineLog,
    faults: Faults,
    core_process: CoreProcess | None,
) -> None:
    """Serve an engine on a bound socket until it is told to stop or dies."""
    await EngineServer(engine, namespace, clock, log, faults, core_process).run(sock)


def server_info(engine: EngineModel, scale: float) -> dict[str, object]:
    """The resolved configuration in the shape of ``/server_info?config_format=json``."""
    options = engine.options
    return {
        "vllm_config": {
            "model_config": {
                "model": engine.model.repository,
                "dtype": f"torch.{options.dtype}",
                "max_model_len": options.max_model_len,
                "quantization": options.quantization,
            },
            "cache_config": {
                "block_size": options.block_size,
                "cache_dtype": options.kv_dtype,
                "gpu_memory_utilization": options.gpu_memory_utilization,
                "enable_prefix_caching": options.prefix_caching,
                "num_gpu_blocks": engine.blocks,
            },
            "scheduler_config": {
                "max_num_seqs": options.max_num_seqs,
                "max_num_batched_tokens": options.max_num_batched_tokens,
                "enable_chunked_prefill": options.chunked_prefill,
                "long_prefill_token_threshold": options.long_prefill_token_threshold,
                "async_scheduling": options.async_scheduling,
                "stream_interval": options.stream_interval,
            },
            "parallel_config": {"tensor_parallel_size": options.tensor_parallel},
            "compilation_config": {
                "cudagraph_mode": options.graph_mode,
                "cudagraph_capture_sizes": list(options.capture_sizes),
            },
        },
        "vllm_env": {},
        "system_env": {"gpu": engine.gpu.title, "simulated": True, "time_scale": scale},
    }


def bind(host: str | None, port: int, log: EngineLog) -> socket.socket:
    """Bind the port before anything is loaded, as vLLM does.

    Raises:
        SystemExit: the port is taken; the log has vLLM's traceback.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host or "127.0.0.1", port))
    except OSError as error:
        _die_binding(error, log)
    return sock


def _die_binding(error: OSError, log: EngineLog) -> NoReturn:
    log.api_traceback(
        ('File "vllm/entrypoints/openai/api_server.py", line 505, in create_server_socket', "sock.bind(addr)"),
        f"OSError: [Errno {error.errno}] {error.strerror}",
    )
    raise SystemExit(1)
