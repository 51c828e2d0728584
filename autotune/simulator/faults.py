"""Faults that tests and demonstrations inject into the simulated engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Faults:
    """What goes wrong, and after how many finished requests; None is never. Durations are engine seconds."""

    hang_after: int | None = None
    """The engine produces no more tokens; health stays 200."""
    die_after: int | None = None
    """The process is gone at once, exit code 1, nothing in the log."""
    exit0_after: int | None = None
    """The engine core dies of a kernel error; the server answers 500, then exits with 0 as vLLM does."""
    oom_after: int | None = None
    """The engine core runs out of memory; then as ``exit0_after``."""
    stall_after: int | None = None
    """One pause of ``stall`` seconds."""
    stall: float = 10.0
    slow_after: int | None = None
    """From then on steps take ``slow`` times as long."""
    slow: float = 3.0
    slow_start: float = 0.0
    """Extra seconds before the engine is ready."""
    never_ready: int | None = None
    """1: the start never ends."""
    crash_start: int | None = None
    """1: the engine core crashes while it warms up, for no reason of the configuration."""
    ignore_sigterm: int | None = None
    """1: only SIGKILL ends the server."""
    fail_share: float = 0.0
    """Share of requests that are answered with 500."""
    orphan: int | None = None
    """1: a stop leaves the child process of ``--sim-child`` behind."""

    @classmethod
    def parse(cls, words: Sequence[str]) -> Faults:
        """Read ``name=value`` words; several may stand in one word, separated by commas.

        Raises:
            ValueError: an unknown fault or a value that is not a number.
        """
        faults = cls()
        known = {field.name for field in fields(cls)}
        for part in (part for word in words for part in word.split(",")):
            name, equals, value = part.partition("=")
            key = name.strip().replace("-", "_")
            if key not in known:
                raise ValueError(f"sim-fault: unknown fault '{name}', known: {', '.join(sorted(known))}")
            number = float(value) if equals else 1.0
            setattr(faults, key, number if isinstance(getattr(faults, key), float) else int(number))
        return faults
