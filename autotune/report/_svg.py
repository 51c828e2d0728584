"""Small line and point charts as inline SVG: readable in light and dark, without any script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.report._html import Html, tag

_MARKER_RADIUS = 4.5


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a drawing in user units, which are pixels where it is shown at its full width."""

    name: str
    width: int
    height: int
    left: int = 58
    right: int = 14
    top: int = 14
    bottom: int = 46
    ticks: int = 6


WIDE = Size("wide", 860, 360)
NARROW = Size("narrow", 350, 290, left=46, right=10, ticks=4)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values and where its ticks are."""

    low: float
    high: float
    title: str
    log: bool = False

    def position(self, value: float) -> float:
        """Where ``value`` lies: 0 at ``low``, 1 at ``high``; values outside are put at the edge."""
        low, high, at = (self._scaled(v) for v in (self.low, self.high, max(value, self.low)))
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, count: int) -> list[float]:
        """Round values within the range, about ``count`` of them."""
        return _log_ticks(self.low, self.high, count) if self.log else linear_ticks(self.low, self.high, count)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [factor * 10.0**power for power in decades for factor in (1, 2, 5)]
    inside = [value for value in fine if low * 0.999 <= value <= high * 1.001]
    if len(inside) > 2 * count:
        inside = [value for value in inside if math.isclose(math.log10(value), round(math.log10(value)))]
    return inside


@dataclass(frozen=True, slots=True)
class Mark:
    """A point: ``shape`` is circle, square, diamond, triangle or cross; hollow ones have only an outline."""

    x: float
    y: float
    shape: str
    style: str
    words: str
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points; ``steps`` makes it a staircase."""

    points: Sequence[tuple[float, float]]
    style: str
    steps: bool = False


class Drawing:
    """A chart with two axes."""

    def __init__(self, size: Size, x: Axis, y: Axis, description: str) -> None:
        self._size, self._x, self._y = size, x, y
        self._description = description
        self._parts: list[Html] = [self._axes()]

    def _at(self, x: float, y: float) -> tuple[float, float]:
        size = self._size
        width = size.width - size.left - size.right
        height = size.height - size.top - size.bottom
        return size.left + self._x.position(x) * width, size.top + (1 - self._y.position(y)) * height

    def _axes(self) -> Html:
        size = self._size
        bottom, right = size.height - size.bottom, size.width - size.right
        parts: list[Html] = []
        for value in self._y.ticks(size.ticks):
            _, y = self._at(self._x.low, value)
            parts.append(_line(size.left, y, right, y, "grid"))
            parts.append(_text(size.left - 6, y + 4, tick_words(value), anchor="end"))
        for value in self._x.ticks(size.ticks):
            x, _ = self._at(value, self._y.low)
            parts.append(_line(x, bottom, x, bottom + 4, "axis"))
            parts.append(_text(x, bottom + 18, tick_words(value), anchor="middle"))
        parts.append(_line(size.left, bottom, right, bottom, "axis"))
        parts.append(_text((size.left + right) / 2, size.height - 8, self._x.title, anchor="middle", class_="title"))
        middle = (size.top + bottom) / 2
        parts.append(
            tag(
                "text",
                self._y.title,
                x=12,
                y=f"{middle:.1f}",
                class_="title",
                text_anchor="middle",
                transform=f"rotate(-90 12 {middle:.1f})",
            )
        )
        return tag("g", parts)

    def limit(self, value: float, words: str) -> None:
        """A horizontal limit across the chart, named at its left end, where latencies are lowest."""
        size = self._size
        _, y = self._at(self._x.low, value)
        self._parts.append(_line(size.left, y, size.width - size.right, y, "limit"))
        self._parts.append(_text(size.left + 6, y - 6, words, anchor="start", class_="limit-words"))

    def band(self, low: float, high: float, words: str) -> None:
        """A shaded span of the horizontal axis, named at its top."""
        size = self._size
        (left, _), (right, _) = self._at(low, self._y.low), self._at(high, self._y.low)
        shade = tag(
            "rect",
            x=f"{left:.1f}",
            y=size.top,
            width=f"{max(0.0, right - left):.1f}",
            height=size.height - size.top - size.bottom,
            class_="band",
        )
        self._parts.insert(0, shade)
        self._parts.append(_text((left + right) / 2, size.top + 14, words, anchor="middle"))

    def line(self, line: Line) -> None:
        """Add a line."""
        places = [self._at(x, y) for x, y in line.points]
        if len(places) < 2:
            return
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for x, y in places[1:]:
            path += f"H{x:.1f}V{y:.1f}" if line.steps else f"L{x:.1f} {y:.1f}"
        self._parts.append(tag("path", d=path, class_=f"line {line.style}"))

    def marks(self, marks: Iterable[Mark]) -> None:
        """Add points; each says its words when pointed at."""
        for mark in marks:
            x, y = self._at(mark.x, mark.y)
            style = f"mark {mark.style}{' hollow' if mark.hollow else ''}"
            self._parts.append(tag("path", tag("title", mark.words), d=shape_path(mark.shape, x, y), class_=style))

    def markup(self) -> Html:
        """The whole drawing."""
        size = self._size
        return tag(
            "svg",
            tag("title", self._description),
            self._parts,
            class_=f"chart {size.name}",
            role="img",
            viewBox=f"0 0 {size.width} {size.height}",
            preserveAspectRatio="xMidYMid meet",
        )


def shape_path(shape: str, x: float, y: float, radius: float = _MARKER_RADIUS) -> str:
    """Path of a marker around a place."""
    r = radius
    match shape:
        case "square":
            return f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z"
        case "diamond":
            d = r * 1.3
            return f"M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f}l{-d:.1f} {d:.1f}l{-d:.1f} {-d:.1f}z"
        case "triangle":
            return f"M{x:.1f} {y - r * 1.2:.1f}l{r * 1.2:.1f} {r * 2.1:.1f}h{-2.4 * r:.1f}z"
        case "cross":
            return f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}"
        case _:
            return f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0z"


def tick_words(value: float) -> str:
    """A tick's value without needless digits."""
    return f"{value:,.10g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=style)


def _text(x: float, y: float, words: str, anchor: str, class_: str | None = None) -> Html:
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=class_)
