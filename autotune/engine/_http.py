"""The few HTTP questions that a supervisor asks of its own engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

_TIMEOUT_S = 5.0
_LONG_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineHttp:
    """Asks one engine on the loopback interface; proxies of the environment are not used."""

    url: str
    timeout: float = _TIMEOUT_S

    async def health(self) -> int | None:
        """Status of ``/health``; None while nobody answers."""
        response = await self._request("GET", "/health")
        return None if response is None else response.status_code

    async def models(self) -> list[str] | None:
        """Names that ``/v1/models`` lists; None when the answer is none of vLLM's."""
        document = _json(await self._request("GET", "/v1/models"))
        entries = document.get("data") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            return None
        return [str(entry.get("id")) for entry in entries if isinstance(entry, dict)]

    async def server_info(self) -> dict[str, Any]:
        """The configuration that the engine resolved (development mode); empty where it does not tell."""
        # It looks at the whole system, too, which takes seconds.
        response = await self._request("GET", "/server_info", {"config_format": "json"}, patience=_LONG_TIMEOUT_S)
        document = _json(response)
        return document if isinstance(document, dict) else {}

    async def metrics(self) -> str:
        """The text of ``/metrics``, or an empty string."""
        response = await self._request("GET", "/metrics")
        return response.text if response is not None and response.status_code == httpx.codes.OK else ""

    async def reset_prefix_cache(self) -> bool | None:
        """True when emptied, False when refused for now, None when the engine has no such endpoint."""
        response = await self._request("POST", "/reset_prefix_cache")
        if response is None or response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.status_code != httpx.codes.OK:
            return False
        document = _json(response)
        return bool(document.get("success", True)) if isinstance(document, dict) else True

    async def _request(
        self, method: str, path: str, query: dict[str, str] | None = None, *, patience: float | None = None
    ) -> httpx.Response | None:
        timeout = self.timeout if patience is None else patience
        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=timeout, trust_env=False) as client:
                return await client.request(method, path, params=query)
        except httpx.HTTPError:
            return None


def _json(response: httpx.Response | None) -> Any:
    if response is None or response.status_code != httpx.codes.OK:
        return None
    try:
        return response.json()
    except ValueError:
        return None
