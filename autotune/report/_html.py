"""HTML that is safe by construction: every text is escaped unless it is markup already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

Attribute = str | int | float | bool | None


class Html(str):
    """Markup. Only this module and constants of this package may make one from text."""

    __slots__ = ()


def escape(text: object) -> Html:
    """``text`` as markup that shows exactly it, in contents and in quoted attributes."""
    return text if isinstance(text, Html) else Html(html.escape(_CONTROL.sub("\ufffd", str(text)), quote=True))


def tag(element: str, /, *children: object, **attributes: Attribute) -> Html:
    """An element. ``class_`` means ``class``, ``aria_label`` ``aria-label``; None and False leave an attribute out."""
    words = [element]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelt = key.rstrip("_").replace("_", "-")
        words.append(spelt if value is True else f'{spelt}="{escape(value)}"')
    opened = f"<{' '.join(words)}>"
    return Html(opened) if element in _VOID else Html(f"{opened}{join(children)}</{element}>")


def join(children: object) -> Html:
    """Children one after the other: texts are escaped, None is nothing, iterables are flattened."""
    if children is None:
        return Html("")
    if isinstance(children, str) or not isinstance(children, Iterable):
        return escape(children)
    return Html("".join(join(child) for child in children))
