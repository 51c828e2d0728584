"""What is kept of each request, and the latencies that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.spec.slo import Metric, Slo


class ErrorKind(StrEnum):
    """Why a request failed."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    HTTP_STATUS = "http_status"
    BROKEN_STREAM = "broken_stream"
    STREAM_ERROR = "stream_error"
    WRONG_MODEL = "wrong_model"
    ABORTED_BY_SERVER = "aborted_by_server"
    CANCELLED = "cancelled"
    """Cut off by us because the probe was decided; never counted as a failure."""


class TokenSource(StrEnum):
    """Where a token count comes from."""

    USAGE = "usage"
    ESTIMATE = "estimate"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are engine seconds on the probe's clock.

    ``scheduled`` is the planned arrival (open loop) or the moment a user became free to send (closed
    loop); ``sent`` is when it really left, so ``sent - scheduled`` is the client's slip.
    """

    index: int
    scheduled: float
    sent: float
    first_token: float | None
    last_token: float | None
    finished: float
    input_tokens: int
    output_tokens: int
    token_source: TokenSource
    chunks: int
    error: ErrorKind | None = None
    detail: str = ""
    http_status: int | None = None
    finish_reason: str | None = None
    max_gap: float | None = None
    """Longest span between two chunks with output; None with fewer than two."""

    @property
    def succeeded(self) -> bool:
        """True when the answer came whole."""
        return self.error is None

    @property
    def latency(self) -> float:
        """End-to-end latency in seconds from the scheduled arrival."""
        return self.finished - self.scheduled

    @property
    def ttft(self) -> float | None:
        """Time to the first output token of any kind, from the scheduled arrival; None without one."""
        return None if self.first_token is None else self.first_token - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)

    def value(self, metric: Metric) -> float | None:
        """The request's value of one metric, in seconds."""
        match metric:
            case Metric.LATENCY:
                return self.latency
            case Metric.TTFT:
                return self.ttft
            case Metric.TPOT:
                return self.tpot

    def misses(self, slo: Slo) -> tuple[bool, ...]:
        """For each target of the objective: does this request miss it? A failed one misses all."""
        if not self.succeeded:
            return (True,) * len(slo.targets)
        values = (self.value(target.metric) for target in slo.targets)
        return tuple(v is not None and v > t.limit_s for v, t in zip(values, slo.targets, strict=True))
