"""Files that say what is asked: prompts, conversations, traces with arrival times.

Formats (one is recognised from the file's first line unless it is named):

==========  ========================================================================================================
prompts     JSONL: ``{"prompt": "..."}`` or ``{"messages": [...]}``, optionally ``"output_tokens"``; or a JSON string
sharegpt    JSON list or JSONL: ``{"conversations": [{"from": "human", "value": "..."}, ...]}``
mooncake    JSONL: ``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}``; each hash stands
            for a block of 512 tokens that requests with the same hash share
burstgpt    CSV with the columns ``Timestamp``, ``Request tokens``, ``Response tokens``; failed requests are left out
azure       CSV with the columns ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``
==========  ========================================================================================================
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.base.errors import UsageError

CHARACTERS_PER_TOKEN = 4.0
"""Rule of thumb for English text; only for lengths that no tokenizer counted."""
MOONCAKE_BLOCK = 512
_DEFAULT_OUTPUT = 128


class DatasetKind(StrEnum):
    """Format of a dataset file."""

    PROMPTS = "prompts"
    SHAREGPT = "sharegpt"
    MOONCAKE = "mooncake"
    BURSTGPT = "burstgpt"
    AZURE = "azure"


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation of a dataset: what the user says turn by turn, or only how long it is."""

    input_tokens: int
    """Counted by the file's authors, else estimated from the text."""
    output_tokens: int
    at: float | None = None
    """Arrival in seconds since the first row; None in files without times."""
    messages: tuple[tuple[str, str], ...] = ()
    """Role and content up to the first answer; empty in files without text."""
    later_turns: tuple[tuple[str, int], ...] = field(default=())
    """What the user says after each answer, and the length of the answer to that."""
    blocks: tuple[int, ...] = ()
    """Prefix blocks shared with other rows (Mooncake's hash ids)."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file that was read."""

    kind: DatasetKind
    rows: tuple[Row, ...]
    digest: str

    @property
    def has_times(self) -> bool:
        """True when the rows say when they arrive."""
        return self.rows[0].at is not None

    @property
    def has_text(self) -> bool:
        """True when the rows say what is asked, not only how much."""
        return bool(self.rows[0].messages)

    @property
    def rate(self) -> float:
        """Mean arrivals per second of a trace.

        Raises:
            UsageError: the file has no times, or too few rows.
        """
        last = self.rows[-1].at
        if last is None or last <= 0:
            raise UsageError("replay: the dataset has no arrival times.", "Give a rate instead.")
        return (len(self.rows) - 1) / last


@functools.lru_cache(maxsize=8)
def read_dataset(path: Path, kind: DatasetKind | None = None) -> Dataset:
    """Read a file.

    Raises:
        UsageError: it cannot be read, or a line is not of its format.
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"dataset {path}: {error.strerror}.", "Name a file that can be read.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"dataset {path}: not UTF-8 text.", "Convert it.") from error
    known = kind or _recognise(text)
    if known is None:
        raise UsageError(f"dataset {path}: its format is not known.", f"Known: {', '.join(DatasetKind)}.")
    rows = tuple(_READERS[known](_Source(path, text)))
    if not rows:
        raise UsageError(f"dataset {path}: no usable row.", f"Is it in the format '{known}'?")
    if rows[0].at is not None:
        rows = _from_zero(rows)
    return Dataset(known, rows, hashlib.sha256(raw).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    text: str

    def wrong(self, number: int, what: str) -> UsageError:
        return UsageError(f"dataset {self.path}, row {number}: {what}.", "Correct or remove it.")

    def objects(self) -> Iterator[tuple[int, Any]]:
        """Values of a JSON list or of JSON lines, with their number."""
        if self.text.lstrip().startswith("["):
            try:
                values = json.loads(self.text)
            except ValueError as error:
                raise UsageError(f"dataset {self.path}: {error}.", "Correct it.") from error
            yield from enumerate(values, 1)
            return
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise self.wrong(number, f"not JSON ({error})") from error

    def table(self) -> Iterator[tuple[int, dict[str, str]]]:
        for number, row in enumerate(csv.DictReader(self.text.splitlines()), 2):
            yield number, {(name or "").strip().lower(): (value or "").strip() for name, value in row.items()}


def _recognise(text: str) -> DatasetKind | None:
    first = next((line for line in text.splitlines() if line.strip()), "")
    lowered = first.lower()
    if "contexttokens" in lowered and "generatedtokens" in lowered:
        return DatasetKind.AZURE
    if "request tokens" in lowered and "response tokens" in lowered:
        return DatasetKind.BURSTGPT
    head = text[:20_000]
    if '"input_length"' in head:
        return DatasetKind.MOONCAKE
    if '"conversations"' in head:
        return DatasetKind.SHAREGPT
    return DatasetKind.PROMPTS if first.lstrip()[:1] in ('"', "{", "[") else None


def _prompts(source: _Source) -> Iterator[Row]:
    for number, given in source.objects():
        value = {"prompt": given} if isinstance(given, str) else given
        if not isinstance(value, dict):
            raise source.wrong(number, "neither an object nor a string")
        text = next((value[k] for k in ("prompt", "text", "question", "input") if isinstance(value.get(k), str)), None)
        messages = _messages(value["messages"]) if isinstance(value.get("messages"), list) else ()
        if text is not None and not messages:
            messages = (("user", text),)
        if not any(content for _, content in messages):
            raise source.wrong(number, "has neither 'prompt' nor 'messages'")
        outputs = _first_int(value, ("output_tokens", "max_tokens", "output_len", "max_completion_tokens"))
        inputs = _first_int(value, ("input_tokens", "prompt_tokens", "input_len"))
        yield Row(inputs or _estimate(messages), outputs or _DEFAULT_OUTPUT, messages=messages)


def _sharegpt(source: _Source) -> Iterator[Row]:
    """Conversations that begin with the user and have an answer; others are left out, as is usual."""
    for number, value in source.objects():
        if not isinstance(value, dict) or not isinstance(value.get("conversations"), list):
            raise source.wrong(number, "has no 'conversations'")
        said = [
            (str(turn.get("from", turn.get("role", ""))), str(turn.get("value", turn.get("content", ""))))
            for turn in value["conversations"]
            if isinstance(turn, dict)
        ]
        system = [("system", text) for who, text in said[:1] if who == "system"]
        said = said[len(system) :]
        pairs = []
        for (asker, question), (_, answer) in zip(said[::2], said[1::2], strict=False):
            if asker not in ("human", "user") or not question or not answer:
                break
            pairs.append((question, _tokens(answer)))
        if pairs:
            messages = (*system, ("user", pairs[0][0]))
            yield Row(_estimate(messages), pairs[0][1], messages=messages, later_turns=tuple(pairs[1:]))


def _mooncake(source: _Source) -> Iterator[Row]:
    for number, value in source.objects():
        try:
            inputs, outputs = int(value["input_length"]), int(value["output_length"])
            blocks = tuple(int(block) for block in value.get("hash_ids", ()))
            at = float(value["timestamp"]) / 1000 if "timestamp" in value else None
        except (KeyError, TypeError, ValueError) as error:
            raise source.wrong(number, f"not a Mooncake request ({error})") from error
        if inputs > 0 and outputs > 0:
            yield Row(inputs, outputs, at, blocks=blocks)


def _burstgpt(source: _Source) -> Iterator[Row]:
    for number, row in source.table():
        try:
            inputs, outputs = int(float(row["request tokens"])), int(float(row["response tokens"]))
            at = float(row["timestamp"])
        except (KeyError, ValueError) as error:
            raise source.wrong(number, f"not a BurstGPT request ({error})") from error
        if inputs > 0 and outputs > 0:
            yield Row(inputs, outputs, at)


def _azure(source: _Source) -> Iterator[Row]:
    for number, row in source.table():
        try:
            inputs, outputs = int(row["contexttokens"]), int(row["generatedtokens"])
            at = _seconds(row["timestamp"])
        except (KeyError, ValueError) as error:
            raise source.wrong(number, f"not a request of Azure's trace ({error})") from error
        if inputs > 0 and outputs > 0:
            yield Row(inputs, outputs, at)


_READERS: Mapping[DatasetKind, Callable[[_Source], Iterable[Row]]] = {
    DatasetKind.PROMPTS: _prompts,
    DatasetKind.SHAREGPT: _sharegpt,
    DatasetKind.MOONCAKE: _mooncake,
    DatasetKind.BURSTGPT: _burstgpt,
    DatasetKind.AZURE: _azure,
}


def _from_zero(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    ordered = sorted(rows, key=lambda row: row.at or 0.0)
    start = ordered[0].at or 0.0
    return tuple(
        Row(row.input_tokens, row.output_tokens, (row.at or 0.0) - start, row.messages, row.later_turns, row.blocks)
        for row in ordered
    )


def _seconds(text: str) -> float:
    """A timestamp such as ``2023-11-16 18:15:46.6805900`` (seven decimals, UTC) or one with a time zone."""
    head, point, tail = text.partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    moment = datetime.fromisoformat(f"{head}{point}{tail[: min(digits, 6)]}{tail[digits:]}" if point else text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _messages(values: list[Any]) -> tuple[tuple[str, str], ...]:
    """Roles and contents up to the last message that is not an answer."""
    said = [(str(v.get("role", "user")), str(v.get("content", ""))) for v in values if isinstance(v, dict)]
    while said and said[-1][0] == "assistant":
        said.pop()
    return tuple(said)


def _first_int(value: Mapping[str, Any], names: Iterable[str]) -> int | None:
    found = (value.get(name) for name in names)
    return next((number for number in found if isinstance(number, int) and number > 0), None)


def _estimate(messages: Iterable[tuple[str, str]]) -> int:
    return _tokens("".join(content for _, content in messages))


def _tokens(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))
