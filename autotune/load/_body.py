"""Request bodies: what the worker puts on the wire for one turn."""

from __future__ import annotations

import json
import random
from array import array
from typing import Any

from autotune.load._wire import Prompt, Turn
from autotune.spec import Endpoint

PATHS = {Endpoint.COMPLETIONS: "/v1/completions", Endpoint.CHAT: "/v1/chat/completions"}

# Common words that nearly every BPE vocabulary holds as one token with the space in front.
_WORD_LIST = """
    time year people way day man thing woman life child world school state family student group country
    problem hand part place case week company system program question work government number night point home
    water room mother area money story fact month lot right study book eye job word business issue side kind
    head house service friend father power hour game line end member law car city community name president team
    minute idea body information back parent face others level office door health person art war history party
    result change morning reason research girl guy moment air teacher force education foot boy age policy music
    process mind price sense nation plan college interest death course someone experience behind reach local kill
    six remain effect use yeah suggest class control field development role effort rate heart drug show leader
    light voice wife whole police matter return free military difficult report possible early white small large
    green red blue black long short high low new old great little young different important few public bad same
    able
"""
_WORDS = tuple(_WORD_LIST.split())


def token_ids(spans: list[list[int]], vocabulary: int) -> list[int]:
    """Token ids of ``[seed, count]`` spans, drawn away from both ends of the vocabulary.

    The ends hold the special tokens, which may end an answer or stand for an image.
    """
    low = min(vocabulary // 100, 1000)
    width = max(1, vocabulary - vocabulary // 50 - low)
    ids: list[int] = []
    for seed, count in spans:
        drawn = array("I", random.Random(seed).randbytes(4 * count))
        ids += [low + value % width for value in drawn]
    return ids


def words(spans: list[list[int]]) -> str:
    """Text of about as many tokens as the spans ask for."""
    size = len(_WORDS)
    return " ".join(_WORDS[byte % size] for seed, count in spans for byte in random.Random(seed).randbytes(count))


def prompt_text(prompt: Prompt) -> str:
    """A prompt as plain text."""
    if "words" in prompt:
        return words(prompt["words"])
    if "messages" in prompt:
        return "\n\n".join(message["content"] for message in prompt["messages"])
    return prompt.get("text", "")


def request_body(
    turn: Turn,
    history: list[dict[str, str]],
    *,
    endpoint: Endpoint,
    model: str,
    vocabulary: int,
    ignore_eos: bool,
) -> bytes:
    """The JSON body of one turn after ``history``."""
    document: dict[str, Any] = {
        "model": model,
        "max_tokens": turn["output"],
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        document["ignore_eos"] = True
    prompt = turn["prompt"]
    if "tokens" in prompt and endpoint is Endpoint.COMPLETIONS and not history:
        # A list of ints looks the same in Python and in JSON, and Python writes it three times faster.
        head = json.dumps(document, separators=(",", ":"))
        return f'{head[:-1]},"prompt":{token_ids(prompt["tokens"], vocabulary)}}}'.encode()
    if endpoint is Endpoint.CHAT:
        document["messages"] = [*history, *user_messages(prompt)]
    else:
        document["prompt"] = "\n\n".join([*(message["content"] for message in history), prompt_text(prompt)])
    return json.dumps(document, separators=(",", ":")).encode()


def user_messages(prompt: Prompt) -> list[dict[str, str]]:
    """A prompt as chat messages."""
    if "messages" in prompt:
        return prompt["messages"]
    return [{"role": "user", "content": prompt_text(prompt)}]
