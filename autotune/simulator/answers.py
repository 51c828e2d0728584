"""One HTTP request's answer: its sequences, and the bytes in which their tokens leave."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Callable

from autotune.simulator.engine_model import EngineModel
from autotune.simulator.greedy import TopTokens, greedy_answer
from autotune.simulator.http import Reply
from autotune.simulator.openai_requests import Generation
from autotune.simulator.sequence import Sequence
from autotune.simulator.tokens import answer_text

_DONE = b"data: [DONE]\n\n"
_DEAD_MESSAGE = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_NULLS = b',"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":null}]}\n\n'


class Choice:
    """One answer of a request, and how much of it has been sent."""

    __slots__ = ("answer", "index", "prefix", "prompt", "sent", "sequence")

    def __init__(self, answer: Answer, index: int, prompt: list[int], sequence: Sequence) -> None:
        self.answer = answer
        self.index = index
        self.prompt = prompt
        self.sequence = sequence
        self.sent = 0
        self.prefix = answer.chunk_prefix(index)


class Answer:
    """All choices of one request. ``on_drop`` aborts its sequences when the client goes away."""

    def __init__(self, engine: EngineModel, generation: Generation, reply: Reply) -> None:
        self._engine = engine
        self.generation = generation
        self.reply = reply
        self.choices: list[Choice] = []
        self.open_choices = 0
        kind = "chatcmpl" if generation.chat else "cmpl"
        self._object = "chat.completion.chunk" if generation.chat else "text_completion"
        self._id = f"{kind}-{uuid.uuid4().hex[:16]}"
        self._created = int(time.time())
        self._head = (
            f'{{"id":"{self._id}","object":"{self._object}","created":{self._created},'
            f'"model":{json.dumps(generation.model)},"choices":['
        )

    def add(self, prompt: list[int], sequence: Sequence) -> Choice:
        """Add a choice: the sequence that answers a prompt."""
        choice = Choice(self, len(self.choices), prompt, sequence)
        sequence.owner = choice
        self.choices.append(choice)
        self.open_choices += 1
        return choice

    def begin(self, on_disconnect: Callable[[], None]) -> None:
        """Start the stream, if it is one."""
        self.reply.on_disconnect = on_disconnect
        if self.generation.stream:
            self.reply.start_stream()

    def chunk_prefix(self, index: int) -> bytes:
        """Bytes of a chunk up to its text."""
        key = '"delta":{"content":"' if self.generation.chat else '"text":"'
        return f'data: {self._head}{{"index":{index},{key}'.encode()

    def send_tokens(self, choice: Choice, count: int) -> None:
        """Stream tokens up to the ``count``-th, all in one chunk."""
        payload = self._chunk(choice, count)
        if choice.sent == 0 and self.generation.chat:
            payload = self._role_chunk(choice) + payload
        choice.sent = count
        self.reply.send_part(payload)

    def finish(self, choice: Choice) -> None:
        """Send the rest of a choice; the answer ends with its last one."""
        self.open_choices -= 1
        if self.generation.stream:
            self._finish_stream(choice)
        elif not self.open_choices:
            self.reply.send_json(200, self._whole())

    def fail(self, status: int = 500) -> None:
        """The engine died: an error chunk in a stream, an error body otherwise."""
        if self.reply.done:
            return
        error = {"error": {"message": _DEAD_MESSAGE, "type": "InternalServerError", "param": None, "code": status}}
        if self.generation.stream:
            self.reply.end_stream(f"data: {json.dumps(error)}\n\n".encode() + _DONE)
        else:
            self.reply.send_json(status, error)

    def _finish_stream(self, choice: Choice) -> None:
        sequence = choice.sequence
        role = self._role_chunk(choice) if choice.sent == 0 and self.generation.chat else b""
        payload = role + self._chunk(choice, sequence.target, sequence.finish_reason)
        choice.sent = sequence.target
        if self.open_choices:
            self.reply.send_part(payload)
            return
        if self.generation.include_usage:
            usage = json.dumps(self._usage(), separators=(",", ":"))
            payload += f'data: {self._head}],"usage":{usage}}}\n\n'.encode()
        self.reply.end_stream(payload + _DONE)

    def _chunk(self, choice: Choice, count: int, finish_reason: str | None = None) -> bytes:
        text = answer_text(choice.sent, count).encode()
        close = b'"}' if self.generation.chat else b'"'
        if finish_reason is None and not self.generation.continuous_usage:
            return choice.prefix + text + close + _NULLS
        reason = f'"{finish_reason}"' if finish_reason else "null"
        usage = ""
        if self.generation.continuous_usage:
            usage = f',"usage":{json.dumps(self._usage({choice.index: count}), separators=(",", ":"))}'
        tail = f',"logprobs":null,"finish_reason":{reason},"stop_reason":null,"token_ids":null}}]{usage}}}\n\n'
        return choice.prefix + text + close + tail.encode()

    def _role_chunk(self, choice: Choice) -> bytes:
        return (
            f'data: {self._head}{{"index":{choice.index},"delta":{{"role":"assistant","content":""}},'
            '"logprobs":null,"finish_reason":null}]}\n\n'
        ).encode()

    def _usage(self, counts: dict[int, int] | None = None) -> dict[str, object]:
        prompts = sum(len(prompt) for prompt in self.generation.prompts)
        completion = sum((counts or {}).get(choice.index, choice.sent) for choice in self.choices)
        return {
            "prompt_tokens": prompts,
            "total_tokens": prompts + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
        }

    def _whole(self) -> dict[str, object]:
        for choice in self.choices:
            choice.sent = choice.sequence.target
        return {
            "id": self._id,
            "object": "chat.completion" if self.generation.chat else "text_completion",
            "created": self._created,
            "model": self.generation.model,
            "choices": [self._whole_choice(choice) for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self._usage(),
            "prompt_logprobs": None,
            "kv_transfer_params": None,
        }

    def _whole_choice(self, choice: Choice) -> dict[str, object]:
        text = answer_text(0, choice.sequence.target)
        common: dict[str, object] = {
            "index": choice.index,
            "logprobs": self._logprobs(choice),
            "finish_reason": choice.sequence.finish_reason,
            "stop_reason": None,
            "token_ids": None,
        }
        if self.generation.chat:
            message: dict[str, object] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "tool_calls": [],
                "reasoning": None,
            }
            return common | {"message": message}
        return common | {"text": text, "prompt_token_ids": None}

    def _logprobs(self, choice: Choice) -> dict[str, object] | None:
        wanted = self.generation.logprobs
        if wanted is None:
            return None
        options, vocabulary = self._engine.options, self._engine.model.vocabulary
        positions = greedy_answer(
            choice.prompt,
            choice.sequence.target,
            vocabulary,
            quantization=options.quantization,
            kv_dtype=options.kv_dtype,
        )
        tokens = [self._token(next(iter(top)), place) for place, top in enumerate(positions)]
        return {
            "text_offset": list(itertools.accumulate((len(token) for token in tokens[:-1]), initial=0)),
            "token_logprobs": [next(iter(top.values())) for top in positions],
            "tokens": tokens,
            "top_logprobs": [self._top(top, place, wanted) for place, top in enumerate(positions)],
        }

    def _top(self, top: TopTokens, place: int, wanted: int) -> dict[str, float]:
        """As many as were asked for, and the chosen one in any case."""
        named = {self._token(token, place): logprob for token, logprob in top.items()}
        return dict(itertools.islice(named.items(), max(1, wanted)))

    def _token(self, token: int, place: int) -> str:
        return f"token_id:{token}" if self.generation.tokens_as_ids else f"{answer_text(place, place + 1)}#{token}"
