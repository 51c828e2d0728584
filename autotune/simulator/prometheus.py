"""The engine's metrics under vLLM's names, as Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from autotune.simulator.core import EngineCore, StepOutput
from autotune.simulator.engine_model import EngineModel
from autotune.simulator.sequence import Sequence

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TPOT = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_LATENCY = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(slots=True)
class Histogram:
    """Counts by bucket."""

    name: str
    help: str
    bounds: Seq[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, labels: str) -> list[str]:
        """The exposition of this histogram."""
        out = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} histogram"]
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            le = "+Inf" if bound == float("inf") else str(float(bound))
            out.append(f'{self.name}_bucket{{{labels},le="{le}"}} {float(running)}')
        out += [f"{self.name}_count{{{labels}}} {float(running)}", f"{self.name}_sum{{{labels}}} {self.total}"]
        return out


def _round_buckets(highest: int) -> tuple[float, ...]:
    bounds = [m * 10**e for e in range(9) for m in (1, 2, 5)]
    return tuple(float(bound) for bound in bounds if bound <= highest)


class EngineMetrics:
    """Collects what the outputs tell and reads the rest from the engine core when asked."""

    def __init__(self, engine: EngineModel, core: EngineCore, served_name: str) -> None:
        self._engine = engine
        self._core = core
        self._labels = f'engine="0",model_name="{_escaped(served_name)}"'
        lengths = _round_buckets(engine.options.max_model_len)
        make = Histogram
        self.ttft = make("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", _TTFT)
        self.itl = make("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TPOT)
        self.tpot = make(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _TPOT,
        )
        self.e2e = make("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY)
        self.queue = make(
            "vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _LATENCY
        )
        self.inference = make(
            "vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", _LATENCY
        )
        self.prefill = make(
            "vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", _LATENCY
        )
        self.decode = make(
            "vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", _LATENCY
        )
        self.prompt = make("vllm:request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self.generation = make("vllm:request_generation_tokens", "Number of generation tokens processed.", lengths)
        self.max_tokens = make(
            "vllm:request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            lengths,
        )
        self.iteration = make("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", _TOKENS)
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.rejections = 0
        self.lag_seconds = 0.0
        self.lag_peak_seconds = 0.0

    def observe_output(self, output: StepOutput) -> None:
        """Count first tokens and finished sequences of a step."""
        for sequence in output.first_tokens:
            if sequence.first_due == output.due and sequence.generated >= 1:
                self.ttft.observe(output.due - sequence.submitted)
                self.prompt_tokens += sequence.prompt_tokens
                self.cached_tokens += sequence.cached_tokens
        for sequence in output.finished:
            self._observe_finished(sequence, output.due)

    def _observe_finished(self, sequence: Sequence, due: float) -> None:
        first = sequence.first_due if sequence.first_due is not None else due
        scheduled = sequence.scheduled if sequence.scheduled is not None else sequence.arrived
        self.success[sequence.finish_reason] += 1
        self.e2e.observe(due - sequence.submitted)
        self.queue.observe(scheduled - sequence.arrived)
        self.inference.observe(due - scheduled)
        self.prefill.observe(first - scheduled)
        self.decode.observe(due - first)
        self.prompt.observe(sequence.prompt_tokens)
        self.generation.observe(sequence.target)
        self.max_tokens.observe(sequence.target)
        if sequence.target > 1:
            mean_gap = (due - first) / (sequence.target - 1)
            self.tpot.observe(mean_gap)
            self.itl.counts[bisect_left(self.itl.bounds, mean_gap)] += sequence.target - 1
            self.itl.total += due - first

    def text(self) -> str:
        """The whole exposition."""
        core, scheduler = self._core, self._core.scheduler
        lines: list[str] = []
        gauges: Mapping[str, tuple[str, float]] = {
            "vllm:num_requests_running": ("Number of requests in model execution batches.", len(scheduler.running)),
            "vllm:num_requests_waiting": ("Number of requests waiting to be processed.", core.waiting),
            "vllm:engine_sleep_state": ("Engine sleep state; awake = 0.", 0),
            "vllm:kv_cache_usage_perc": ("KV-cache usage. 1 means 100 percent usage.", scheduler.kv_usage),
            "autotune_simulator_lag_seconds": (
                "Engine seconds by which tokens left late in the last seconds; above a few per cent of a latency the "
                "measurement is void.",
                self.lag_seconds,
            ),
            "autotune_simulator_lag_peak_seconds": ("Largest lag since the start.", self.lag_peak_seconds),
        }
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{{{self._labels}}} {float(value)}"]
        counters: Mapping[str, tuple[str, float]] = {
            "vllm:num_preemptions": ("Cumulative number of preemption from the engine.", scheduler.preemptions),
            "vllm:prefix_cache_queries": ("Prefix cache queries, in tokens.", scheduler.prefix_queries),
            "vllm:prefix_cache_hits": ("Prefix cache hits, in tokens.", scheduler.prefix_hits),
            "vllm:prompt_tokens": ("Number of prefill tokens processed.", core.prompt_tokens),
            "vllm:prompt_tokens_cached": ("Number of prompt tokens found in the cache.", self.cached_tokens),
            "vllm:generation_tokens": ("Number of generation tokens processed.", core.generated_tokens),
            "vllm:corrupted_requests": ("Requests with NaNs in logits.", 0),
            "vllm:admission_rejections": ("Requests refused because the queue was full.", self.rejections),
        }
        for name, (text, value) in counters.items():
            lines += [f"# HELP {name}_total {text}", f"# TYPE {name}_total counter"]
            lines.append(f"{name}_total{{{self._labels}}} {float(value)}")
        lines += ["# HELP vllm:request_success_total Count of successfully processed requests."]
        lines += ["# TYPE vllm:request_success_total counter"]
        for reason, count in self.success.items():
            lines.append(f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {float(count)}')
        for histogram in (
            self.ttft, self.itl, self.tpot, self.e2e, self.queue, self.inference, self.prefill, self.decode,
            self.prompt, self.generation, self.max_tokens, self.iteration,
        ):  # fmt: skip
            lines += histogram.lines(self._labels)
        return "\n".join([*lines, *self._cache_config()]) + "\n"

    def _cache_config(self) -> list[str]:
        engine, options = self._engine, self._engine.options
        values = {
            "block_size": options.block_size,
            "cache_dtype": options.kv_dtype,
            "enable_prefix_caching": options.prefix_caching,
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "kv_cache_max_concurrency": f"{engine.max_concurrency:.2f}",
            "kv_cache_memory_bytes": options.kv_cache_memory_bytes,
            "kv_cache_size_tokens": engine.kv_tokens,
            "num_gpu_blocks": engine.blocks,
            "num_gpu_blocks_override": options.num_gpu_blocks_override,
        }
        labels = ",".join(f'{key}="{value}"' for key, value in values.items())
        return [
            "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig",
            "# TYPE vllm:cache_config_info gauge",
            f'vllm:cache_config_info{{{labels},engine="0"}} 1.0',
        ]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
