"""The engine's metrics under vLLM's names, as Prometheus text."""

from __future__ import annotations

import time
from collections.abc import Mapping

from autotune.simulator.core import EngineCore, StepOutput
from autotune.simulator.engine_model import EngineModel
from autotune.simulator.exposition import Histogram, counter_lines, escaped, gauge_lines
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
_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...] | None]] = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _TPOT),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _TPOT),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LATENCY),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LATENCY),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LATENCY),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LATENCY),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LATENCY),
    "request_prompt_tokens": ("Number of prefill tokens processed.", None),
    "request_generation_tokens": ("Number of generation tokens processed.", None),
    "request_prefill_kv_computed_tokens": ("Histogram of new KV tokens computed during prefill.", None),
    "request_max_num_generation_tokens": ("Histogram of maximum number of requested generation tokens.", None),
    "request_params_max_tokens": ("Histogram of the max_tokens request parameter.", None),
    "request_params_n": ("Histogram of the n request parameter.", (1, 2, 5, 10, 20)),
    "iteration_tokens_total": ("Histogram of number of tokens per engine_step.", _TOKENS),
}
"""By name without the prefix; None is powers of ten up to the longest sequence."""


class EngineMetrics:
    """Collects what the outputs tell and reads the rest from the engine core when asked."""

    def __init__(self, engine: EngineModel, core: EngineCore, served_name: str) -> None:
        self._engine = engine
        self._core = core
        self._labels = f'engine="0",model_name="{escaped(served_name)}"'
        self._created = time.time()
        lengths = tuple(
            float(m * 10**e) for e in range(9) for m in (1, 2, 5) if m * 10**e <= engine.options.max_model_len
        )
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, lengths if bounds is None else bounds)
            for name, (text, bounds) in _HISTOGRAMS.items()
        }
        self.finished = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), 0)
        self.cached_tokens = 0
        self.rejections = 0
        self.lag_seconds = 0.0
        self.lag_peak_seconds = 0.0

    def observe_output(self, output: StepOutput) -> None:
        """Count a step with its first tokens and finished sequences."""
        self._histograms["iteration_tokens_total"].observe(output.tokens)
        for sequence in output.first_tokens:
            if sequence.first_due == output.due:
                self._histograms["time_to_first_token_seconds"].observe(output.due - sequence.submitted)
                self.cached_tokens += sequence.cached_tokens
        for sequence in output.finished:
            self._observe_finished(sequence, output.due)

    def _observe_finished(self, sequence: Sequence, due: float) -> None:
        first = sequence.first_due if sequence.first_due is not None else due
        scheduled = sequence.scheduled if sequence.scheduled is not None else sequence.arrived
        self.finished[sequence.finish_reason] += 1
        values = {
            "e2e_request_latency_seconds": due - sequence.submitted,
            "request_queue_time_seconds": scheduled - sequence.arrived,
            "request_inference_time_seconds": due - scheduled,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": due - first,
            "request_prompt_tokens": sequence.prompt_tokens,
            "request_generation_tokens": sequence.target,
            "request_prefill_kv_computed_tokens": sequence.prompt_tokens - sequence.cached_tokens,
            "request_max_num_generation_tokens": sequence.target,
            "request_params_max_tokens": sequence.target,
            "request_params_n": 1,
        }
        for name, value in values.items():
            self._histograms[name].observe(value)
        if sequence.target > 1:
            mean_gap = (due - first) / (sequence.target - 1)
            self._histograms["request_time_per_output_token_seconds"].observe(mean_gap)
            self._histograms["inter_token_latency_seconds"].observe(mean_gap, sequence.target - 1)

    def text(self) -> str:
        """The whole exposition."""
        lines = [*self._gauges(), *self._counters()]
        for histogram in self._histograms.values():
            lines += histogram.lines(self._labels, self._created)
        return "\n".join([*lines, *self._cache_config()]) + "\n"

    def _gauges(self) -> list[str]:
        core, scheduler, labels = self._core, self._core.scheduler, self._labels
        waiting = "Number of requests waiting to be processed."
        sleep = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
        late = "Engine seconds by which tokens left late lately; above a few per cent of a latency a probe is void."
        return [
            *gauge_lines(
                "vllm:num_requests_running",
                "Number of requests in model execution batches.",
                {labels: len(scheduler.running)},
            ),
            *gauge_lines("vllm:num_requests_waiting", waiting, {labels: core.waiting}),
            *gauge_lines(
                "vllm:num_requests_waiting_by_reason",
                waiting,
                {f'{labels},reason="capacity"': core.waiting, f'{labels},reason="deferred"': 0},
            ),
            *gauge_lines(
                "vllm:engine_sleep_state",
                "Engine sleep state; awake = 0 means engine is sleeping.",
                {f'{labels},sleep_state="{state}"': value for state, value in sleep.items()},
            ),
            *gauge_lines(
                "vllm:kv_cache_usage_perc",
                "KV-cache usage. 1 means 100 percent usage.",
                {labels: scheduler.kv_usage},
            ),
            *gauge_lines("autotune_simulator_lag_seconds", late, {labels: self.lag_seconds}),
            *gauge_lines(
                "autotune_simulator_lag_peak_seconds",
                "Largest lag since the start or the last reset of the prefix cache.",
                {labels: self.lag_peak_seconds},
            ),
        ]

    def _counters(self) -> list[str]:
        core, scheduler, labels = self._core, self._core.scheduler, self._labels
        simple: Mapping[str, tuple[str, float]] = {
            "prefix_cache_queries": (
                "Prefix cache queries, in terms of number of queried tokens.",
                scheduler.prefix_queries,
            ),
            "prefix_cache_hits": ("Prefix cache hits, in terms of number of cached tokens.", scheduler.prefix_hits),
            "external_prefix_cache_queries": ("External prefix cache queries, in tokens.", 0),
            "external_prefix_cache_hits": ("External prefix cache hits, in tokens.", 0),
            "mm_cache_queries": ("Multi-modal cache queries, in items.", 0),
            "mm_cache_hits": ("Multi-modal cache hits, in items.", 0),
            "num_preemptions": ("Cumulative number of preemption from the engine.", scheduler.preemptions),
            "prompt_tokens": ("Number of prefill tokens processed.", core.prompt_tokens),
            "prompt_tokens_cached": ("Number of cached prompt tokens.", self.cached_tokens),
            "generation_tokens": ("Number of generation tokens processed.", core.generated_tokens),
            "corrupted_requests": ("Corrupted requests, in terms of total number of requests with NaNs.", 0),
            "admission_rejections": ("Requests refused because the queue was full.", self.rejections),
        }
        lines: list[str] = []
        for name, (text, value) in simple.items():
            lines += counter_lines(f"vllm:{name}", text, {labels: value}, self._created)
        sources = {
            "local_compute": core.prompt_tokens,
            "local_cache_hit": self.cached_tokens,
            "external_kv_transfer": 0,
        }
        lines += counter_lines(
            "vllm:prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            {f'{labels},source="{source}"': value for source, value in sources.items()},
            self._created,
        )
        engine, model_name = labels.split(",", 1)
        return lines + counter_lines(
            "vllm:request_success",
            "Count of successfully processed requests.",
            {f'{engine},finished_reason="{reason}",{model_name}': n for reason, n in self.finished.items()},
            self._created,
        )

    def _cache_config(self) -> list[str]:
        engine, options = self._engine, self._engine.options
        values = {
            "block_size": options.block_size,
            "cache_dtype": options.kv_dtype,
            "enable_prefix_caching": options.prefix_caching,
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "kv_cache_max_concurrency": engine.max_concurrency,
            "kv_cache_memory_bytes": options.kv_cache_memory_bytes,
            "kv_cache_size_tokens": engine.kv_tokens,
            "num_gpu_blocks": engine.blocks,
            "num_gpu_blocks_override": options.num_gpu_blocks_override,
        }
        labels = ",".join(f'{key}="{value}"' for key, value in sorted({**values, "engine": 0}.items()))
        return gauge_lines("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", {labels: 1.0})
