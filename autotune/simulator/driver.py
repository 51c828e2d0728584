"""Runs an engine core along a scaled clock and sends its tokens to the clients.

Deadlines are absolute engine times, so nothing accumulates: a late wake-up catches up with all steps that are due.
First and last tokens leave at their exact moment; tokens in between may wait a few milliseconds of wall time and share
a chunk, as they do in vLLM when its output collector lags (counts stay exact).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable

from autotune.base.clock import WallClock
from autotune.simulator.answers import Answer, Choice
from autotune.simulator.blocks import BlockKey
from autotune.simulator.core import EngineCore, OutOfMemoryError, StepOutput
from autotune.simulator.engine_model import EngineModel, oom_text
from autotune.simulator.faults import Faults
from autotune.simulator.http import Reply
from autotune.simulator.lag import LagMeter
from autotune.simulator.log import EngineLog
from autotune.simulator.openai_requests import Generation, RefusedError
from autotune.simulator.prometheus import EngineMetrics
from autotune.simulator.sequence import Sequence, State
from autotune.simulator.tokens import block_keys, natural_length

_CHUNKS_PER_SECOND = 4000
"""Above this many chunks a wall second, tokens are merged: the client shares the machine."""
_TIMER_SLACK_S = 60e-6
_LAG_WARNING_S = 0.05
_BACKLOG_BYTES = 256 * 1024
_STATS_INTERVAL_S = 10.0


class EngineDriver:
    """One running engine. ``on_death`` is called once when the engine core dies."""

    def __init__(
        self,
        engine: EngineModel,
        core: EngineCore,
        clock: WallClock,
        metrics: EngineMetrics,
        log: EngineLog,
        faults: Faults,
        *,
        merge_s: float,
        seed: int,
        on_death: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.core = core
        self.dead = False
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._faults = faults
        self._merge_s = merge_s if clock.scale > 1 else 0.0
        self._seed = seed
        self._on_death = on_death
        self._ids = itertools.count(1)
        self._answers: set[Answer] = set()
        self.quiet = asyncio.Event()
        """Set while no request is open."""
        self.quiet.set()
        self._streaming: dict[int, Choice] = {}
        self._visible_step = 0
        self._last_merge = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._finished_requests = 0
        self._hung = False
        self._lag = LagMeter()
        self._stats_at = clock.now()
        self._stats_tokens = (0, 0)
        self._loop = asyncio.get_running_loop()

    # -- requests

    def submit(self, generation: Generation, reply: Reply) -> None:
        """Take in a request; its arrival is now.

        Raises:
            RefusedError: the queue is full.
        """
        options = self.engine.options
        waiting = self.core.waiting
        queued_tokens = options.max_num_queued_tokens
        if (options.max_num_queued_reqs is not None and waiting >= options.max_num_queued_reqs) or (
            queued_tokens is not None and self.core.waiting_tokens >= queued_tokens
        ):
            self._metrics.rejections += 1
            raise RefusedError(503, "The server is overloaded: its request queue is full.", "ServiceUnavailableError")
        now = self._clock.now()
        self._advance(now)
        answer = Answer(self.engine, generation, reply)
        for prompt in generation.prompts:
            keys = block_keys(prompt, options.block_size) if options.prefix_caching else []
            for _ in range(generation.count):
                sequence = self._sequence(generation, prompt, keys)
                answer.add(prompt, sequence)
        answer.begin(lambda: self._drop(answer))
        self._answers.add(answer)
        self.quiet.clear()
        if not self._hung:
            for choice in answer.choices:
                self.core.submit(choice.sequence, now)
        self._arm()

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False while requests run."""
        self._advance(self._clock.now())
        if self._answers:
            return False
        self._metrics.lag_peak_seconds = 0.0
        return self.core.scheduler.reset_prefix_cache()

    def abort_all(self) -> None:
        """Drop every request, as a shutdown without a timeout does."""
        for answer in list(self._answers):
            self._drop(answer)
            answer.fail()

    def refresh(self) -> None:
        """Bring the engine and its metrics up to now."""
        self._advance(self._clock.now())
        self._metrics.lag_seconds = self._lag.mean() * self._clock.scale

    def _sequence(self, generation: Generation, prompt: list[int], keys: list[BlockKey]) -> Sequence:
        number = next(self._ids)
        target, reason = generation.max_tokens, "length"
        if not generation.ignore_eos:
            natural = natural_length(self._seed, sum(prompt) + len(prompt), generation.min_tokens)
            if natural < target:
                target, reason = natural, "stop"
        return Sequence(number, len(prompt), target, keys=keys, finish_reason=reason)

    def _close(self, answer: Answer) -> None:
        self._answers.discard(answer)
        if not self._answers:
            self.quiet.set()

    def _drop(self, answer: Answer) -> None:
        self._close(answer)
        for choice in answer.choices:
            self._streaming.pop(choice.sequence.id, None)
            if choice.sequence.state not in {State.FINISHED, State.ABORTED}:
                self.core.abort(choice.sequence)
                self._metrics.finished["abort"] += 1

    # -- the loop

    def _arm(self) -> None:
        due = self._next_due()
        if due is None:
            return
        at = due / self._clock.scale
        if self._timer is not None:
            if at >= self._timer_at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._wake)

    def _next_due(self) -> float | None:
        if self.dead or self._hung:
            return None
        edge = next((out.due for out in self.core.outbox if out.first_tokens or out.finished), None)
        if edge is None:
            edge = self.core.next_edge()
        if edge is None:
            return self.core.outbox[-1].due if self.core.outbox else None
        if self._streaming:
            moment = self.core.next_moment() or edge
            edge = min(edge, max(moment, self._last_merge + self._merge_gap() * self._clock.scale))
        return edge

    def _merge_gap(self) -> float:
        """Wall seconds between chunks of one stream."""
        if not self._merge_s:
            return 0.0
        return max(self._merge_s, len(self._streaming) / _CHUNKS_PER_SECOND)

    def _wake(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self._advance(self._clock.now())
        self._arm()

    def _advance(self, now: float) -> None:
        if self.dead or self._hung:
            return
        limit = now + _TIMER_SLACK_S * self._clock.scale
        try:
            self.core.advance(limit)
        except OutOfMemoryError as error:
            self._deliver(limit)
            self._die_out_of_memory(error)
            return
        self._deliver(limit)
        if now - self._stats_at >= _STATS_INTERVAL_S:
            self._log_stats(now)

    def _deliver(self, limit: float) -> None:
        outbox = self.core.outbox
        while outbox and outbox[0].due <= limit and not (self.dead or self._hung):
            output = outbox.popleft()
            self._visible_step = output.step
            self._metrics.observe_output(output)
            if output.first_tokens or output.finished:
                self._note_lag(output.due)
                self._deliver_edges(output)
        now = limit
        if self._streaming and now - self._last_merge >= self._merge_gap() * self._clock.scale:
            self._last_merge = now
            self._deliver_middle()

    def _deliver_edges(self, output: StepOutput) -> None:
        for sequence in output.first_tokens:
            choice = sequence.owner
            if (
                isinstance(choice, Choice)
                and choice.answer.generation.stream
                and sequence.target > 1
                and not choice.sent
            ):
                choice.answer.send_tokens(choice, 1)
                self._streaming[sequence.id] = choice
        for sequence in output.finished:
            choice = sequence.owner
            if not isinstance(choice, Choice):
                continue
            self._streaming.pop(sequence.id, None)
            answer = choice.answer
            answer.finish(choice)
            if not answer.open_choices:
                self._close(answer)
                self._finished_requests += 1
                self._apply_faults()

    def _deliver_middle(self) -> None:
        interval = self.engine.options.stream_interval
        step = self._visible_step
        for choice in self._streaming.values():
            sequence = choice.sequence
            if sequence.state is State.FINISHED:
                continue
            count = sequence.generated_at(step)
            if interval > 1:
                count -= (count - 1) % interval
            if count > choice.sent and choice.answer.reply.backlog < _BACKLOG_BYTES:
                choice.answer.send_tokens(choice, count)

    # -- lag and statistics

    def _note_lag(self, due: float) -> None:
        lag = max(0.0, time.monotonic() - due / self._clock.scale)
        self._lag.note(lag)
        peak = self._metrics.lag_peak_seconds / self._clock.scale
        if lag > _LAG_WARNING_S >= peak:
            self._log.core(
                "simulator.py:1",
                f"The simulated engine runs late by {lag * self._clock.scale:.2f} engine seconds: this machine "
                f"does not keep up with --time-scale {self._clock.scale:g}.",
                "WARNING",
            )
        self._metrics.lag_peak_seconds = max(peak, lag) * self._clock.scale

    def _log_stats(self, now: float) -> None:
        core = self.core
        seconds = now - self._stats_at
        if seconds / self._clock.scale < 1.0:
            return
        prompt, generated = core.prompt_tokens - self._stats_tokens[0], core.generated_tokens - self._stats_tokens[1]
        self._stats_at = now
        self._stats_tokens = (core.prompt_tokens, core.generated_tokens)
        scheduler = core.scheduler
        hits = 100 * scheduler.prefix_hits / max(1, scheduler.prefix_queries)
        self._log.api(
            "loggers.py:273",
            f"Engine 000: Avg prompt throughput: {prompt / seconds:.1f} tokens/s, Avg generation throughput: "
            f"{generated / seconds:.1f} tokens/s, Running: {len(scheduler.running)} reqs, "
            f"Waiting: {core.waiting} reqs, GPU KV cache usage: {100 * scheduler.kv_usage:.1f}%, "
            f"Prefix cache hit rate: {hits:.1f}%",
        )

    # -- faults and death

    def _apply_faults(self) -> None:
        faults, done = self._faults, self._finished_requests
        if faults.die_after is not None and done >= faults.die_after:
            os._exit(1)
        if faults.hang_after is not None and done >= faults.hang_after:
            self._hung = True
        elif faults.exit0_after is not None and done >= faults.exit0_after:
            self._die("RuntimeError: CUDA error: an illegal memory access was encountered")
        elif faults.oom_after is not None and done >= faults.oom_after:
            self._die_out_of_memory(OutOfMemoryError(self._clock.now(), 0.58, 0.37))
        if faults.stall_after is not None and done >= faults.stall_after:
            faults.stall_after = None
            self.core.pause(faults.stall)
        if faults.slow_after is not None and done >= faults.slow_after:
            self.core.slowdown = faults.slow

    def _die_out_of_memory(self, error: OutOfMemoryError) -> None:
        text = oom_text(error.wanted, error.free, self.engine.memory.total)
        self._die(f"torch.OutOfMemoryError: {text}")

    def lose_core(self) -> None:
        """The engine core's process is gone, without a word."""
        if self.dead:
            return
        self._log.api(
            "core_client.py:817", "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", "WARNING"
        )
        self._end_dead()

    def _die(self, error: str) -> None:
        self._log.core_traceback(
            "core.py:1310",
            "EngineCore encountered a fatal error.",
            (
                'File "vllm/v1/engine/core.py", line 1304, in run_engine_core',
                'File "vllm/v1/worker/gpu_worker.py", line 588, in execute_model',
                'File "vllm/v1/worker/gpu_model_runner.py", line 2620, in execute_model',
            ),
            error,
        )
        self._end_dead()

    def _end_dead(self) -> None:
        """What the API server does when its engine core is dead."""
        self.dead = True
        self._log.api("async_llm.py:708", "AsyncLLM output_handler failed.", "ERROR")
        self._log.api_traceback(
            ('File "vllm/v1/engine/async_llm.py", line 660, in output_handler',),
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for "
            "the root cause.",
        )
        for answer in list(self._answers):
            answer.fail()
            self._close(answer)
        self._streaming.clear()
        self._on_death()
