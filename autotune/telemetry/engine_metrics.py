"""What the engine says of itself at ``/metrics``: load, KV cache, tokens, preemptions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from autotune.telemetry.device import DeviceError, Sample
from autotune.telemetry.prometheus import MetricPoint, parse_metrics

_PATH = "/metrics"
_CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True)
class _Family:
    """A field and the series it comes from: the newest name first, older vLLM's after it."""

    field: str
    series: tuple[str, ...]
    is_counter: bool = False
    is_share: bool = False
    """A share of each engine's own cache: the mean over engines, where other series are added up."""


_FAMILIES = (
    _Family("running", ("vllm:num_requests_running",)),
    _Family("waiting", ("vllm:num_requests_waiting",)),
    _Family("kv_cache_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), is_share=True),
    _Family("preemptions", ("vllm:num_preemptions_total",), is_counter=True),
    _Family("prompt_tokens", ("vllm:prompt_tokens_total",), is_counter=True),
    _Family("generation_tokens", ("vllm:generation_tokens_total",), is_counter=True),
    _Family("requests_finished", ("vllm:request_success_total",), is_counter=True),
    _Family(
        "prefix_cache_queries",
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        is_counter=True,
    ),
    _Family("prefix_cache_hits", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"), is_counter=True),
    _Family("iterations", ("vllm:iteration_tokens_total_count",), is_counter=True),
    _Family("iteration_tokens", ("vllm:iteration_tokens_total_sum",), is_counter=True),
    _Family("queue_seconds", ("vllm:request_queue_time_seconds_sum",), is_counter=True),
    _Family("prefill_seconds", ("vllm:request_prefill_time_seconds_sum",), is_counter=True),
    _Family("decode_seconds", ("vllm:request_decode_time_seconds_sum",), is_counter=True),
    _Family("draft_tokens", ("vllm:spec_decode_num_draft_tokens_total",), is_counter=True),
    _Family("accepted_tokens", ("vllm:spec_decode_num_accepted_tokens_total",), is_counter=True),
    _Family("simulator_lag_seconds", ("autotune_simulator_lag_seconds",)),
)
_SERIES = frozenset(name for family in _FAMILIES for name in family.series) | {_CACHE_CONFIG}


class EngineMetricsDevice:
    """Scrapes ``/metrics`` of a vLLM server, or of the simulated engine.

    Fields (token and request counters are sums over the engines of a data-parallel server): ``running``,
    ``waiting`` (requests), ``kv_cache_usage`` (share 0..1, mean over engines), ``kv_cache_tokens``,
    ``preemptions``, ``prompt_tokens``, ``generation_tokens``, ``requests_finished``,
    ``prefix_cache_queries``, ``prefix_cache_hits`` (tokens), ``iterations``, ``iteration_tokens``,
    ``queue_seconds``, ``prefill_seconds``, ``decode_seconds`` (summed over requests),
    ``draft_tokens``, ``accepted_tokens`` (speculation), ``simulator_lag_seconds`` (engine seconds by
    which the simulated engine is behind its clock). What the engine does not report is None.

    Args:
        url: base URL without a path, e.g. ``http://127.0.0.1:8000``.
        timeout: wall seconds for connecting and for each read; a busy API server answers late.
        transport: for tests.
    """

    def __init__(
        self, url: str, *, timeout: float = 2.0, name: str = "engine", transport: httpx.BaseTransport | None = None
    ) -> None:
        self._url = url.rstrip("/") + _PATH
        self._timeout = timeout
        self._name = name
        self._transport = transport
        self._client: httpx.Client | None = None

    @property
    def name(self) -> str:
        """``engine`` unless told otherwise."""
        return self._name

    @property
    def counters(self) -> frozenset[str]:
        """Everything but the gauges."""
        return frozenset(family.field for family in _FAMILIES if family.is_counter)

    def open(self) -> None:
        """Make the client; the server is first asked by ``sample``."""
        self.close()
        # Proxies of the environment are for the outside world; the engine is on this machine.
        self._client = httpx.Client(timeout=self._timeout, transport=self._transport, trust_env=False)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def sample(self) -> Sample:
        """Ask the server once.

        Raises:
            DeviceError: no answer in time, or one that is not 200.
        """
        if self._client is None:
            raise DeviceError("The engine's metrics are not open.")
        try:
            response = self._client.get(self._url)
        except httpx.HTTPError as error:
            raise DeviceError(f"{self._url} does not answer ({type(error).__name__}).") from error
        if response.status_code != httpx.codes.OK:
            raise DeviceError(f"{self._url} answers {response.status_code}.")
        return engine_sample(parse_metrics(response.text, _SERIES))


def engine_sample(points: Iterable[MetricPoint]) -> Sample:
    """The device's fields from the points of an exposition."""
    by_name: dict[str, list[MetricPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    values = {family.field: _family_value(family, by_name) for family in _FAMILIES}
    values["kv_cache_tokens"] = _kv_cache_tokens(by_name.get(_CACHE_CONFIG, []))
    return values


def _family_value(family: _Family, by_name: dict[str, list[MetricPoint]]) -> float | None:
    points = next((by_name[name] for name in family.series if name in by_name), None)
    if points is None:
        return None
    total = math.fsum(point.value for point in points if math.isfinite(point.value))
    return total / len(points) if family.is_share else total


def _kv_cache_tokens(points: list[MetricPoint]) -> float | None:
    sizes = [_cache_size(point) for point in points if point.value > 0]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _cache_size(point: MetricPoint) -> float | None:
    labels = point.labels
    try:
        if "kv_cache_size_tokens" in labels:
            return float(labels["kv_cache_size_tokens"])
        return float(labels["num_gpu_blocks"]) * float(labels["block_size"])
    except (KeyError, ValueError):
        return None
