"""The engine core's scheduler as a pure state machine: no clock, no I/O.

Each :meth:`Scheduler.step` decides one batch as vLLM's V1 scheduler does: running sequences first (one token for each
that decodes, a chunk for each that prefills), then waiting ones in order of arrival, within the token budget, the
sequence limit and the KV blocks; when blocks run out the latest running sequence is preempted and recomputed later.

Decoding sequences cost nothing per step: all of them advance by one token in each step, so their summed context, the
steps in which they need a block (by residue of the block size) and the steps in which they end (by step number) are
kept as counts. :meth:`Scheduler.quiet_steps` tells how many steps can be skipped at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from autotune.simulator.blocks import BlockPool
from autotune.simulator.options import EngineOptions
from autotune.simulator.sequence import Sequence, State
from autotune.simulator.step_plan import StepPlan


class Scheduler:
    """Waiting and running sequences of one engine core."""

    def __init__(
        self,
        options: EngineOptions,
        blocks: int,
        max_model_len: int,
        fixed_blocks: Callable[[int], int] = lambda tokens: 0,
    ) -> None:
        """``fixed_blocks``: what a sequence of so many tokens holds besides the blocks that grow with it."""
        self.options = options
        self.block_size = options.block_size
        self.max_model_len = max_model_len
        self.pool = BlockPool(blocks, caching=options.prefix_caching)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        """In order of admission."""
        self.steps = 0
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.decoding = 0
        self._decode_context = 0
        self._residues = [0] * options.block_size
        self._ends: dict[int, list[Sequence]] = {}
        self._prefilling: dict[int, Sequence] = {}
        self._fixed_blocks = fixed_blocks
        self._watermark = int(options.watermark * blocks)
        self._limit = min(options.max_num_seqs, options.max_num_active_seqs, options.max_num_scheduled_tokens)
        self._next_end: int | None = None

    # -- what happens from outside

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            ValueError: it cannot fit in the KV cache even alone; vLLM refuses such a request before it gets here.
        """
        longest = sequence.prompt_tokens + sequence.target
        if self._blocks_for(longest - 1) + self._fixed_blocks(longest) > self.pool.total:
            raise ValueError(f"a sequence of {longest} tokens needs more KV cache than there is")
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence wherever it is."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.PREFILL:
            del self._prefilling[sequence.id]
            del self.running[sequence.id]
            self._release(sequence)
        elif sequence.state is State.DECODE:
            self._leave_decode(sequence)
            del self.running[sequence.id]
            self._release(sequence)
        else:
            return
        sequence.state = State.ABORTED

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while sequences run."""
        return self.pool.reset()

    @property
    def has_work(self) -> bool:
        """True when a step would do something."""
        return bool(self.running or self.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return self.pool.used / self.pool.total if self.pool.total else 0.0

    @property
    def prefilling(self) -> int:
        """Running sequences whose prompt is not computed yet."""
        return len(self._prefilling)

    # -- one step

    def step(self) -> StepPlan:
        """Decide and commit the next batch."""
        self.steps += 1
        plan = StepPlan(self.steps)
        self._allocate_decodes(plan)
        budget = self.options.max_num_scheduled_tokens - self.decoding
        plan.decodes = self.decoding
        if self._prefilling:
            budget = self._continue_prefills(plan, budget)
        if self.waiting and not plan.preempted and budget > 0 and len(self.running) < self._limit:
            self._admit(plan, budget)
        self._commit(plan)
        return plan

    def quiet_steps(self) -> int:
        """Steps that would only decode, end nothing and preempt nothing; 0 when the next step may do more."""
        if not self.decoding or self._prefilling:
            return 0
        if self.waiting and len(self.running) < self._limit and self._fits_now(self.waiting[0]):
            return 0
        end = self._next_end_step()
        quiet = end - self.steps - 1
        if quiet <= 0:
            return 0
        per_cycle = self.decoding
        spare = self.pool.free
        if per_cycle * (quiet // self.block_size + 1) <= spare:
            return quiet
        return min(quiet, spare // per_cycle * self.block_size)

    def skip_quiet(self, count: int) -> None:
        """Commit ``count`` steps of those that :meth:`quiet_steps` allowed."""
        size = self.block_size
        whole, rest = divmod(count, size)
        blocks = whole * self.decoding
        for offset in range(1, rest + 1):
            blocks += self._residues[(self.steps + offset) % size]
        taken = self.pool.take(blocks)
        assert taken, "quiet steps promised enough blocks"
        self.steps += count
        self._decode_context += count * self.decoding

    @property
    def decode_context(self) -> int:
        """Summed KV length that the next step's decodes read."""
        return self._decode_context + self.decoding

    # -- parts of a step

    def _allocate_decodes(self, plan: StepPlan) -> None:
        slot = plan.number % self.block_size
        while self._residues[slot] > self.pool.free:
            self._preempt_last(plan, allocated=False)
        if self._residues[slot]:
            self.pool.take(self._residues[slot])

    def _continue_prefills(self, plan: StepPlan, budget: int) -> int:
        for sequence in list(self._prefilling.values()):
            if budget <= 0:
                break
            if sequence.state is not State.PREFILL:
                continue
            tokens = self._chunk(sequence.total_to_prefill - sequence.computed, budget)
            while not self._grow(sequence, sequence.computed + tokens):
                victim = self._preempt_last(plan, allocated=True)
                plan.decodes = self.decoding
                if victim is sequence:
                    return budget
            self._run_chunk(plan, sequence, tokens)
            budget -= tokens
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        options = self.options
        if options.prefill_schedule_interval > 1 and self.decoding and plan.number % options.prefill_schedule_interval:
            return
        while self.waiting and budget > 0 and len(self.running) < self._limit:
            sequence = self.waiting[0]
            hit = self._cached_blocks(sequence)
            cached = hit * self.block_size
            rest = sequence.total_to_prefill - cached
            if not options.chunked_prefill and rest > budget and self.running:
                break
            tokens = self._chunk(rest, budget)
            keys = sequence.keys[:hit]
            wanted = sequence.total_to_prefill if options.reserve_full_prompt else cached + tokens
            fixed = self._fixed_blocks(sequence.prompt_tokens + sequence.target)
            needed = self._blocks_for(wanted) - hit + self.pool.idle_among(keys) + self._reserved(sequence) + fixed
            if needed + self._watermark > self.pool.free and (self.running or needed > self.pool.free):
                break
            self.waiting.popleft()
            self.pool.share(keys)
            sequence.keyed = list(keys)
            sequence.plain_blocks = 0
            sequence.fixed_blocks = fixed
            self.pool.take(fixed)
            sequence.computed = cached
            if not sequence.preemptions:
                sequence.cached_tokens = cached
                self.prefix_queries += sequence.prompt_tokens
                self.prefix_hits += cached
            sequence.state = State.PREFILL
            self.running[sequence.id] = sequence
            self._prefilling[sequence.id] = sequence
            grown = self._grow(sequence, cached + tokens)
            assert grown, "admission checked the blocks"
            plan.scheduled.append(sequence)
            self._run_chunk(plan, sequence, tokens)
            budget -= tokens

    def _reserved(self, sequence: Sequence) -> int:
        """Blocks that prompts still in progress will need: they were admitted on the promise to get them."""
        if not self.options.reserve_full_prompt:
            return 0
        return sum(
            self._blocks_for(other.total_to_prefill) - len(other.keyed) - other.plain_blocks
            for other in self._prefilling.values()
            if other is not sequence
        )

    def _run_chunk(self, plan: StepPlan, sequence: Sequence, tokens: int) -> None:
        start = sequence.computed
        plan.chunk_tokens += tokens
        plan.chunk_pairs += tokens * (start + 0.5 * tokens)
        plan.chunk_context += start
        sequence.computed = start + tokens
        self._register(sequence, start, sequence.computed)
        if sequence.computed == sequence.total_to_prefill:
            plan.first_tokens.append(sequence)

    def _commit(self, plan: StepPlan) -> None:
        plan.decode_context = self.decode_context if plan.decodes else 0
        plan.sampled = plan.decodes + len(plan.first_tokens)
        self._decode_context += self.decoding
        ended = self._ends.pop(plan.number, None)
        if ended is not None:
            self._next_end = None
            for sequence in ended:
                self._leave_decode(sequence)
                self._finish(plan, sequence)
        for sequence in plan.first_tokens:
            del self._prefilling[sequence.id]
            sequence.generated += 1
            if sequence.generated >= sequence.target:
                self._finish(plan, sequence)
            else:
                self._enter_decode(sequence)

    def _finish(self, plan: StepPlan, sequence: Sequence) -> None:
        sequence.generated = sequence.target
        sequence.state = State.FINISHED
        del self.running[sequence.id]
        self._release(sequence)
        plan.finished.append(sequence)

    # -- decoding as counts

    def _enter_decode(self, sequence: Sequence) -> None:
        sequence.state = State.DECODE
        sequence.anchor_step = self.steps
        held = sequence.computed
        self.decoding += 1
        self._decode_context += held
        self._residues[(self.steps + 1 - held) % self.block_size] += 1
        end = self.steps + sequence.target - sequence.generated
        self._ends.setdefault(end, []).append(sequence)
        if self._next_end is not None and end < self._next_end:
            self._next_end = end

    def _leave_decode(self, sequence: Sequence) -> None:
        """Store the progress of a decoding sequence and take it out of the counts."""
        anchor = sequence.anchor_step
        held_then = sequence.computed
        end = anchor + sequence.target - sequence.generated
        sequence.generated += self.steps - anchor
        sequence.computed = held_then + self.steps - anchor
        self.decoding -= 1
        self._decode_context -= sequence.computed
        self._residues[(anchor + 1 - held_then) % self.block_size] -= 1
        listed = self._ends.get(end)
        if listed is not None:
            listed.remove(sequence)
            if not listed:
                del self._ends[end]
                self._next_end = None
        prompt_blocks = len(sequence.keyed) + sequence.plain_blocks
        sequence.plain_blocks += self._blocks_for(sequence.computed) - prompt_blocks

    def _next_end_step(self) -> int:
        if self._next_end is None:
            self._next_end = min(self._ends)
        return self._next_end

    def _preempt_last(self, plan: StepPlan, *, allocated: bool) -> Sequence:
        """Put the latest running sequence back to the front of the queue; its full blocks stay in the prefix cache.

        ``allocated``: the decodes of the step being planned have their blocks already.
        """
        _, sequence = self.running.popitem()
        if sequence.state is State.DECODE:
            self.steps -= 1  # the step being planned has not produced its token
            self._leave_decode(sequence)
            self.steps += 1
            if allocated and sequence.computed % self.block_size == 0:
                sequence.plain_blocks += 1
        else:
            del self._prefilling[sequence.id]
        self._name_generated_blocks(sequence)
        self._release(sequence)
        sequence.state = State.WAITING
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)
        plan.preempted.append(sequence)
        return sequence

    # -- blocks

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _chunk(self, rest: int, budget: int) -> int:
        threshold = self.options.long_prefill_token_threshold
        if 0 < threshold < rest:
            rest = threshold
        return min(rest, budget)

    def _cached_blocks(self, sequence: Sequence) -> int:
        """Leading blocks found in the cache; the last token is always computed, so never the whole prompt."""
        if not sequence.keys:
            return 0
        limit = (sequence.total_to_prefill - 1) // self.block_size
        return self.pool.cached_prefix(sequence.keys[:limit])

    def _fits_now(self, sequence: Sequence) -> bool:
        wanted = sequence.total_to_prefill if self.options.reserve_full_prompt else 1
        hit = self._cached_blocks(sequence)
        fixed = self._fixed_blocks(sequence.prompt_tokens + sequence.target)
        needed = self._blocks_for(wanted) - hit + self.pool.idle_among(sequence.keys[:hit]) + fixed
        return needed + self._watermark <= self.pool.free

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give a prefilling sequence blocks for so many tokens."""
        missing = self._blocks_for(tokens) - len(sequence.keyed) - sequence.plain_blocks
        if missing <= 0:
            return True
        if not self.pool.take(missing):
            return False
        sequence.plain_blocks += missing
        return True

    def _register(self, sequence: Sequence, start: int, end: int) -> None:
        """Give keys to the blocks that a chunk filled, as long as every block before has one."""
        if not self.options.prefix_caching:
            return
        keys = sequence.keys
        for position in range(start // self.block_size, min(end // self.block_size, len(keys))):
            if position != len(sequence.keyed) or not self.pool.register(keys[position]):
                return
            sequence.keyed.append(keys[position])
            sequence.plain_blocks -= 1

    def _name_generated_blocks(self, sequence: Sequence) -> None:
        """Key the full blocks past the known keys, so that a preempted sequence can find what it had computed."""
        if not self.options.prefix_caching:
            return
        full = sequence.computed // self.block_size
        if full > len(sequence.keys):
            sequence.keys = [*sequence.keys, *((sequence.id, at) for at in range(len(sequence.keys), full))]
        self._register(sequence, len(sequence.keyed) * self.block_size, full * self.block_size)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.keyed, sequence.plain_blocks + sequence.fixed_blocks)
        sequence.keyed = []
        sequence.plain_blocks = 0
        sequence.fixed_blocks = 0
