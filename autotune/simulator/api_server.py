"""The API server's CPU as a queue: taking requests in and sending chunks out cost time, and one process does both."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.catalog import GpuCalibration


@dataclass(slots=True)
class ApiServerQueue:
    """Work of ``count`` API server processes, served in order. Times are engine seconds.

    Several processes are taken as one that is ``count`` times faster, which holds when requests spread evenly.
    """

    per_request_s: float
    per_prompt_token_s: float
    per_token_s: float
    per_chunk_s: float
    stream_interval: int
    handover_s: float
    free_at: float = 0.0

    @classmethod
    def build(cls, calibration: GpuCalibration, *, count: int, stream_interval: int) -> ApiServerQueue:
        """The queue of an engine with so many API servers."""
        return cls(
            per_request_s=calibration.request_overhead_s / count,
            per_prompt_token_s=calibration.prompt_token_overhead_s / count,
            per_token_s=calibration.token_overhead_s / count,
            per_chunk_s=calibration.output_overhead_s / count,
            stream_interval=stream_interval,
            handover_s=calibration.handover_s,
        )

    def take_in(self, at: float, prompt_tokens: int, *, core_works: bool) -> float:
        """When a request received ``at`` reaches the engine core."""
        start = max(at, self.free_at)
        self.free_at = start + self.per_request_s + self.per_prompt_token_s * prompt_tokens
        return self.free_at + (self.handover_s if core_works else 0.0)

    def unhurried(self, tokens: int) -> tuple[float, float]:
        """Seconds that the tokens of a step take, and their chunks, when no work is waiting: as in :meth:`send`."""
        return tokens * self.per_token_s, tokens / max(1.0, self.stream_interval) * self.per_chunk_s

    def send(self, at: float, tokens: int, edges: int, step_s: float) -> float:
        """When the outputs of a step that ended ``at`` have left: ``edges`` of the tokens are first or last ones.

        With a stream interval only each n-th token of a request makes a chunk; first and last tokens always do. When
        the server lags, tokens that wait for the same stream share a chunk, so that only the work per token stays.
        """
        lag = self.free_at - at
        start = self.free_at if lag > 0 else at
        merged = 1.0 + lag / step_s if lag > 0 and step_s > 0 else 1.0
        chunks = edges + (tokens - edges) / max(merged, self.stream_interval)
        self.free_at = start + tokens * self.per_token_s + chunks * self.per_chunk_s
        return self.free_at
