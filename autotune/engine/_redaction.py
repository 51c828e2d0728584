"""Keeps secrets out of engine logs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.base.secrets import WITHHELD, is_secret_name

_SHORTEST = 8
_TOKENS = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=api_key=)[^\s,)]+|(?<='api_key': )(?:\[[^\]]*\]|'[^']*')|(?<=--api-key )\S+|(?<=--api-key=)\S+"
)


class Redactor:
    """Replaces what looks like a token, and the values of secret variables of an environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        secrets = {v for name, v in environment.items() if is_secret_name(name) and len(v) >= _SHORTEST}
        longest_first = sorted(secrets, key=len, reverse=True)
        self._values = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def redact(self, line: str) -> str:
        """The line without secrets."""
        if self._values is not None:
            line = self._values.sub(WITHHELD, line)
        return _TOKENS.sub(WITHHELD, line)
