"""Bodies of ``/v1/completions`` and ``/v1/chat/completions``: what they ask for, or why they are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.simulator.tokens import encode

_CHAT_TOKENS_PER_MESSAGE = 4
_CHAT_TOKENS_OF_PROMPT = 3
_MOST_LOGPROBS = 20


class RefusedError(Exception):
    """A request that vLLM answers with an error body."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        self.status = status
        self.kind = kind
        self.param = param
        super().__init__(message)

    def body(self) -> dict[str, object]:
        """The error body in vLLM's form."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True, slots=True)
class Generation:
    """What is to be generated: ``count`` answers to each prompt."""

    chat: bool
    model: str
    prompts: tuple[list[int], ...]
    count: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    logprobs: int | None
    """How many tokens of each position are told with their log-probabilities; None: none."""
    tokens_as_ids: bool
    """Whether those tokens are written as ``token_id:7``."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the served engine allows."""

    served_names: tuple[str, ...]
    vocabulary: int
    max_model_len: int


def parse_generation(body: bytes, limits: Limits, *, chat: bool) -> Generation:
    """Read a request body.

    Raises:
        RefusedError: with vLLM's status and message.
    """
    fields = _read_object(body)
    model = _checked_model(fields, limits)
    prompts = (_chat_prompt(fields, limits),) if chat else _prompts(fields, limits)
    longest = max(map(len, prompts))
    if longest >= limits.max_model_len:
        raise RefusedError(
            400,
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your request has "
            f"{longest} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    room = limits.max_model_len - longest
    asked = fields.get("max_completion_tokens") if chat else None
    asked = fields.get("max_tokens", asked) if asked is None else asked
    max_tokens = _integer(asked, "max_tokens", (room if chat else min(16, room)), low=1)
    if max_tokens > limits.max_model_len:
        raise RefusedError(
            400,
            f"max_tokens={max_tokens} cannot be greater than max_model_len=max_total_tokens={limits.max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})",
            param="max_tokens",
        )
    if max_tokens > room:
        raise RefusedError(
            400,
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains {longest} input tokens, for a total of "
            f"{max_tokens + longest} tokens. Please reduce the length of the input prompt or the number of requested "
            "output tokens.",
            param="input_tokens",
        )
    min_tokens = _integer(fields.get("min_tokens"), "min_tokens", 0, low=0)
    if min_tokens > max_tokens:
        raise RefusedError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
            param="min_tokens",
        )
    _check_sampling(fields)
    options = fields.get("stream_options")
    stream = fields.get("stream") is True
    if options is not None and not stream:
        raise RefusedError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    options = options if isinstance(options, dict) else {}
    return Generation(
        chat=chat,
        model=model,
        prompts=prompts,
        count=_integer(fields.get("n"), "n", 1, low=1),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=fields.get("ignore_eos") is True,
        stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        echo=fields.get("echo") is True and not chat,
        logprobs=None if chat else _logprobs(fields.get("logprobs")),
        tokens_as_ids=fields.get("return_tokens_as_token_ids") is True,
    )


def parse_text(body: bytes, limits: Limits) -> list[int]:
    """Token ids of a ``/tokenize`` body.

    Raises:
        RefusedError: neither a prompt nor messages.
    """
    fields = _read_object(body)
    if isinstance(fields.get("prompt"), str):
        return encode(str(fields["prompt"]), limits.vocabulary)
    return _chat_prompt(fields, limits)


def _read_object(body: bytes) -> Mapping[str, object]:
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise RefusedError(
            400, f"[{{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error: {error}'}}]"
        ) from error
    if not isinstance(fields, dict):
        raise RefusedError(400, "1 validation error:\n  {'type': 'model_attributes_type', 'loc': ('body',)}")
    return fields


def _checked_model(fields: Mapping[str, object], limits: Limits) -> str:
    model = fields.get("model")
    if model is None or model == "":
        return limits.served_names[0]
    if model not in limits.served_names:
        raise RefusedError(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    return str(model)


def _prompts(fields: Mapping[str, object], limits: Limits) -> tuple[list[int], ...]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return (encode(prompt, limits.vocabulary),)
    if not isinstance(prompt, list) or not prompt:
        raise RefusedError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    first = prompt[0]
    if isinstance(first, str):
        return tuple(encode(str(part), limits.vocabulary) for part in prompt)
    if isinstance(first, list):
        return tuple(_token_ids(part, limits) for part in prompt)
    return (_token_ids(prompt, limits),)


def _token_ids(ids: object, limits: Limits) -> list[int]:
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise RefusedError(400, "prompt must be a string, array of strings, array of tokens, or array of token arrays")
    if max(ids) >= limits.vocabulary or min(ids) < 0:
        raise RefusedError(400, f"Token id {max(ids)} is out of vocabulary", param="prompt")
    return ids


def _chat_prompt(fields: Mapping[str, object], limits: Limits) -> list[int]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(
            400, "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages')}", param="messages"
        )
    tokens: list[int] = []
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise RefusedError(400, "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages', 'role')}")
        tokens += [1] * _CHAT_TOKENS_PER_MESSAGE + encode(_content_text(message.get("content")), limits.vocabulary)
    return tokens + [1] * _CHAT_TOKENS_OF_PROMPT


def _content_text(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")


def _integer(value: object, name: str, default: int, *, low: int) -> int:
    if value is None:
        return default
    if type(value) is not int:
        raise RefusedError(400, f"Input should be a valid integer: {name}", param=name)
    if value < low:
        raise RefusedError(400, f"{name} must be at least {low}, got {value}.", param=name)
    return value


def _logprobs(value: object) -> int | None:
    count = None if value is None else _integer(value, "logprobs", 0, low=0)
    if count is not None and count > _MOST_LOGPROBS:
        raise RefusedError(
            400,
            f"Requested sample logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS}",
            param="logprobs",
        )
    return count


def _check_sampling(fields: Mapping[str, object]) -> None:
    temperature = fields.get("temperature")
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise RefusedError(400, f"temperature must be non-negative, got {float(temperature)}.", param="temperature")
    top_p = fields.get("top_p")
    if isinstance(top_p, (int, float)) and not 0 < top_p <= 1:
        raise RefusedError(400, f"top_p must be in (0, 1], got {float(top_p)}.", param="top_p")
