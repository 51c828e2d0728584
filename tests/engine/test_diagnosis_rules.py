"""Statements of vLLM, torch, NCCL and the hub, each in the form in which a log brings it; and what must not mislead."""

from __future__ import annotations

import pytest

from autotune.engine import Cause, Evidence, FailureKind, Phase, diagnose

EXITED = Evidence(exit_code=1)
SERVING = Evidence(exit_code=1, was_ready=True)
ALIVE = Evidence(was_ready=True)
STARTED = """(APIServer pid=1) INFO 11-30 10:00:00 [api_server.py:1977] vLLM API server version 0.33.0
(EngineCore pid=9) INFO 11-30 10:00:05 [core.py:93] Initializing a V1 LLM engine (v0.33.0) with config: model='m'
"""
LOADING = STARTED + "(EngineCore pid=9) INFO 11-30 10:00:09 [gpu_model_runner.py:1] Starting to load model m...\n"
LOADED = LOADING + "(EngineCore pid=9) INFO 11-30 10:00:20 [x.py:1] Model loading took 7.5 GiB memory and 3 seconds\n"
SIZED = LOADED + "(EngineCore pid=9) INFO 11-30 10:00:40 [kv_cache_utils.py:1] GPU KV cache size: 31,824 tokens\n"
WRAPPER = """(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/vllm/v1/engine/utils.py", line 1474, in wait_for_engine_startup
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'C': 1}
"""


def core(*lines: str) -> str:
    """Lines as the engine core logs its own end."""
    logged = ("EngineCore failed to start.", "Traceback (most recent call last):", *lines)
    return "".join(f"(EngineCore pid=9) ERROR 11-30 10:00:50 [core.py:1240] {line}\n" for line in logged) + WRAPPER


FROM_VLLM: dict[str, tuple[Cause, str]] = {
    "gpu busy": (
        Cause.GPU_MEMORY_BUSY,
        "ValueError: Free memory on device cuda:0 (3.1/14.6 GiB) on startup is less than desired GPU memory utilization"
        " (0.92, 13.4 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    "memory came back meanwhile": (
        Cause.GPU_MEMORY_BUSY,
        "AssertionError: Error in memory profiling. Initial free memory 70.0 GiB, current free memory 75.0 GiB. This"
        " happens"
        " when other processes sharing the same container release GPU memory while vLLM is profiling",
    ),
    "no blocks": (
        Cause.OOM_KV_CACHE,
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
        " initializing"
        " the engine.",
    ),
    "auto length": (
        Cause.OOM_KV_CACHE,
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
    ),
    "batched below seqs": (
        Cause.INVALID_CONFIG,
        "ValueError: max_num_batched_tokens (64) must be greater than or equal to max_num_seqs (256).",
    ),
    "batched below length": (
        Cause.INVALID_CONFIG,
        "ValueError: max_num_batched_tokens (2048) is smaller than max_model_len (40960). This effectively limits the"
        " maximum sequence length to max_num_batched_tokens",
    ),
    "active seqs": (
        Cause.INVALID_CONFIG,
        "ValueError: max_num_active_seqs (64) cannot be greater than max_num_seqs (8).",
    ),
    "capture sizes": (
        Cause.INVALID_CONFIG,
        "ValueError: customized max_cudagraph_capture_size(=8) should be consistent with the max value of"
        " cudagraph_capture_sizes(=16)",
    ),
    "world size": (
        Cause.INVALID_CONFIG,
        "ValueError: World size (4) is larger than the number of available GPUs (1) in this node. If this is"
        " intentional"
        " and you are using:",
    ),
    "async": (
        Cause.INVALID_CONFIG,
        "ValueError: Async scheduling is not supported by the V1 model runner with pooling",
    ),
    "bf16": (
        Cause.UNSUPPORTED_HARDWARE,
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has"
        " compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag in CLI",
    ),
    "quantization capability": (
        Cause.UNSUPPORTED_HARDWARE,
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability:"
        " 100."
        " Current capability: 75.",
    ),
    "quantization mismatch": (
        Cause.INVALID_CONFIG,
        "ValueError: Quantization method specified in the model config (awq) does not match the quantization method"
        " specified in the `quantization` argument (gptq).",
    ),
    "unknown quantization": (
        Cause.INVALID_CONFIG,
        "ValueError: Unknown quantization method: gguf. Must be one of ['awq', 'fp8'].",
    ),
    "backend": (
        Cause.UNSUPPORTED_HARDWARE,
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. Reason:"
        " ['compute capability not supported']",
    ),
    "no backend": (
        Cause.UNSUPPORTED_HARDWARE,
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=80). Reasons: {}",
    ),
    "fp8 kv": (
        Cause.UNSUPPORTED_HARDWARE,
        "AssertionError: Triton reshape-and-cache cannot store kv_cache_dtype=fp8 on this device: an FP8 KV cache needs"
        " native fp8e4nv (SM89+). Use --kv-cache-dtype bfloat16 (or float16 on SM75).",
    ),
    "triton fp8": (
        Cause.UNSUPPORTED_HARDWARE,
        "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15',"
        " 'fp8e5')",
    ),
    "triton shared memory": (
        Cause.UNSUPPORTED_HARDWARE,
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102400, Hardware limit:"
        " 65536.",
    ),
    "ampere": (Cause.UNSUPPORTED_HARDWARE, "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
    "kernel image": (
        Cause.UNSUPPORTED_HARDWARE,
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    ),
    "model name": (
        Cause.MODEL_NOT_FOUND,
        "ValueError: Invalid repository ID or local directory specified: 'qwen/absent'. Please verify the following"
        " requirements: 1. Provide a valid Hugging Face repository ID.",
    ),
    "repository": (
        Cause.MODEL_NOT_FOUND,
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1)",
    ),
    "offline": (
        Cause.MODEL_NOT_FOUND,
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the"
        " cached"
        " files.",
    ),
    "no weights": (
        Cause.MODEL_NOT_FOUND,
        "RuntimeError: Cannot find any model weights with `/models/qwen3`",
    ),
    "architecture": (
        Cause.UNSUPPORTED_MODEL,
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    ),
    "wrong weights": (
        Cause.MODEL_CORRUPT,
        "ValueError: Following weights were not initialized from checkpoint: {'model.layers.35.mlp.down_proj.weight'}",
    ),
    "short file": (
        Cause.MODEL_CORRUPT,
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    ),
    "engine timeout": (
        Cause.STARTUP_TIMEOUT,
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight"
        " loading"
        " for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
    ),
    "nccl": (
        Cause.NCCL_DISTRIBUTED,
        "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    ),
    "rendezvous": (
        Cause.NCCL_DISTRIBUTED,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    "disk": (Cause.DISK_FULL, "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache/x'"),
    "shared memory": (Cause.NCCL_DISTRIBUTED, "OSError: [Errno 28] No space left on device: '/dev/shm/psm_8a1'"),
    "host": (
        Cause.HOST_OOM,
        "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you"
        " tried"
        " to allocate 51539607552 bytes. Error code 12 (Cannot allocate memory)",
    ),
    "fork": (Cause.HOST_OOM, "OSError: [Errno 12] Cannot allocate memory"),
    "driver": (
        Cause.DRIVER_ERROR,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver"
        " / cuda"
        " driver combination",
    ),
    "no gpu": (Cause.DRIVER_ERROR, "RuntimeError: No CUDA GPUs are available"),
    "import": (Cause.DEPENDENCY_ERROR, "ModuleNotFoundError: No module named 'flashinfer'"),
    "compiler": (
        Cause.DEPENDENCY_ERROR,
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set"
        " triton.knobs.build.impl.",
    ),
    "illegal access": (
        Cause.ENGINE_CRASH,
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    "something else": (Cause.ENGINE_CRASH, "IndexError: list index out of range"),
}


@pytest.mark.parametrize("name", FROM_VLLM)
def test_statement_of_the_engine_core(name: str) -> None:
    cause, statement = FROM_VLLM[name]
    frames = ['  File "/x/vllm/v1/engine/core.py", line 12, in run_engine_core', "    engine_core = EngineCoreProc()"]
    more = (
        ["  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported: dict_keys(['A'])"]
        if name == "architecture"
        else []
    )
    failure = diagnose(LOADING + core(*frames, statement, *more), EXITED)
    assert failure.cause is cause
    assert failure.line.startswith(statement[:40]) or failure.line.startswith("Value error")


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB"


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (LOADING, Cause.OOM_WEIGHTS),
        (LOADED, Cause.OOM_ACTIVATION),
        (SIZED, Cause.OOM_CUDAGRAPH),
        (SIZED + "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#  | 5/51\n", Cause.OOM_CUDAGRAPH),
    ],
)
def test_out_of_memory_by_the_last_milestone(before: str, cause: Cause) -> None:
    assert diagnose(before + core(OOM), EXITED).cause is cause


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("load_model", Cause.OOM_WEIGHTS),
        ("profile_run", Cause.OOM_ACTIVATION),
        ("_allocate_kv_cache_tensors", Cause.OOM_KV_CACHE),
        ("capture_model", Cause.OOM_CUDAGRAPH),
        ("_dummy_sampler_run", Cause.OOM_ACTIVATION),
    ],
)
def test_out_of_memory_by_the_stack(function: str, cause: Cause) -> None:
    frames = [f'  File "/x/vllm/v1/worker/gpu_model_runner.py", line 5, in {function}', "    self.model(x)"]
    assert diagnose(STARTED + core(*frames, OOM), EXITED).cause is cause


def test_out_of_memory_while_serving_is_runtime_whatever_the_stack() -> None:
    log = SIZED + "INFO:     Application startup complete.\n" + core(OOM)
    failure = diagnose(log, SERVING)
    assert failure.cause is Cause.OOM_RUNTIME
    assert failure.phase is Phase.SERVING


def test_memory_in_other_hands() -> None:
    others = (
        " of which 120.00 MiB is free. Process 7 has 11.00 GiB memory in use. Including non-PyTorch memory,"
        " this process has 3.40 GiB memory in use."
    )
    log = LOADING + core(OOM + others)
    failure = diagnose(log, EXITED)
    assert failure.cause is Cause.GPU_MEMORY_BUSY
    assert failure.kind is FailureKind.FAULT


PROMPTS = (
    "INFO 11-30 10:01:00 [logger.py:39] Received request cmpl-1: prompt: 'torch.OutOfMemoryError: CUDA out of"
    " memory. What"
    " does it mean?', params: SamplingParams(n=1)",
    "(APIServer pid=1) INFO 11-30 10:01:00 [logger.py:39] Received request cmpl-1: prompt: 'Explain:\nTraceback"
    " (most recent"
    ' call last):\n  File "a.py", line 1, in <module>\nRuntimeError: CUDA error: an illegal memory access was'
    " encountered\n',"
    " params: SamplingParams(n=1)",
    "INFO 11-30 10:01:00 [logger.py:80] Generated response cmpl-1: output: 'OSError: [Errno 98] Address already in"
    " use',"
    " output_token_ids: None, finish_reason: stop",
)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_prompts_are_no_evidence(prompt: str) -> None:
    log = SIZED + "INFO:     Application startup complete.\n" + prompt + "\n"
    assert diagnose(log, ALIVE).cause is Cause.NONE
    died = log + "(EngineCore pid=9) ERROR 11-30 10:02:00 [core.py:1] RuntimeError: Invalid request status: RUNNING\n"
    failure = diagnose(died, Evidence(exit_code=0, was_ready=True))
    assert failure.cause is Cause.ENGINE_CRASH
    assert "Invalid request status" in failure.line


HARMLESS = (
    "WARNING 11-30 10:00:10 [cache.py:1] Possibly too large swap space. 8.00 GiB out of the 9.00 GiB total CPU memory",
    "[W1130 17:00:26.321 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    "E0000 00:00:1732870000.123 12 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory",
    "/x/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked"
    " semaphore objects",
    "ERROR 11-30 10:00:10 [serving_chat.py:1] Error in preprocessing prompt inputs\nTraceback (most recent call"
    " last):\n"
    '  File "/x/serving_chat.py", line 2, in create\nValueError: This model\'s maximum context length is 4096 tokens.'
    " However, you requested 5000 tokens",
    'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 400 Bad Request',
    "WARNING 11-30 10:00:10 [x.py:1] Your device 'Tesla T4' (with compute capability 7.5) doesn't support"
    " torch.bfloat16."
    " Falling back to torch.float16 for compatibility.",
    "INFO 11-30 10:00:10 [cuda.py:1] Cannot use FlashAttention-2 backend for Volta and Turing GPUs.",
    "WARNING 11-30 10:00:10 [x.py:1] CUDA graphs can run out of memory: No available memory for the cache blocks",
    "(Worker pid=16) WARNING 11-30 17:10:17 [cpu_worker.py:114] libtcmalloc is not found in LD_PRELOAD.",
)


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_lines(line: str) -> None:
    ready = SIZED + "INFO:     Application startup complete.\n"
    assert diagnose(ready + line + "\n", ALIVE).cause is Cause.NONE
    assert diagnose(SIZED + line + "\nINFO:     Application startup complete.\n", ALIVE).cause is Cause.NONE
    stopped = Evidence(exit_code=-15, was_ready=True, stop_requested=True)
    assert diagnose(ready + line + "\n", stopped).cause is Cause.NONE
    # A start that goes on.
    assert diagnose(LOADED + line + "\n", Evidence()).cause is Cause.NONE


def test_noise_of_a_requested_stop() -> None:
    log = (
        SIZED + "INFO:     Application startup complete.\n"
        "(EngineCore pid=9) INFO 11-30 10:09:00 [core.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
        "ERROR 11-30 10:09:01 [async_llm.py:1] AsyncLLM output_handler failed.\n"
        "ERROR 11-30 10:09:01 [async_llm.py:1] Traceback (most recent call last):\n"
        "ERROR 11-30 10:09:01 [async_llm.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an"
        " issue.\n"
        "ERROR 11-30 10:09:01 [x.py:1] RuntimeError: NCCL error: remote process exited or there was a network error\n"
        "Killed\n"
    )
    for code in (0, 1, -9, 143, None):
        evidence = Evidence(exit_code=code, was_ready=True, stop_requested=True)
        assert diagnose(log, evidence).cause is Cause.NONE


def test_a_failure_before_the_requested_stop_counts() -> None:
    log = SIZED + "INFO:     Application startup complete.\n" + core(OOM) + "INFO:     Shutting down\n"
    evidence = Evidence(exit_code=0, was_ready=True, stop_requested=True)
    assert diagnose(log, evidence).cause is Cause.OOM_RUNTIME


def test_bind_fails_after_the_ready_line() -> None:
    log = (
        SIZED + "INFO:     Application startup complete.\n"
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
        "INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n"
    )
    for evidence in (Evidence(exit_code=1), Evidence(exit_code=0), Evidence(exit_code=1, was_ready=True)):
        assert diagnose(log, evidence).cause is Cause.PORT_IN_USE


STATS = (
    "INFO 11-30 10:0{minute}:00 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation"
    " throughput:"
    " {rate} tokens/s, Running: {running} reqs, Waiting: 3 reqs, GPU KV cache usage: 12.0%, Prefix cache hit rate:"
    " 0.0%\n"
)


def test_a_hang_shows_in_the_statistics() -> None:
    ready = SIZED + "INFO:     Application startup complete.\n"
    stuck = "".join(STATS.format(minute=m, rate="0.0", running=0) for m in range(1, 5))
    for evidence in (ALIVE, Evidence(exit_code=-9, was_ready=True), Evidence(0, was_ready=True, stop_requested=True)):
        assert diagnose(ready + stuck, evidence).cause is Cause.ENGINE_HANG
    moving = "".join(STATS.format(minute=m, rate="55.1", running=2) for m in range(1, 5))
    assert diagnose(ready + moving, ALIVE).cause is Cause.NONE


def test_what_the_supervisor_knows() -> None:
    assert diagnose(LOADED, Evidence(timed_out=True)).cause is Cause.STARTUP_TIMEOUT
    assert diagnose(LOADED, Evidence(hung=True)).cause is Cause.ENGINE_HANG
    killed = Evidence(exit_code=-9)
    assert diagnose(LOADING, killed).cause is Cause.HOST_OOM
    assert diagnose(LOADING, Evidence(exit_code=137)).cause is Cause.HOST_OOM
    assert diagnose(LOADING, Evidence(exit_code=-9, oom_kills=0)).cause is Cause.ENGINE_CRASH
    assert diagnose(LOADING, Evidence(exit_code=-11)).cause is Cause.ENGINE_CRASH
    assert diagnose("sh: 1: vllm: not found\n", Evidence(exit_code=127)).cause is Cause.DEPENDENCY_ERROR
    assert diagnose("", EXITED).cause is Cause.UNKNOWN
    assert diagnose("", Evidence()).cause is Cause.NONE


def test_the_root_of_a_chain_decides() -> None:
    log = STARTED + core(
        '  File "/x/vllm/model_executor/models/registry.py", line 1, in _run',
        "ImportError: /x/vllm/_C.abi3.so: undefined symbol: _ZN3c10",
        "",
        "The above exception was the direct cause of the following exception:",
        "Traceback (most recent call last):",
        '  File "/x/vllm/model_executor/models/registry.py", line 9, in inspect',
        "ValueError: Model architectures ['Qwen3ForCausalLM'] failed to be inspected. Please check the logs for more"
        " details.",
    )
    assert diagnose(log, EXITED).cause is Cause.DEPENDENCY_ERROR


def test_a_collector_that_calls_everything_info() -> None:
    lines = "".join(
        f"INFO 2026-11-30T10:00:0{n}.1Z [resource.labels.containerName: vllm] {line}\n"
        for n, line in enumerate(core(OOM).splitlines())
    )
    assert diagnose(lines, EXITED).cause is Cause.OOM_WEIGHTS
    kubernetes = "".join(f"2026-11-30T10:00:00.123456789Z stderr F {line}\n" for line in core(OOM).splitlines())
    assert diagnose(kubernetes, EXITED).cause is Cause.OOM_WEIGHTS
    compose = "".join(f"vllm-1  | {line}\n" for line in core(OOM).splitlines())
    assert diagnose(compose, EXITED).cause is Cause.OOM_WEIGHTS


def test_environment_faults_are_told_from_those_of_a_setting() -> None:
    assert diagnose(STARTED + core("RuntimeError: No CUDA GPUs are available"), EXITED).environment
    assert not diagnose(LOADED + core(OOM), EXITED).environment
    image = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    assert diagnose(STARTED + core(image), EXITED).kind is FailureKind.FAULT
    swap = "ValueError: Too large swap space. 4.00 GiB out of the 4.30 GiB total CPU memory is allocated for it."
    assert diagnose(STARTED + core(swap), EXITED).kind is FailureKind.INFEASIBLE


READY = "INFO:     Application startup complete.\n"


@pytest.mark.parametrize(
    ("log", "evidence", "cause"),
    [
        (LOADING + "[launcher] not ready after 900 s, killed\n", Evidence(), Cause.STARTUP_TIMEOUT),
        (LOADING + "[launcher] start deadline of 900 s passed\n", Evidence(-9), Cause.STARTUP_TIMEOUT),
        (LOADING + "[launcher] gave up\n", Evidence(-9, stop_requested=True), Cause.STARTUP_TIMEOUT),
        (SIZED + READY + "[launcher] no token for 120 s, 3 requests open\n", ALIVE, Cause.ENGINE_HANG),
        (SIZED + READY + "[launcher] killed after 600 s\n", Evidence(-9, was_ready=True), Cause.ENGINE_HANG),
        (STARTED + "[launcher] port 8000 answers, but it belongs to another process\n", Evidence(1), Cause.PORT_IN_USE),
        (LOADING.replace("10:00:09", "10:12:00"), Evidence(-15, stop_requested=True), Cause.STARTUP_TIMEOUT),
        (LOADING, Evidence(-15, stop_requested=True), Cause.NONE),
        (
            SIZED
            + READY
            + "INFO 11-30 10:05:00 [shm_broadcast.py:1] No available shared memory broadcast block found in"
            " 60 seconds. This typically happens when some processes are hanging\n",
            Evidence(-9, was_ready=True),
            Cause.ENGINE_HANG,
        ),
    ],
)
def test_words_and_patience_of_a_launcher(log: str, evidence: Evidence, cause: Cause) -> None:
    assert diagnose(log, evidence).cause is cause


def test_a_mute_server_whose_engine_died_is_no_hang() -> None:
    assert diagnose(SIZED + READY + core(OOM), Evidence(was_ready=True, hung=True)).cause is Cause.OOM_RUNTIME


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended", Cause.DEPENDENCY_ERROR),
        ("PermissionError: [Errno 13] Permission denied: '/home/user/.cache/vllm'", Cause.DEPENDENCY_ERROR),
        ("ValueError: No supported config format found in /models/x", Cause.MODEL_NOT_FOUND),
        ("ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerWrapper.execute_method()", Cause.OOM_ACTIVATION),
    ],
)
def test_further_statements(statement: str, cause: Cause) -> None:
    assert diagnose(LOADED + core(statement), EXITED).cause is cause


def test_figures_at_the_end_of_a_logs_sentence_come_without_its_full_stop() -> None:
    line = (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has"
        " compute capability 7.5. You can use float16 instead."
    )
    found = diagnose(line, EXITED)
    assert found.advice == "This GPU (compute capability 7.5) has no bfloat16, which needs 8.0: set dtype to half."
