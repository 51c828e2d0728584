"""Rules about the machine: its memory, ports, disk, driver, links between GPUs, and what its hardware cannot do."""

from __future__ import annotations

from autotune.engine.diagnosis._rule import Rule, rule
from autotune.engine.failure import Cause, FailureKind

_KV_LENGTH = r"max(?:imum)? seq(?:uence)? len(?:gth)? \((?P<asked>\d+)\)"

GPU_BUSY: tuple[Rule, ...] = (
    rule(
        Cause.GPU_MEMORY_BUSY,
        r"Free memory on device[^(]*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than",
        "Only {free} of {total} GiB were free before the start: end the process that holds the rest, or lower"
        " gpu-memory-utilization.",
    ),
    rule(
        Cause.GPU_MEMORY_BUSY,
        r"Error in memory profiling\. Initial free memory|Externally held weights on device",
        "Another process took or gave back GPU memory meanwhile: leave the GPU to this study and start again.",
    ),
    rule(
        Cause.GPU_MEMORY_BUSY,
        r"CUDA-capable device\(s\) is/are busy or unavailable|all CUDA-capable devices are busy",
        "Another process holds the GPU exclusively: end it, or set the GPU's compute mode to Default.",
    ),
)

KV_CACHE: tuple[Rule, ...] = (
    rule(
        Cause.OOM_KV_CACHE,
        _KV_LENGTH + r".*?estimated maximum model length is (?P<most>\d+)",
        "The KV cache holds one request of at most {most} tokens: set max-model-len to {most} or less, or raise"
        " gpu-memory-utilization.",
    ),
    rule(
        Cause.OOM_KV_CACHE,
        _KV_LENGTH + r" is larger than the maximum number of tokens that can be stored in KV cache \((?P<most>\d+)\)",
        "The KV cache holds {most} tokens: set max-model-len to {most} or less, or raise gpu-memory-utilization.",
    ),
    rule(
        Cause.OOM_KV_CACHE,
        r"(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory"
        r" \((?P<have>[\d.]+) GiB\)",
        "One request of max-model-len tokens needs {needed} GiB of KV cache and {have} GiB are left: lower"
        " max-model-len"
        " or raise gpu-memory-utilization.",
    ),
    rule(
        Cause.OOM_KV_CACHE,
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        "Nothing is left for the KV cache after weights and activations: raise gpu-memory-utilization, lower"
        " max-num-batched-tokens, or use a smaller or quantized model.",
    ),
    rule(
        Cause.OOM_KV_CACHE,
        r"on kv cache allocation is less than requested memory for kv",
        "The host has less free memory than the KV cache was given: lower VLLM_CPU_KVCACHE_SPACE or"
        " kv-cache-memory-bytes.",
    ),
    rule(
        Cause.OOM_KV_CACHE,
        r"(?:num_gpu_blocks|number of (?:GPU )?blocks)\b.*(?:must|should) be (?:positive|greater than 0)"
        r"|KV cache (?:memory|space|size) .*(?:too small|insufficient|not enough)"
        r"|not enough (?:memory|space) for (?:the )?KV cache",
        "The KV cache is too small: raise gpu-memory-utilization or lower max-model-len.",
    ),
)

HOST_MEMORY: tuple[Rule, ...] = (
    rule(
        Cause.HOST_OOM,
        r"^ValueError: Too large swap space\. (?P<asked>[\d.]+) GiB out of the (?P<total>[\d.]+) GiB",
        "{asked} GiB of swap space do not fit the host's {total} GiB: lower swap-space, or give the machine more RAM.",
        kind=FailureKind.INFEASIBLE,
    ),
    rule(
        Cause.HOST_OOM,
        r"DefaultCPUAllocator: (?:can't|not enough) |std::bad_alloc|^MemoryError\b|\[Errno 12\]|Cannot allocate memory"
        r"|cudaHostAlloc|ArrayMemoryError|failed to (?:mmap|allocate) .*host memory|OOMKilled|oom-?kill(?:er|ed)?\b"
        r"|Out of memory: Killed process|Memory cgroup out of memory",
        "The host's RAM ran out: give the machine or container more memory, or load a smaller model; GPU settings do"
        " not help.",
    ),
)

PORT: tuple[Rule, ...] = (
    rule(
        Cause.PORT_IN_USE,
        r"\[Errno (?:98|48)\]|EADDRINUSE|address already in use|only one usage of each socket address",
        "A port was taken by another process: start again on a fresh port, and unset VLLM_PORT and MASTER_PORT.",
    ),
)

SHARED_MEMORY: tuple[Rule, ...] = (
    rule(
        Cause.NCCL_DISTRIBUTED,
        r"Bus error|insufficient shared memory|Error while creating shared memory segment"
        r"|(?:/dev/shm|/psm_|torch_\d+_\d+).*No space left on device|No space left on device.*(?:/dev/shm|/psm_)",
        "Shared memory (/dev/shm) is too small for the processes of one engine: start the container with a larger"
        " --shm-size or"
        " --ipc=host.",
    ),
)

DISK: tuple[Rule, ...] = (
    rule(
        Cause.DISK_FULL,
        r"No space left on device|\[Errno (?:28|122)\]|Disk quota exceeded|ENOSPC|Not enough free disk space",
        "The file system of the model or compile cache is full: free space, or set HF_HOME and VLLM_CACHE_ROOT to"
        " another disk.",
    ),
)

DRIVER: tuple[Rule, ...] = (
    rule(
        Cause.DRIVER_ERROR,
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient|unsupported toolchain"
        r"|unsupported display driver / cuda driver combination|forward compatibility was attempted"
        r"|driver/library version mismatch|minimum required driver",
        "The GPU's driver is older than this build of CUDA needs: upgrade the driver, or install wheels for its CUDA"
        " version.",
    ),
    rule(
        Cause.DRIVER_ERROR,
        r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device is detected|CUDA unknown error"
        r"|system not yet initialized|NVML(?:Error)?_?(?:LibraryNotFound|DriverNotLoaded|Uninitialized)"
        r"|NVML Shared Library Not Found|Can't communicate with the NVIDIA driver"
        r"|couldn't communicate with the NVIDIA driver"
        r"|CUDA error: initialization error|CUDA driver initialization failed|NVMLError",
        "The GPU or its driver is not visible to this process: check nvidia-smi, CUDA_VISIBLE_DEVICES and the"
        " container's GPU options.",
    ),
    rule(
        Cause.DRIVER_ERROR,
        r"uncorrectable ECC|fallen off the bus|GPU is lost|Unable to determine the device handle|\bXid \d+"
        r"|hardware stack error"
        r"|GPU requires reset",
        "The GPU itself reports a hardware error: reset the GPU or reboot the machine, and check it before any"
        " further study.",
    ),
)

DISTRIBUTED: tuple[Rule, ...] = (
    rule(
        Cause.NCCL_DISTRIBUTED,
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclRemoteError|ncclInvalidUsage"
        r"|NCCL WARN"
        r"|DistBackendError|DistNetworkError|DistStoreError|Watchdog caught collective operation timeout"
        r"|ProcessGroup(?:NCCL|Gloo)|Gloo connectFullMesh|gloo/transport|custom_all_reduce|TCPStore"
        r"|failed to recv, got 0 bytes|placement group .*(?:timeout|cannot)|c10d",
        "The GPUs of one engine could not talk to each other: try NCCL_P2P_DISABLE=1, a larger /dev/shm, or"
        " tensor-parallel-size 1.",
    ),
)

HARDWARE: tuple[Rule, ...] = (
    rule(
        Cause.UNSUPPORTED_HARDWARE,
        r"Bfloat16 is only supported on GPUs with compute capability of at least (?P<needed>[\d.]+)"
        r".*?compute capability (?P<have>[\d.]+)",
        "This GPU (compute capability {have}) has no bfloat16, which needs {needed}: set dtype to half.",
        fallback="This GPU has no bfloat16: set dtype to half.",
    ),
    rule(
        Cause.UNSUPPORTED_HARDWARE,
        r"no kernel image is available|device kernel image is invalid"
        r"|is not compatible with the current PyTorch installation"
        r"|invalid device function",
        "This build of vLLM or torch has no kernels for this GPU: install a build for its compute capability.",
        kind=FailureKind.FAULT,
        environment=True,
    ),
    rule(
        Cause.UNSUPPORTED_HARDWARE,
        r"Min(?:imum)? capability: ?(?P<needed>\d+).*?Current capability: ?(?P<have>\d+)",
        "This needs compute capability {needed} and the GPU has {have}: use another quantization or dtype on this GPU.",
    ),
    rule(
        Cause.UNSUPPORTED_HARDWARE,
        r"not supported (?:for|on|by|in) (?:the |this |your )?(?:current )?"
        r"(?:GPU|device|platform|architecture|hardware|CPU)"
        r"|only support(?:s|ed)? (?:on )?(?:Ampere|Hopper|Blackwell|Turing|Volta|NVIDIA|CUDA"
        r"|GPUs? with|SM ?\d|devices? with)"
        r"|requires? (?:at least )?(?:a )?(?:compute capability|SM ?_?\d|sm_\d+|Hopper|Ampere"
        r"|Blackwell|device with capability|GPUs? with)"
        r"|compute capability (?:not supported|of at least|>=|\d|must|is)"
        r"|unsupported (?:GPU|compute capability|architecture: sm)"
        r"|(?:native )?fp8e4(?:nv|b8)|needs native fp8|does not support fp8|fp8 (?:is )?not supported|SM\d\d\+"
        r"|PTX instruction is not supported|ptxas (?:fatal|error)|PTXAS error|requires \.target sm_\d+",
        "This GPU cannot do what the setting asks for: choose another dtype, quantization, kv-cache-dtype or"
        " attention backend.",
    ),
    rule(
        Cause.UNSUPPORTED_HARDWARE,
        r"XFormers does not support|FlashAttention (?:only )?(?:does not )?support|No valid attention backend"
        r"|is not valid for this configuration|Selected (?:attention )?backend .* (?:is )?not"
        r"|backend .* (?:is not|not) supported"
        r"|does not support .*(?:logits? )?soft ?cap|head size \d+ is not supported|Unsupported head_?size"
        r"|out of resource: shared memory|OutOfResources|Illegal instruction",
        "No kernel of this GPU serves this model with these settings: leave attention-backend, block-size and"
        " kv-cache-dtype unset, or use another GPU.",
    ),
)
