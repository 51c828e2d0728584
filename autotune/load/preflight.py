"""Looks at a server before load is sent to it, so that what is wrong becomes one clear line."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import httpx

from autotune.base.errors import EnvironmentProblemError, UsageError
from autotune.base.suggest import did_you_mean
from autotune.load._body import PATHS
from autotune.load.api import Target
from autotune.load.reader import error_text
from autotune.load.transport import StreamTransport
from autotune.spec import Endpoint

_TIMEOUT = 30.0
_VOCABULARIES = (30_000, 2_000, 250)
"""Sizes that are tried in turn; every id below the first that the server takes may be drawn."""


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    text: str
    document: object

    @property
    def reason(self) -> str:
        return error_text(self.document) if isinstance(self.document, dict) else self.text[:200]


async def inspect_server(base_url: str, model: str | None, endpoint: Endpoint, *, api_key: str | None = None) -> Target:
    """Find out how to send load: the model's name, whether prompts may be token ids, and below which number.

    Sends at most a handful of requests of one token.

    Raises:
        UsageError: no such model; the URL is none.
        EnvironmentProblemError: no connection, no permission, no such endpoint.
    """
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    transport = StreamTransport()
    async with httpx.AsyncClient(
        transport=transport, base_url=base_url, headers=headers, timeout=_TIMEOUT, trust_env=False
    ) as client:
        name = _choose_model(await _ask(client, "GET", "/v1/models"), model, base_url)
        target = Target(base_url, name, _VOCABULARIES[0], api_key)
        if endpoint is Endpoint.CHAT:
            message = {"role": "user", "content": "Hello"}
            _accept(await _try(client, endpoint, name, {"messages": [message]}), endpoint, base_url)
            return target
        for size in _VOCABULARIES:
            reply = await _try(client, endpoint, name, {"prompt": [size - 1, size - 2, size - 3]})
            if reply.status == 200:
                return replace(target, vocabulary=size)
            if reply.status not in (400, 422):
                break
        _accept(await _try(client, endpoint, name, {"prompt": "Hello"}), endpoint, base_url)
        return replace(target, takes_token_ids=False)


async def _ask(client: httpx.AsyncClient, method: str, path: str, body: object = None) -> _Reply:
    try:
        response = await client.request(method, path, json=body)
    except httpx.ConnectError as error:
        raise EnvironmentProblemError(f"{error}.", "Is the server running, and is --url right?") from error
    except httpx.TimeoutException as error:
        raise EnvironmentProblemError(
            f"{client.base_url}: no answer within {_TIMEOUT:.0f} s.", "Is the server still starting, or stuck?"
        ) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(f"--url: {error}.", "Write e.g. http://127.0.0.1:8000.") from error
    except httpx.HTTPError as error:
        raise EnvironmentProblemError(f"{client.base_url}: {error}.", "Does an HTTP server listen there?") from error
    try:
        document = json.loads(response.content)
    except ValueError:
        document = None
    reply = _Reply(response.status_code, " ".join(response.text.split()), document)
    if reply.status in (401, 403):
        raise EnvironmentProblemError(
            f"{client.base_url}: HTTP {reply.status}: {reply.reason}.",
            "Name the environment variable that holds the key with --api-key-env.",
        )
    return reply


async def _try(client: httpx.AsyncClient, endpoint: Endpoint, model: str, body: dict[str, object]) -> _Reply:
    return await _ask(client, "POST", PATHS[endpoint], {"model": model, "max_tokens": 1, "temperature": 0, **body})


def _choose_model(reply: _Reply, model: str | None, base_url: str) -> str:
    data = reply.document.get("data") if isinstance(reply.document, dict) else None
    names = [str(entry["id"]) for entry in data if isinstance(entry, dict) and "id" in entry] if data else []
    if model is None:
        if len(names) == 1:
            return names[0]
        offered = f" It offers {', '.join(names)}." if names else ""
        raise UsageError(f"--model is missing, and {base_url} does not offer exactly one.", f"Name it.{offered}")
    if names and model not in names:
        raise UsageError(f"{base_url} has no model '{model}'.", did_you_mean(model, names))
    return model


def _accept(reply: _Reply, endpoint: Endpoint, base_url: str) -> None:
    if reply.status == 200:
        return
    message = f"{base_url}{PATHS[endpoint]}: HTTP {reply.status}: {reply.reason.rstrip('.')}."
    if reply.status == 404:
        other = Endpoint.COMPLETIONS if endpoint is Endpoint.CHAT else Endpoint.CHAT
        raise EnvironmentProblemError(message, f"Try --endpoint {other}.")
    raise EnvironmentProblemError(message, "See the server's log.")
