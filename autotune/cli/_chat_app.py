"""The Chainlit page of ``autotune chat``; Chainlit runs this file."""

from __future__ import annotations

import os

import chainlit as cl  # type: ignore[import-not-found,unused-ignore]
import httpx

from autotune.cli._chat_stream import API_KEY, MAX_TOKENS, MODEL, URL, Message, describe_error, piece_of

_TIMEOUT = httpx.Timeout(10.0, read=300.0)
_HISTORY = "history"


async def begin() -> None:
    """A new conversation."""
    cl.user_session.set(_HISTORY, [])


async def answer(question: cl.Message) -> None:
    """Stream the answer to a question."""
    history: list[Message] = cl.user_session.get(_HISTORY) or []
    history.append({"role": "user", "content": str(question.content)})
    reply = cl.Message(content="")
    key = os.environ.get(API_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": os.environ[MODEL], "messages": history, "stream": True, "max_tokens": int(os.environ[MAX_TOKENS])}
    text = ""
    try:
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT, headers=headers, trust_env=False) as client,
            client.stream("POST", f"{os.environ[URL]}/v1/chat/completions", json=body) as response,
        ):
            if response.status_code != httpx.codes.OK:
                await reply.stream_token(describe_error(response.status_code, await response.aread()))
            else:
                async for line in response.aiter_lines():
                    piece = piece_of(line)
                    await reply.stream_token(piece.text or piece.error)
                    text += piece.answer
    except httpx.HTTPError as error:
        await reply.stream_token(f"The engine does not answer ({type(error).__name__}).")
    if text:
        history.append({"role": "assistant", "content": text})
    else:
        history.pop()
    await reply.update()


cl.on_chat_start(begin)
cl.on_message(answer)
