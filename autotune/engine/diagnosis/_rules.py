"""The rules, in the order in which they are tried on one statement: the more specific ones first.

Texts are those of vLLM 0.5 to 0.33, PyTorch, NCCL, Triton, huggingface_hub, transformers, safetensors, argparse and
the kernel. Out-of-memory statements of the GPU are told apart by phase elsewhere and have no rules here.
"""

from __future__ import annotations

from autotune.engine.diagnosis._machine_rules import (
    DISK,
    DISTRIBUTED,
    DRIVER,
    GPU_BUSY,
    HARDWARE,
    HOST_MEMORY,
    KV_CACHE,
    PORT,
    SHARED_MEMORY,
)
from autotune.engine.diagnosis._rule import Rule, rule
from autotune.engine.failure import Cause

_REPAIR_INSTALLATION = (
    "The installation of vLLM is broken or incomplete: install vLLM anew in a clean environment so that its wheels,"
    " torch and CUDA match."
)

MODEL_ACCESS: tuple[Rule, ...] = (
    rule(
        Cause.MODEL_NOT_FOUND,
        r"gated repo|GatedRepoError|401 Client Error|403 (?:Client Error|Forbidden)|Invalid credentials"
        r"|restricted\. You must",
        "The model's repository wants a login: accept its licence on the hub and set HF_TOKEN.",
    ),
    rule(
        Cause.MODEL_NOT_FOUND,
        r"RepositoryNotFoundError|404 Client Error|RevisionNotFoundError|Invalid repository ID or local directory"
        r"|is not a (?:local folder|valid model identifier)|HFValidationError|Repo id must|Repository Not Found"
        r"|does not appear to have a file named|Could not detect config format"
        r"|Can't load (?:the )?(?:configuration|config|tokenizer)"
        r"|EntryNotFoundError|No supported config format|No (?:model )?weights? (?:files? )?found"
        r"|Cannot find any model weights"
        r"|is not a valid (?:git identifier|path)"
        r"|Model (?:path|file|folder)\S* .*(?:does not|doesn't) exist"
        r"|Failed to load (?:the )?(?:tokenizer|config)\b.*(?:exist|found)"
        r"|(?:config\.json|tokenizer\S*|\.safetensors|\.gguf).*(?:No such file|not found|does not exist)"
        r"|(?:No such file or directory|FileNotFoundError).*(?:config\.json|tokenizer"
        r"|\.safetensors|\.gguf|\.bin|/models?/)",
        "The model was not found: check its name or folder (config.json, tokenizer and weights must be there) and"
        " its revision.",
    ),
    rule(
        Cause.MODEL_NOT_FOUND,
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to|We couldn't connect|Max retries exceeded"
        r"|Temporary failure in name resolution|Name or service not known|Network is unreachable"
        r"|outgoing traffic has been disabled"
        r"|Failed to (?:download|resolve)|ConnectTimeout|Read timed out|ProxyError|SSLError|HfHubHTTPError|ReadTimeout",
        "The model could not be fetched from the hub: download it first, or give the path of a local folder.",
    ),
)

MODEL_FILES: tuple[Rule, ...] = (
    rule(
        Cause.MODEL_CORRUPT,
        r"SafetensorError|Error while deserializing header|InvalidHeader|HeaderTooLarge|MetadataIncompleteBuffer"
        r"|invalid load key|PytorchStreamReader|failed finding central directory|unexpected EOF|Ran out of input"
        r"|is corrupted|corrupt(?:ed)? (?:file|checkpoint|model|weight)|Consistency check failed"
        r"|is not a valid JSON file"
        r"|JSONDecodeError|Expecting value: line|UnpicklingError|git-?lfs|checksum mismatch|sha256 mismatch"
        r"|magic (?:number )?(?:is )?(?:invalid|mismatch)|not a (?:valid )?gguf|GGUF magic",
        "A file of the model is damaged or only a Git LFS pointer: delete it and download it again.",
    ),
    rule(
        Cause.MODEL_CORRUPT,
        r"weights were not initialized from checkpoint|size mismatch for|Attempted to load weight .*into parameter"
        r"|shape mismatch .*(?:weight|param)|some tensors were not loaded|Error\(s\) in loading state_dict",
        "The weights do not match the model's config: the checkpoint is incomplete or belongs to another model.",
    ),
)

MODEL_SUPPORT: tuple[Rule, ...] = (
    rule(
        Cause.UNSUPPORTED_MODEL,
        r"Model architectures? .*(?:not supported|failed to be inspected)|does not recognize this architecture"
        r"|has no vLLM implementation|no (?:vLLM )?implementation|Unrecognized model in"
        r"|No model architectures are specified"
        r"|Cannot find model module|Unsupported model(?: type| architecture)?\b|model type .* (?:is )?not supported"
        r"|There is no module or parameter named|Unknown (?:model )?architecture|is not supported for .*?model\b"
        r"|(?:architecture|model) .* is not (?:currently |yet )?supported|KeyError: '(?:layers|model)\.",
        "This vLLM (with its transformers) does not know this model: upgrade vLLM, or choose a supported model.",
    ),
    rule(
        Cause.UNSUPPORTED_MODEL,
        r"trust_remote_code|requires you to execute",
        "The model brings code of its own: read it, then start with trust-remote-code.",
    ),
)

TIMEOUT: tuple[Rule, ...] = (
    rule(
        Cause.STARTUP_TIMEOUT,
        r"Timed out waiting for (?:engine|engines|worker|server|core)|engine core processes to start"
        r"|Did not receive (?:response|ready)|(?:start|startup|ready|initiali[sz]\w+).{0,60}(?:timed out|timeout)"
        r"|RPCServer did not|RPC (?:server|call to (?:init|load|determine|compile)\w*) .*tim(?:ed|e)",
        "The engine was still starting when its time was over: raise the start deadline and"
        " VLLM_ENGINE_READY_TIMEOUT_S,"
        " or start again with the caches that are warm by now.",
    ),
)

HANG: tuple[Rule, ...] = (
    rule(
        Cause.ENGINE_HANG,
        r"RPC call to (?:execute|sample|step)\w* timed out|Engine (?:loop )?(?:iteration|step) timed out",
        "The engine made no progress: start it again, and if it hangs again leave this setting out.",
    ),
)

KERNEL_CRASH: tuple[Rule, ...] = (
    rule(
        Cause.ENGINE_CRASH,
        r"illegal memory access|device-side assert triggered|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure|invalid pc|CUBLAS_STATUS_(?!ALLOC_FAILED|NOT_SUPPORTED)|CUDNN_STATUS"
        r"|CUDA error: invalid (?:argument|resource handle|configuration)",
        "A kernel of the engine crashed; memory size is not the reason: start it again once, and if it crashes again"
        " leave"
        " this setting out.",
    ),
)

PROCESS_CRASH: tuple[Rule, ...] = (
    rule(
        Cause.ENGINE_CRASH,
        r"Segmentation fault|SIGSEGV|Fatal Python error|core dumped|^Aborted|terminate called|double free"
        r"|corrupted size"
        r"|No heartbeat received",
        "A process of the engine crashed: start it again once, and if it crashes again leave this setting out.",
    ),
)

DEPENDENCY: tuple[Rule, ...] = (
    rule(
        Cause.DEPENDENCY_ERROR,
        r"Failed to infer device type",
        "vLLM found no device: check that the GPU and its driver are visible here and that this build of vLLM is for"
        " it.",
    ),
    rule(
        Cause.DEPENDENCY_ERROR,
        r"nvcc|ninja|CUDA_HOME|Could not find CUDA|C compiler|Python\.h|\bgcc\b|\bg\+\+|CUDA toolkit|-lcuda\b|cl\.exe",
        "Kernels are compiled at the start and the compiler is missing: install the CUDA toolkit (nvcc), ninja and a"
        " C compiler,"
        " or choose an attention backend that needs none.",
    ),
    rule(
        Cause.DEPENDENCY_ERROR,
        r"undefined symbol|cannot open shared object file|GLIBC(?:XX)?_\S* not found"
        r"|numpy\.(?:dtype|ufunc) size changed"
        r"|^(?:Import|ModuleNotFound|PackageNotFound|DistributionNotFound|VersionConflict)Error\b|No module named"
        r"|cannot import name"
        r"|operator \S+ does not exist|'_Op\w+' '\S+' object has no attribute|_OpNamespace"
        r"|has no attribute '\w*'.*torch"
        r"|module '\S+' has no attribute|partially initialized module|binary incompatib"
        r"|compiled (?:using|against|with) NumPy"
        r"|No package metadata was found|DLL load failed",
        _REPAIR_INSTALLATION,
    ),
    rule(
        Cause.DEPENDENCY_ERROR,
        r"(?:please|must|needs? to be|is not|isn't|not) install(?:ed)?\b|pip install|is required (?:to|for|but)"
        r"|requires .* to be installed|command not found|: not found$",
        "Something that this setting needs is not installed: install what the log names, or drop the setting.",
        environment=False,
        weak=True,
    ),
    rule(
        Cause.DEPENDENCY_ERROR,
        r"^AttributeError: (?!'NoneType').* has no attribute|got an unexpected keyword argument",
        "Two packages do not fit each other: install the versions that this vLLM asks for, transformers above all.",
        weak=True,
    ),
    rule(
        Cause.DEPENDENCY_ERROR,
        r"^PermissionError|Permission denied|Read-only file system",
        "A file or folder that the engine needs may not be used: correct its owner or mode, or set HF_HOME and"
        " VLLM_CACHE_ROOT to a folder of this user.",
        weak=True,
    ),
)

CONFIGURATION: tuple[Rule, ...] = (
    rule(
        Cause.INVALID_CONFIG,
        r"error: unrecognized arguments: (?P<flags>.+)",
        "This vLLM does not know {flags}: drop it, or use the name that this version has (see vllm serve --help=all).",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"error: argument (?P<flag>[^:]+): (?P<why>.+)",
        "{flag} was refused ({why}): correct its value.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived"
        r" max_model_len \(\S*?=(?P<most>\d+)",
        "The model's own limit is {most} tokens: set max-model-len to {most} or less.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<parallel>\d+)\)",
        "tensor-parallel-size must divide the model's {heads} attention heads, and {parallel} does not.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
        "Raise max-num-batched-tokens to at least {seqs}, or lower max-num-seqs to at most {tokens}.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"max_num_batched_tokens \((?P<tokens>\d+)\) is smaller than max_model_len \((?P<length>\d+)\)",
        "Without chunked prefill max-num-batched-tokens must be at least max-model-len ({length}): raise it, or"
        " leave chunked"
        " prefill on.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"number of required GPUs exceeds"
        r"|World size \((?P<world>\d+)\) is larger than the number of available GPUs \((?P<gpus>\d+)\)"
        r"|invalid device ordinal",
        "{world} GPUs are asked for and {gpus} are here: lower tensor-parallel-size or pipeline-parallel-size.",
        fallback="A GPU is asked for that is not here: check CUDA_VISIBLE_DEVICES and tensor-parallel-size.",
    ),
    rule(
        Cause.INVALID_CONFIG,
        r"block.?size|max_model_len|max_num_seqs|max_num_batched_tokens|max_num_partial_prefills|gpu_memory_utilization"
        r"|kv_cache_dtype|cudagraph_capture_size|quantization method|Unknown quantization|tensor.parallel"
        r"|pipeline.parallel"
        r"|Async scheduling|chunked prefill|prefix caching|Config file must be|No model specified|Port must be"
        r"|max_cudagraph|speculative|num_speculative_tokens|does not support (?:float16|bfloat16|LoRA)|load_format"
        r"|chat template"
        r"|long_prefill_token_threshold|max_num_active_seqs|max_num_scheduled_tokens",
        "vLLM refused this combination of settings: change or drop the one that the line names.",
        weak=True,
    ),
)

RULES: tuple[Rule, ...] = (
    *GPU_BUSY,
    *KV_CACHE,
    *HOST_MEMORY,
    *PORT,
    *SHARED_MEMORY,
    *DISK,
    *DRIVER,
    *TIMEOUT,
    *HANG,
    *KERNEL_CRASH,
    *DISTRIBUTED,
    *HARDWARE,
    *MODEL_ACCESS,
    *MODEL_FILES,
    *MODEL_SUPPORT,
    *PROCESS_CRASH,
    *DEPENDENCY,
    *CONFIGURATION,
)
