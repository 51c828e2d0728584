"""Facts about GPUs, read from ``search_spaces/gpus``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autotune.base.errors import UsageError
from autotune.base.suggest import did_you_mean
from autotune.base.yaml_text import read_yaml_mapping
from autotune.catalog._data import data_folder, first_problem
from autotune.catalog.rule import Rule


class GpuCalibration(BaseModel):
    """Measured or assumed constants of the physics models; each file says which and from where.

    Shares are fractions of the data sheet's peak; times are seconds, memory GiB. The defaults of what the host and
    vLLM's code decide are those of vLLM 0.24 on the machine of ``benchmarks/data/h200_qwen3_4b.csv``, fitted by
    ``benchmarks/simulator_fidelity.py`` to one half of the rows measured there and judged by the other half.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    prefill_efficiency: float = Field(default=0.6, gt=0, le=1)
    """Share of the peak matrix rate that large matrix products reach."""
    bandwidth_efficiency: float = Field(default=0.8, gt=0, le=1)
    """Share of the memory bandwidth that reading weights in a decode step reaches."""
    attention_bandwidth_efficiency: float = Field(default=0.65, gt=0, le=1)
    """Share of the memory bandwidth that reading the KV cache reaches."""
    fp8_attention_share: float = Field(default=0.8, gt=0, le=1)
    """Bandwidth that decode attention reaches on an 8-bit KV cache, as a share of that on a 16-bit one."""
    attention_efficiency: float = Field(default=0.35, gt=0, le=1)
    """Share of the peak matrix rate that prefill attention reaches."""
    step_overhead_s: float = Field(default=1.6e-3, ge=0)
    """Host time of the engine core per step: schedule, prepare inputs, collect outputs."""
    eager_overhead_per_layer_s: float = Field(default=7.3e-4, ge=0)
    """Launch time per layer without compilation."""
    sequence_overhead_s: float = Field(default=2.5e-5, ge=0)
    """Host time of the engine core per sequence and step."""
    chunk_contention_s: float = Field(default=0.0, ge=0)
    """What each streamed chunk of the API server adds to the engine core's host time. Seen on an H200, where steps take
    5 to 10 % less with ``stream-interval`` 10 unless the GPU is what they wait for; the cause was not established.
    Several API servers are taken to share it, which was not measured."""
    output_overhead_s: float = Field(default=5.2e-5, ge=0)
    """API server time per streamed chunk."""
    token_overhead_s: float = Field(default=5.5e-5, ge=0)
    """API server time per output token, whether it shares a chunk with others or not."""
    sampling_bandwidth_efficiency: float = Field(default=0.5, gt=0, le=1)
    """Share of the memory bandwidth that sampling over the logits reaches."""
    allreduce_gbs: float = Field(default=20.0, gt=0)
    """Effective GB/s of an all-reduce between two such GPUs: PCIe unless the file says NVLink."""
    allreduce_latency_s: float = Field(default=1.5e-5, ge=0)
    """Latency of one all-reduce between GPUs of one host."""
    roofline_sharpness: float = Field(default=4.0, ge=1)
    """Exponent of the smooth maximum of memory and compute time; a large one is a hard corner."""
    graph_overhead_per_layer_s: float = Field(default=4.2e-5, ge=0)
    """Gaps between kernels on the GPU, per layer and step."""
    piecewise_overhead_per_layer_s: float = Field(default=1.7e-4, ge=0)
    """Launch time per layer with piecewise graphs: attention is launched between them."""
    compiled_overhead_per_layer_s: float = Field(default=5.1e-4, ge=0)
    """Launch time per layer of a compiled step that is too large for any graph."""
    request_overhead_s: float = Field(default=2.6e-3, ge=0)
    """API server time to take in one request."""
    prompt_token_overhead_s: float = Field(default=4e-7, ge=0)
    """API server time per prompt token."""
    handover_s: float = Field(default=8e-3, ge=0)
    """What a request waits on its way into an engine core at work, beyond the step in flight: the threads that receive
    it share the interpreter with those that schedule and launch, and CPython passes its lock on every 5 ms at most."""
    step_noise: float = Field(default=0.02, ge=0, lt=1)
    """Standard deviation of the logarithm of a step's time."""
    nccl_gib: float = Field(default=0.6, ge=0)
    """Communication buffers of a tensor-parallel GPU."""
    runtime_gib: float = Field(default=0.35, ge=0)
    """Memory taken only under load, which no profile run sees: workspaces, kernels loaded late."""
    fragmentation_share: float = Field(default=0.06, ge=0)
    """Allocator waste under load as a share of the activation peak."""
    activation_factor: float = Field(default=1.055, gt=0)
    """Measured activation peak over the largest live tensors."""
    graph_base_gib: float = Field(default=0.14, ge=0)
    """CUDA graph memory of the first graph."""
    graph_gib_per_capture: float = Field(default=0.0027, ge=0)
    """CUDA graph memory of each captured graph, for 36 layers."""
    graph_activation_share: float = Field(default=0.77, ge=0)
    """CUDA graph memory per token of each whole graph, as a share of the activation memory of a token."""
    context_gib: float = Field(default=0.35, ge=0)
    """Memory that the CUDA context takes before vLLM looks at what is free."""
    non_torch_gib: float = Field(default=0.1, ge=0)
    """Memory outside torch's allocator once the model is loaded: libraries, workspaces."""
    import_s: float = Field(default=31.0, ge=0)
    """Imports of API server and engine process."""
    load_gbs: float = Field(default=1.5, gt=0)
    """Weights from page cache to the GPU, GB/s."""
    compile_cold_s: float = Field(default=35.0, ge=0)
    """torch.compile with an empty cache, for 36 layers."""
    compile_warm_s: float = Field(default=5.0, ge=0)
    """torch.compile with a warm cache, for 36 layers."""
    graphs_s: float = Field(default=6.0, ge=0)
    """Capturing 51 CUDA graph sizes of 36 layers."""
    kernel_warm_up_s: float = Field(default=4.0, ge=0)
    """Kernel warm-up and autotuning at the end of a start."""


class Gpu(BaseModel):
    """A GPU model (or ``cpu``). Rates are the data sheet's dense figures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    title: str
    aliases: tuple[str, ...] = ()
    kind: Literal["cuda", "cpu"] = "cuda"
    memory_gib: float = Field(gt=0)
    """Total memory as NVML reports it."""
    cuda_memory_gib: float = Field(gt=0)
    """Total memory as CUDA reports it, a little less: ``gpu-memory-utilization`` is a share of this."""
    compute_capability: tuple[int, int]
    memory_bandwidth_gbs: float = Field(gt=0)
    tflops: dict[str, float]
    """Dense TFLOP/s by data type (fp16, bf16, fp8, int8); a missing type has no matrix units for it."""
    power_w: float = Field(gt=0)
    nvml_names: tuple[str, ...] = ()
    """Parts of the name that NVML gives, compared without case."""
    price_per_hour: float | None = Field(default=None, gt=0)
    """US dollars per hour of one GPU, on demand; None where no public list price is known."""
    defaults: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """What unset engine arguments resolve to here: coordinates of the unset value, never passed as flags."""
    space: dict[str, object] = Field(default_factory=dict)
    """Ranges of this GPU, in the form of a study's ``space``."""
    unsupported: tuple[Rule, ...] = ()
    """What this GPU cannot do, beyond the rules that follow from its compute capability."""
    calibration: GpuCalibration = GpuCalibration()
    measured: str = ""
    """What the calibration was measured with; empty where only data sheets and assumptions are behind it."""

    @model_validator(mode="after")
    def _cuda_within_nvml(self) -> Gpu:
        if self.cuda_memory_gib > self.memory_gib:
            raise ValueError("cuda_memory_gib is more than memory_gib")
        return self

    @property
    def capability(self) -> int:
        """Compute capability as one number: 75, 80, 86, 89, 90, 100."""
        return self.compute_capability[0] * 10 + self.compute_capability[1]

    def supports(self, dtype: str) -> bool:
        """Whether matrix units for ``dtype`` (fp16, bf16, fp8, int8) exist."""
        return dtype in self.tflops


def _fold(name: str) -> str:
    return name.strip().casefold().replace("_", "-").replace(" ", "-")


def _read(path: Path) -> Gpu:
    try:
        return Gpu.model_validate(read_yaml_mapping(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}.", "Compare it with search_spaces/gpus/t4.yaml.") from error


@cache
def _catalogue() -> tuple[Gpu, ...]:
    gpus = [_read(path) for path in sorted((data_folder() / "gpus").glob("*.yaml"))]
    return tuple(sorted(gpus, key=lambda gpu: (gpu.kind == "cpu", gpu.memory_gib, gpu.name)))


def list_gpus() -> list[Gpu]:
    """All GPUs of the catalogue, smallest memory first, ``cpu`` last."""
    return list(_catalogue())


def load_gpu(name: str) -> Gpu:
    """The GPU called ``name`` (a name, an alias, or the path of a YAML file of the same form).

    Raises:
        UsageError: no such GPU; the remedy gives the nearest names.
    """
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name).expanduser())
    gpus = list_gpus()
    wanted = _fold(name)
    for gpu in gpus:
        if wanted in {gpu.name, *map(_fold, gpu.aliases)}:
            return gpu
    raise UsageError(f"gpu: '{name}' is not in the catalogue.", did_you_mean(name, [gpu.name for gpu in gpus]))


def identify_gpu(nvml_name: str, memory_gib: float) -> Gpu | None:
    """The catalogue's GPU for a device that NVML calls ``nvml_name``; None for one it does not know.

    Where several share a name (A100 40 and 80 GB) the memory decides; it must agree within 10 %, so that
    a MIG slice is not taken for the whole card.
    """
    folded = nvml_name.casefold()
    matches = [
        (len(part), gpu)
        for gpu in list_gpus()
        for part in gpu.nvml_names
        if part.casefold() in folded and abs(gpu.memory_gib - memory_gib) <= 0.1 * gpu.memory_gib
    ]
    return max(matches, key=lambda match: match[0])[1] if matches else None
