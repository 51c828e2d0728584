"""Pieces that several sections of the report use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.report import figures, words
from autotune.report._html import Html, tag
from autotune.space import to_argv
from autotune.spec import ArgumentValue


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: what is shown, and the number that it is sorted by."""

    shown: object
    value: float | None = None
    numeric: bool = True


def number_cell(value: float | None, shown: object | None = None) -> Cell:
    """A figure, right-aligned."""
    return Cell(figures.number(value) if shown is None else shown, value)


def text_cell(shown: object) -> Cell:
    """Words, left-aligned."""
    return Cell(shown, numeric=False)


_UNIT = re.compile(r"(?<=\d) (?=(?:%|req/s|tok/s|ms|s|GiB)(?![\w/]))")


def glued(sentence: str) -> str:
    """The sentence with no line break between a number and its unit."""
    return _UNIT.sub("\u00a0", sentence)


def section(anchor: str, title: str, *children: object) -> Html:
    """A section with its heading; the navigation points at its anchor."""
    return tag(
        "section", tag("h2", title, id=f"{anchor}-title"), children, id=anchor, aria_labelledby=f"{anchor}-title"
    )


def table(
    caption: str,
    heads: Sequence[tuple[str, bool]],
    rows: Iterable[tuple[Mapping[str, str], Sequence[Cell]]],
    *,
    identity: str | None = None,
    sortable: bool = False,
) -> Html:
    """A table in a box that scrolls sideways on a narrow screen. ``heads`` says of each column whether it is numeric.

    The first cell of each row is its heading. Each row comes with its attributes.
    """
    head = tag("tr", (tag("th", name, scope="col", class_="n" if numeric else None) for name, numeric in heads))
    body = (tag("tr", _cells(cells), **dict(attributes)) for attributes, cells in rows)
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", head),
            tag("tbody", body),
            id=identity,
            data_sortable=sortable,
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _cells(cells: Sequence[Cell]) -> Iterable[Html]:
    for index, cell in enumerate(cells):
        value = None if not cell.numeric else "" if cell.value is None else f"{cell.value:.10g}"
        yield tag(
            "td" if index else "th",
            cell.shown,
            class_="n" if cell.numeric else None,
            scope=None if index else "row",
            data_value=value,
        )


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """A list of names and what they are; empty ones are left out."""
    return tag(
        "dl", ((tag("dt", name), tag("dd", value)) for name, value in pairs if value not in (None, "")), class_="facts"
    )


def flags(arguments: Mapping[str, ArgumentValue]) -> Html:
    """Arguments in a row; a line never breaks within one."""
    if not arguments:
        return tag("span", "no flags")
    each = [tag("span", words.flags_words({name: value}), class_="flag") for name, value in arguments.items()]
    return tag("span", each[0], ([", ", flag] for flag in each[1:]))


def serve_command(
    model: str, arguments: Mapping[str, ArgumentValue], environment: Mapping[str, str], *, wide: bool = False
) -> str:
    """The ``vllm serve`` command, quoted for a shell; one flag a line unless ``wide``."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    head = " ".join([*variables, "vllm serve", shlex.quote(model)])
    flags = [shlex.join(to_argv({name: value})) for name, value in arguments.items()]
    return (" " if wide else " \\\n  ").join([head, *flags])
