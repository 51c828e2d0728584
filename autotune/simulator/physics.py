"""How long one step of the engine takes: a roofline per part, plus launch and host time.

Parts of a step: the layers' matrix products (memory bound when few tokens share a read of the weights, compute
bound when many do), the vocabulary product for the sampled sequences, attention of decodes (reads each sequence's
keys and values) and of prefill chunks (compute), all-reduces between GPUs, the sampler, launch time by kind of
graph, and the engine core's own CPU time, which asynchronous scheduling hides behind the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autotune.catalog import Gpu, ModelShape
from autotune.simulator.formats import compute_rate, value_bytes
from autotune.simulator.options import EngineOptions

_ALL_REDUCES_PER_LAYER = 2
_HOST_SHARPNESS = 6.0
_MOST_KNOWN_PARTS = 10_000


def smooth_max(a: float, b: float, sharpness: float) -> float:
    """A maximum with a rounded corner: at ``a == b`` it is ``2**(1/sharpness)`` times either."""
    if a <= 0 or b <= 0:
        return max(a, b)
    larger, smaller = (a, b) if a > b else (b, a)
    return float(larger * (1.0 + (smaller / larger) ** sharpness) ** (1.0 / sharpness))


def touched_share(model: ModelShape, tokens: int) -> float:
    """Share of the layers' weights that a batch reads: all in a dense model, in a mixture those of the experts picked.

    With independent picks of k among E an expert stays unread with probability ``(1 - k/E)^tokens``.
    """
    if model.experts is None or model.experts_per_token is None or model.expert_intermediate is None:
        return 1.0
    used = 1.0 - (1.0 - model.experts_per_token / model.experts) ** tokens
    sparse = (model.layers - model.dense_layers) * model.experts * model.mlp_parameters(model.expert_intermediate)
    return 1.0 - (1.0 - used) * sparse / model.linear_parameters


@dataclass(slots=True)
class StepPhysics:
    """Step times of one engine. Build it with :func:`build_physics`; all attributes are seconds or per-unit costs."""

    options: EngineOptions
    model: ModelShape
    weight_read_s: float
    """Reading all layer weights once (dense); scaled by the touched share in a mixture."""
    linear_token_s: float
    """Layer matrix products per token at full rate."""
    head_read_s: float
    head_token_s: float
    kv_token_s: float
    """Reading one token's keys and values in decode, in layers that see the whole context."""
    attention_pair_s: float
    """Prefill attention per (query, key) pair, in layers that see the whole context."""
    window: int
    """Tokens that local layers see; 0 where there are none."""
    window_token_s: float
    """Reading one token's keys and values in decode, in local layers."""
    window_pair_s: float
    """Prefill attention per (query, key) pair, in local layers."""
    all_reduce_s: float
    all_reduce_token_s: float
    sharpness: float
    sampling_sequence_s: float
    host_s: float
    host_sequence_s: float
    gaps_s: float
    launch_piecewise_s: float
    launch_compiled_s: float
    launch_eager_s: float
    _known_parts: dict[tuple[int, int, bool], tuple[float, float]] = field(default_factory=dict)

    def decode_time(self, sequences: int, context: float) -> float:
        """Seconds of a step in which every sequence decodes one token; ``context`` is their summed KV length."""
        gpu, host = self._fixed_parts(sequences, sequences, decode_only=True)
        gpu += self.kv_token_s * context
        if self.window:
            gpu += self.window_token_s * min(context, sequences * self.window)
        return self.combine(gpu, host)

    def decode_times(self, sequences: int, context: int) -> Iterator[float]:
        """As :meth:`decode_time`, for this step and those after it, each with one more token of each sequence."""
        gpu, host = self._fixed_parts(sequences, sequences, decode_only=True)
        per_token, overlapped, power = self.kv_token_s, self.options.async_scheduling, 1.0 / _HOST_SHARPNESS
        window = sequences * self.window
        while True:
            busy = gpu + per_token * context
            if window:
                busy += self.window_token_s * min(context, window)
            # Written out: a virtual run spends most of its time here.
            if not overlapped:
                yield busy + host
            elif busy > host:
                yield busy * (1.0 + (host / busy) ** _HOST_SHARPNESS) ** power
            else:
                yield host * (1.0 + (busy / host) ** _HOST_SHARPNESS) ** power
            context += sequences

    def mixed_time(
        self, decodes: int, context: float, chunk_tokens: int, pairs: float, sampled: int, chunk_context: float
    ) -> float:
        """Seconds of a step with prefill: ``pairs`` of query and key, ``chunk_context`` cached tokens re-read."""
        gpu, host = self._fixed_parts(decodes + chunk_tokens, sampled, decode_only=False)
        gpu += self.kv_token_s * (context + chunk_context) + self.attention_pair_s * pairs
        if self.window:
            seen = min(context, decodes * self.window) + min(chunk_context, self.window)
            gpu += self.window_token_s * seen + self.window_pair_s * min(pairs, chunk_tokens * self.window)
        return self.combine(gpu, host)

    def combine(self, gpu: float, host: float) -> float:
        """A step's time from its GPU and host parts: overlapped with asynchronous scheduling, else summed."""
        return smooth_max(gpu, host, _HOST_SHARPNESS) if self.options.async_scheduling else gpu + host

    def _fixed_parts(self, tokens: int, sampled: int, *, decode_only: bool) -> tuple[float, float]:
        """GPU and host time of a step without what depends on contexts."""
        key = (tokens, sampled, decode_only)
        parts = self._known_parts.get(key)
        if parts is None:
            if len(self._known_parts) >= _MOST_KNOWN_PARTS:
                self._known_parts.clear()
            parts = self._known_parts[key] = self._compute_parts(tokens, sampled, decode_only=decode_only)
        return parts

    def _compute_parts(self, tokens: int, sampled: int, *, decode_only: bool) -> tuple[float, float]:
        options = self.options
        padded = self._padded(tokens, decode_only=decode_only)
        read = self.weight_read_s * touched_share(self.model, tokens)
        gpu = smooth_max(read, self.linear_token_s * padded, self.sharpness)
        gpu += smooth_max(self.head_read_s, self.head_token_s * sampled, self.sharpness)
        gpu += self.gaps_s + self.sampling_sequence_s * sampled
        if options.tensor_parallel > 1:
            gpu += _ALL_REDUCES_PER_LAYER * self.model.layers * (self.all_reduce_s + self.all_reduce_token_s * padded)
        launch = self._launch(tokens, decode_only=decode_only)
        host = self.host_s + self.host_sequence_s * sampled
        if options.async_scheduling:
            return gpu, host + launch
        return smooth_max(gpu, launch, _HOST_SHARPNESS), host

    def _padded(self, tokens: int, *, decode_only: bool) -> int:
        mode = self.options.graph_mode
        if tokens > self.options.max_capture_size or not (mode.full_decode if decode_only else mode.mixed):
            return tokens
        return next(size for size in self.options.capture_sizes if size >= tokens)

    def _launch(self, tokens: int, *, decode_only: bool) -> float:
        options = self.options
        if not options.compiled and not options.capture_sizes:
            return self.launch_eager_s
        if tokens <= options.max_capture_size:
            if decode_only and options.graph_mode.full_decode:
                return 0.0
            if options.graph_mode.mixed:
                return self.launch_piecewise_s
        return self.launch_compiled_s if options.compiled else self.launch_eager_s


def build_physics(gpu: Gpu, model: ModelShape, options: EngineOptions) -> StepPhysics:
    """Costs of an engine's parts on one GPU (of a tensor-parallel group)."""
    calibration = gpu.calibration
    ranks = options.tensor_parallel
    bandwidth = gpu.memory_bandwidth_gbs * 1e9
    plain = value_bytes(options.dtype)
    plain_rate = compute_rate(gpu, options.dtype, None)
    rate = compute_rate(gpu, options.dtype, options.quantization)
    weight_bandwidth = bandwidth * calibration.bandwidth_efficiency * ranks
    kv_bytes = model.kv_bytes_per_token(options.kv_dtype_bytes)
    if options.kv_dtype_bytes < plain:
        kv_bytes /= calibration.fp8_attention_share
    vocabulary = model.vocabulary * model.hidden
    layer_bytes = model.weight_bytes(plain, options.quantization)
    layer_bytes -= (model.embedding_parameters + model.other_parameters) * plain
    pair_flops = 4.0 * model.heads * model.head_dim * model.layers
    layers = model.layers
    local = model.local_layers / model.kv_layers
    kv_token_s = kv_bytes / (bandwidth * calibration.attention_bandwidth_efficiency * ranks)
    attention_pair_s = pair_flops / ranks / (plain_rate * calibration.attention_efficiency)
    return StepPhysics(
        options=options,
        model=model,
        weight_read_s=layer_bytes / weight_bandwidth,
        linear_token_s=2.0 * (model.active_parameters - vocabulary) / ranks / (rate * calibration.prefill_efficiency),
        head_read_s=vocabulary * plain / weight_bandwidth,
        head_token_s=2.0 * vocabulary / ranks / (plain_rate * calibration.prefill_efficiency),
        kv_token_s=(1.0 - local) * kv_token_s,
        attention_pair_s=(1.0 - local) * attention_pair_s,
        window=(model.sliding_window or 0) if local else 0,
        window_token_s=local * kv_token_s,
        window_pair_s=local * attention_pair_s,
        all_reduce_s=calibration.allreduce_latency_s,
        all_reduce_token_s=2.0 * (ranks - 1) / ranks * model.hidden * plain / (calibration.allreduce_gbs * 1e9),
        sharpness=calibration.roofline_sharpness,
        sampling_sequence_s=model.vocabulary * 6.0 / (bandwidth * calibration.sampling_bandwidth_efficiency),
        host_s=calibration.step_overhead_s,
        host_sequence_s=calibration.sequence_overhead_s
        + calibration.chunk_contention_s / (options.stream_interval * options.api_server_count),
        gaps_s=calibration.graph_overhead_per_layer_s * layers,
        launch_piecewise_s=calibration.piecewise_overhead_per_layer_s * layers,
        launch_compiled_s=calibration.compiled_overhead_per_layer_s * layers,
        launch_eager_s=calibration.eager_overhead_per_layer_s * layers,
    )
