"""Printing: tables for people on stdout, remarks on stderr, one JSON document for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_WITHOUT_TERMINAL = 200
"""Columns of a table that goes to a file or a pipe: nothing is cut there."""
_COLUMN_GAP = 3


@dataclass(frozen=True, slots=True)
class Column:
    """A column: figures stand on the right, and ``flexible`` ones are wrapped first.

    ``least``: characters that a flexible column keeps. ``drop`` above 0: on a terminal too narrow for all, columns
    are left out, the lowest of these numbers first.
    """

    title: str
    numeric: bool = False
    flexible: bool = False
    drop: int = 0
    least: int = 20

    def least_width(self, cells: Iterable[object]) -> int:
        """Characters that it needs: a heading may wrap between words, a figure may not."""
        if self.flexible:
            return self.least
        heading = max((cell_len(word) for word in self.title.split()), default=0)
        return max([heading, *(cell_len(str(cell)) for cell in cells)])


def stdout_console() -> Console:
    """For what was asked for."""
    return _console(sys.stdout)


def stderr_console() -> Console:
    """For remarks beside it."""
    return _console(sys.stderr)


def _console(stream: IO[str]) -> Console:
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table. Cells are shown as they are: nothing in them is taken for markup.

    On a narrow terminal headings and flexible columns are wrapped; a figure stays in one piece with its unit.
    """
    console = stdout_console()
    data = [list(row) for row in rows]
    kept = _fitting(columns, data, console.width) if console.is_terminal else list(range(len(columns)))
    tight = console.is_terminal and _natural_width(columns, data, kept) > console.width
    drawn = Table(
        title=Text(title) if title else None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for index in kept:
        column = columns[index]
        least = column.least_width(row[index] for row in data)
        drawn.add_column(
            Text(column.title),
            justify="right" if column.numeric else "left",
            overflow="fold",
            min_width=least if tight or not column.flexible else None,
            max_width=least if tight and not column.flexible else None,
        )
    for row in data:
        drawn.add_row(*(_cell(row[i], glue=console.is_terminal and not columns[i].flexible) for i in kept))
    console.print(drawn)


def _fitting(columns: Sequence[Column], data: Sequence[Sequence[object]], width: int) -> list[int]:
    """Indexes of the columns that fit side by side."""
    kept = list(range(len(columns)))
    needed = {i: columns[i].least_width(row[i] for row in data) + _COLUMN_GAP for i in kept}
    while sum(needed[i] for i in kept) > width:
        optional = [i for i in kept if columns[i].drop]
        if not optional:
            break
        kept.remove(min(optional, key=lambda i: columns[i].drop))
    return kept


def _natural_width(columns: Sequence[Column], data: Sequence[Sequence[object]], kept: Iterable[int]) -> int:
    """Characters that the table takes when nothing is wrapped."""
    widths = ([cell_len(columns[i].title), *(cell_len(str(row[i])) for row in data)] for i in kept)
    return sum(max(each) + _COLUMN_GAP for each in widths)


def _cell(cell: object, *, glue: bool) -> Text:
    text = str(cell)
    return Text(text.replace(" ", "\u00a0") if glue else text)


def say(text: str, *, style: str = "") -> None:
    """Print a paragraph on stdout."""
    _paragraph(stdout_console(), text, style)


def remark(text: str, *, style: str = "") -> None:
    """Print a paragraph on stderr."""
    _paragraph(stderr_console(), text, style)


def _paragraph(console: Console, text: str, style: str) -> None:
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def print_json(document: Any) -> None:
    """Print exactly one JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False))
