"""Typed access to a ``config.json``, with errors that name the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from autotune.base.errors import UsageError


class Keys:
    """The values of a configuration, by any of several names."""

    def __init__(self, values: Mapping[str, object], path: Path) -> None:
        self._values = values
        self._path = path

    def has(self, *names: str) -> bool:
        """Whether any of the names has a value."""
        return any(self._values.get(name) is not None for name in names)

    def integer(self, *names: str, default: int | None = None) -> int:
        """A count.

        Raises:
            UsageError: none of the names has a value and there is no default, or it is not a count.
        """
        found = self.optional_integer(*names)
        if found is not None:
            return found
        if default is not None:
            return default
        raise UsageError(
            f"model: {self._path} has no '{names[0]}'.",
            "Give a decoder model (dense or mixture of experts) in Hugging Face format.",
        )

    def optional_integer(self, *names: str) -> int | None:
        """A count, or None where no name has a value."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UsageError(f"model: {self._path}: '{name}' is {value!r}, not a count.", "Correct the file.")
            return value
        return None

    def text(self, *names: str) -> str | None:
        """A text, or None."""
        for name in names:
            value = self._values.get(name)
            if isinstance(value, str):
                return value
        return None

    def flag(self, name: str, default: bool) -> bool:
        """A switch."""
        value = self._values.get(name)
        return value if isinstance(value, bool) else default

    def strings(self, name: str) -> list[str]:
        """A list of texts; empty where there is none."""
        value = self._values.get(name)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
