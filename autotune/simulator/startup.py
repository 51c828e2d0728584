"""Starting the simulated engine: vLLM's log lines in vLLM's order, each phase taking its (scaled) time."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from autotune.base.clock import WallClock
from autotune.catalog import Gpu, ModelShape
from autotune.simulator import VERSION
from autotune.simulator.engine_model import EngineModel, StartError, StartPhase, start_engine
from autotune.simulator.faults import Faults
from autotune.simulator.gpu_state import busy_bytes, state_folder
from autotune.simulator.log import EngineLog
from autotune.simulator.memory import GIB, Perturbation, weights_gib
from autotune.simulator.options import ConfigError, EngineOptions, resolve_options
from autotune.simulator.start_times import DEVICE_S, KV_PLAN_S, PROFILE_S, StartTimes, compile_key, start_times

_ENGINE_FRAMES = (
    'File "vllm/v1/engine/core.py", line 1210, in run_engine_core',
    'File "vllm/v1/engine/core.py", line 965, in __init__',
    'File "vllm/v1/engine/core.py", line 121, in __init__',
)
_PHASE_FRAMES = {
    StartPhase.INIT_DEVICE: (
        'File "vllm/v1/worker/gpu_worker.py", line 312, in init_device',
        'File "vllm/v1/worker/utils.py", line 410, in request_memory',
    ),
    StartPhase.LOAD_WEIGHTS: (
        'File "vllm/v1/worker/gpu_worker.py", line 355, in load_model',
        'File "vllm/v1/worker/gpu/model_runner.py", line 240, in load_model',
        'File "vllm/model_executor/model_loader/base_loader.py", line 55, in load_model',
    ),
    StartPhase.PROFILE: (
        'File "vllm/v1/worker/gpu_worker.py", line 420, in determine_available_memory',
        'File "vllm/v1/worker/gpu/model_runner.py", line 515, in profile_run',
    ),
    StartPhase.KV_CACHE: (
        'File "vllm/v1/engine/core.py", line 255, in _initialize_kv_caches',
        'File "vllm/v1/core/kv_cache_planning.py", line 78, in check_enough_kv_cache_memory',
    ),
    StartPhase.KV_ALLOCATION: (
        'File "vllm/v1/worker/gpu_worker.py", line 501, in initialize_from_config',
        'File "vllm/v1/worker/gpu/attn_utils.py", line 140, in init_kv_cache',
    ),
    StartPhase.CAPTURE: (
        'File "vllm/v1/worker/gpu_worker.py", line 588, in compile_or_warm_up_model',
        'File "vllm/v1/worker/gpu/model_runner.py", line 960, in capture_model',
    ),
}
_FIRST_ORDER = tuple(StartPhase)


class StartupFailedError(Exception):
    """The engine did not start; the log says why. The process ends with this exit code."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(f"exit code {exit_code}")


@dataclass(slots=True)
class Startup:
    """One start."""

    namespace: argparse.Namespace
    gpu: Gpu
    model: ModelShape
    clock: WallClock
    log: EngineLog
    faults: Faults
    on_core_start: Callable[[EngineModel], None] = lambda _: None
    """Called when the engine core's process would start, if it will start at all."""
    wait: Callable[[float], int | None] = time.sleep
    """Lets wall seconds pass; as soon as the engine core's process has ended, its exit code."""
    _due: float = 0.0
    _started_core: float = 0.0
    _compile_s: float = 0.0
    _warm: bool = False

    def run(self) -> EngineModel:
        """Go through all phases.

        Raises:
            StartupFailedError: after the log lines of the failure.
        """
        self._due = self.clock.now() - _process_age() * self.clock.scale
        calibration = self.gpu.calibration
        self._spend(0.5 * calibration.import_s)
        options = self._configure()
        self._spend(0.5 * calibration.import_s)
        engine, error = self._start_on_paper()
        if engine is not None:
            self.on_core_start(engine)
        self._announce(options)
        self._started_core = self.clock.now()
        reached = _FIRST_ORDER.index(error.phase) if error is not None else len(_FIRST_ORDER)
        phases = (
            (StartPhase.INIT_DEVICE, self._init_device),
            (StartPhase.LOAD_WEIGHTS, self._load_weights),
            (StartPhase.PROFILE, self._compile_and_profile),
            (StartPhase.KV_CACHE, self._plan_kv_cache),
            (StartPhase.KV_ALLOCATION, self._allocate_kv_cache),
            (StartPhase.CAPTURE, self._capture),
        )
        for order, (_, phase) in enumerate(phases):
            if order == reached and error is not None:
                self._fail(error)
            phase(options, engine)
        assert engine is not None
        self._finish(engine)
        return engine

    # -- phases

    def _configure(self) -> EngineOptions:
        log, namespace = self.log, self.namespace
        log.api("api_utils.py:339", f"version {VERSION}\nmodel   {namespace.model}")
        log.api("api_utils.py:273", f"non-default args: {_non_default(namespace)}")
        try:
            options = resolve_options(namespace, self.gpu, self.model, gpus=namespace.sim_gpu_count)
        except ConfigError as error:
            if error.model == "profile_run":
                self._fail(StartError(StartPhase.PROFILE, str(error)), assertion=True)
            self._refuse(error)
        log.api("model.py:598", f"Resolved architecture: {self.model.architecture}")
        for warning in options.warnings:
            log.api("model.py:2100", warning, "WARNING")
        length = options.max_model_len or self.model.context_length
        log.api("model.py:1725", f"Using max model len {length}")
        if options.chunked_prefill:
            log.api(
                "scheduler.py:252",
                f"Chunked prefill is enabled with max_num_batched_tokens={options.max_num_batched_tokens}.",
            )
        if options.async_scheduling:
            log.api("vllm.py:1006", "Asynchronous scheduling is enabled.")
        return options

    def _start_on_paper(self) -> tuple[EngineModel | None, StartError | None]:
        namespace = self.namespace
        folder = state_folder()
        busy = busy_bytes(folder) / GIB if folder is not None else 0.0
        perturbation = Perturbation.parse(namespace.sim_memory_perturbation)
        try:
            engine = start_engine(
                namespace,
                self.gpu,
                self.model,
                perturbation=perturbation,
                busy_gib=busy,
                gpus=namespace.sim_gpu_count,
            )
        except StartError as error:
            return None, error
        return engine, None

    def _announce(self, options: EngineOptions) -> None:
        name = self.model.repository
        quantization = repr(options.quantization) if options.quantization else "None"
        self.log.core(
            "core.py:114",
            f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{name}', speculative_config=None, "
            f"tokenizer='{name}', dtype=torch.{options.dtype}, max_seq_len={options.max_model_len}, "
            f"load_format={options.load_format}, tensor_parallel_size={options.tensor_parallel}, "
            f"quantization={quantization}, enforce_eager={not options.compiled}, kv_cache_dtype={options.kv_dtype}, "
            f"seed={self.namespace.seed}, served_model_name={(self.namespace.served_model_name or [name])[0]}, "
            f"enable_prefix_caching={options.prefix_caching}, enable_chunked_prefill={options.chunked_prefill}, "
            f"max_num_seqs={options.max_num_seqs}, max_num_batched_tokens={options.max_num_batched_tokens}, "
            f"cudagraph_mode={options.graph_mode}, cudagraph_capture_sizes={list(options.capture_sizes)}",
        )
        self.log.core(
            "simulator.py:1",
            f"This engine is simulated: {self.gpu.title}, {self.clock.scale:g} engine seconds a second.",
        )

    def _init_device(self, options: EngineOptions, engine: EngineModel | None) -> None:
        self._spend(DEVICE_S)
        self.log.core("gpu_worker.py:331", "Using V2 Model Runner")

    def _load_weights(self, options: EngineOptions, engine: EngineModel | None) -> None:
        log = self.log
        log.core("model_runner.py:281", "Loading model from scratch...")
        backend = options.attention_backend
        log.core("cuda.py:480", f"Using {backend} attention backend out of potential backends: ['{backend}'].")
        gib = (
            engine.memory.weights
            if engine is not None
            else weights_gib(self.model, options.dtype, options.quantization, options.tensor_parallel)
        )
        seconds = self._times(options, gib).weights
        self._spend(seconds)
        if options.load_format != "dummy":
            log.core("default_loader.py:384", f"Loading weights took {seconds - 0.5:.2f} seconds")
        log.core("model_runner.py:302", f"Model loading took {gib:.2f} GiB and {seconds:.6f} seconds")

    def _compile_and_profile(self, options: EngineOptions, engine: EngineModel | None) -> None:
        if options.compiled:
            cache = CompileCache(self.gpu, self.model, options)
            warm = self._warm = cache.known()
            seconds = self._times(options).compile
            self.log.core(
                "backends.py:1089", f"Using cache directory: {cache.folder}/rank_0_0/backbone for vLLM's torch.compile"
            )
            self._spend(0.3 * seconds)
            self.log.core("backends.py:1148", f"Dynamo bytecode transform time: {0.3 * seconds:.2f} s")
            self._spend(0.7 * seconds)
            batch_range = f"(1, {options.max_num_batched_tokens})"
            if warm:
                text = f"Directly load the compiled graph(s) for compile range {batch_range} from the cache, took"
                self.log.core("backends.py:292", f"{text} {0.3 * seconds:.3f} s")
            else:
                self.log.core("backends.py:378", f"Cache the graph of compile range {batch_range} for later use")
                text = f"Compiling a graph for compile range {batch_range} takes"
                self.log.core("backends.py:393", f"{text} {0.45 * seconds:.2f} s")
            self.log.core("monitor.py:53", f"torch.compile took {seconds:.2f} s in total")
            self._compile_s = seconds
            cache.remember()
        self._spend(PROFILE_S)
        self.log.core("monitor.py:81", f"Initial profiling/warmup run took {PROFILE_S:.2f} s")

    def _plan_kv_cache(self, options: EngineOptions, engine: EngineModel | None) -> None:
        self._spend(KV_PLAN_S)
        if engine is not None:
            self.log.core("gpu_worker.py:508", f"Available KV cache memory: {engine.kv_gib:.2f} GiB")

    def _allocate_kv_cache(self, options: EngineOptions, engine: EngineModel | None) -> None:
        if engine is None:
            return
        length = engine.options.max_model_len
        self.log.core("kv_cache_utils.py:2146", f"GPU KV cache size: {engine.kv_tokens:,} tokens")
        self.log.core(
            "kv_cache_utils.py:2147",
            f"Maximum concurrency for {length:,} tokens per request: {engine.max_concurrency:.2f}x",
        )

    def _capture(self, options: EngineOptions, engine: EngineModel | None) -> None:
        if engine is None or not options.capture_sizes:
            return
        seconds = self._times(options).graphs
        self._spend(seconds)
        count = len(options.capture_sizes)
        whole = sum(size <= options.max_num_seqs for size in options.capture_sizes)
        for kind, number in (("PIECEWISE", count), ("FULL", whole)):
            self.log.plain(
                f"(EngineCore pid={self.log.core_pid}) Capturing CUDA graphs ({kind}): 100%|##########| "
                f"{number}/{number} [00:{max(1, round(seconds / 2)):02d}<00:00, {2 * number / seconds:.2f}it/s]"
            )
        self.log.core(
            "model_runner.py:726",
            f"Graph capturing finished in {max(1, round(seconds))} secs, took {engine.memory.graphs:.2f} GiB",
        )

    def _finish(self, engine: EngineModel) -> None:
        if self.faults.crash_start:
            self._fail(StartError(StartPhase.CAPTURE, "CUDA error: unspecified launch failure"))
        self._spend(self._times(engine.options).kernels)
        self._spend(self.faults.slow_start)
        while self.faults.never_ready:
            self._wait(1.0)
        total = self.clock.now() - self._started_core
        compiled = f" (compilation: {self._compile_s:.2f} s)" if engine.options.compiled else ""
        self.log.core(
            "core.py:337", f"init engine (profile, create kv cache, warmup model) took {total:.2f} s{compiled}"
        )

    # -- endings

    def _refuse(self, error: ConfigError) -> None:
        frames = (
            'File "vllm/entrypoints/cli/main.py", line 75, in main',
            'File "vllm/engine/arg_utils.py", line 1720, in create_engine_config',
        )
        text = f"ValueError: {error}"
        if error.model:
            text = (
                f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {error.model}\n"
                f"  Value error, {error} [type=value_error, input_value=ArgsKwargs((), {{}}), input_type=ArgsKwargs]\n"
                "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
            )
        self.log.api_traceback(frames, text)
        raise StartupFailedError(1)

    def _fail(self, error: StartError, *, assertion: bool = False) -> None:
        kind = "torch.OutOfMemoryError" if error.out_of_memory else "AssertionError" if assertion else "ValueError"
        if "CUDA error" in str(error):
            kind = "torch.AcceleratorError"
        self.log.core_traceback(
            "core.py:1219",
            "EngineCore failed to start.",
            _ENGINE_FRAMES + _PHASE_FRAMES[error.phase],
            f"{kind}: {error}",
        )
        self._fail_without_core({})

    def _fail_without_core(self, exit_codes: Mapping[str, int]) -> NoReturn:
        """End as vLLM's API server does when its engine core is gone: the codes are of processes that died mute."""
        self.log.api_traceback(
            (
                'File "vllm/entrypoints/openai/api_server.py", line 520, in run_server',
                'File "vllm/v1/engine/utils.py", line 1272, in wait_for_engine_startup',
            ),
            "RuntimeError: Engine core initialization failed. See root cause above. "
            f"Failed core proc(s): {dict(exit_codes)}",
        )
        raise StartupFailedError(1)

    def _times(self, options: EngineOptions, weights_gib: float = 0.0) -> StartTimes:
        return start_times(self.gpu, self.model, options, weights_gib, warm=self._warm)

    def _spend(self, seconds: float) -> None:
        """Let engine time pass; what the process itself took counts."""
        self._due += seconds
        left = (self._due - self.clock.now()) / self.clock.scale
        self._wait(max(0.0, left))
        if left <= 0:
            self._due = self.clock.now()

    def _wait(self, wall_seconds: float) -> None:
        code = self.wait(wall_seconds)
        if code is not None:
            self._fail_without_core({"EngineCore": code})


@dataclass(frozen=True, slots=True)
class CompileCache:
    """Which configurations have been compiled before, keyed by what vLLM's compile cache is keyed by."""

    gpu: Gpu
    model: ModelShape
    options: EngineOptions

    @property
    def folder(self) -> Path:
        """The cache folder of this configuration."""
        key = (VERSION, *compile_key(self.gpu, self.model, self.options))
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10]
        return _cache_root() / "torch_compile_cache" / digest

    def known(self) -> bool:
        """True when the cache is warm."""
        return (self.folder / "compiled").exists()

    def remember(self) -> None:
        """Write the cache; a folder that cannot be written stays cold."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "compiled").touch()
        except OSError:
            return


def _cache_root() -> Path:
    given = os.environ.get("VLLM_CACHE_ROOT")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "autotune" / "simulator"


def _process_age() -> float:
    """Wall seconds since this process started."""
    return max(0.0, time.time() - psutil.Process().create_time())


def _non_default(namespace: argparse.Namespace) -> dict[str, object]:
    from autotune.simulator.arguments import build_parser

    hidden = {"api_key", "hf_token"}
    return {
        name: value if name not in hidden else "***"
        for name, value in vars(namespace).items()
        if value != build_parser().get_default(name) and not name.startswith("sim_")
    }
