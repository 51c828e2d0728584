"""Which settings hold secrets, so that no file, report or message ever carries their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WITHHELD = "(withheld)"
_LAST_WORDS = {"token", "key", "secret", "password", "passwd", "passphrase", "credential", "credentials"}
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):([^/@\s]*)@")


def is_secret_name(name: str) -> bool:
    """Does a setting of this name hold a secret? E.g. ``HF_TOKEN``, ``api-key``; not ``max-num-batched-tokens``."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.casefold()) if word]
    return bool(words) and (words[-1] in _LAST_WORDS or "password" in words or "secret" in words)


def without_url_password(text: str) -> str:
    """``text`` with the password of every URL in it replaced: a storage URL may carry one."""
    return _URL_PASSWORD.sub(r"\1:***@", text)


def redacted(value: Any) -> Any:
    """A copy of a JSON-like value in which values of secret settings and passwords in URLs are replaced."""
    if isinstance(value, Mapping):
        return {key: WITHHELD if is_secret_name(str(key)) else redacted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return without_url_password(value) if isinstance(value, str) else value
