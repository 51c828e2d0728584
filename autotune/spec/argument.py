"""Engine arguments: vLLM settings by their flag's name without the dashes in front."""

from __future__ import annotations

from collections.abc import Mapping

ArgumentValue = bool | int | float | str
"""A value of an engine argument. Unset is expressed by absence, never by None."""

Arguments = Mapping[str, ArgumentValue]
"""Engine arguments by name, e.g. ``{"max-num-seqs": 64, "enforce-eager": True}``."""
