"""Conditions of rules: what they mean, and what they must refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.base.errors import UsageError
from autotune.space._expression import Scalar, holds, names_in, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a >= b", True),
        ("a < b", False),
        ("0 < share <= 1", True),
        ("a % b == 0 and not on", False),
        ("a % b == 0 or on", True),
        ("kind in ('cuda', 'rocm')", True),
        ("kind not in ('cpu', 'tpu')", True),
        ("a - b > 3 + 2 * 2", True),
        ("-b == -4", True),
        ("kind == 4", False),
        ("missing > 3", None),
        ("missing > 3 and a < b", False),
        ("missing > 3 or a > b", True),
        ("not (missing > 3)", None),
        ("missing in (1, 2)", None),
    ],
)
def test_meaning(text: str, expected: bool | None) -> None:
    names: dict[str, Scalar | None] = {"a": 12, "b": 4, "share": 0.9, "on": True, "kind": "cuda", "missing": None}
    assert holds(text, names) is expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b",
        "a[0]",
        "a ** 9999999",
        "lambda: 1",
        "[x for x in (1, 2)]",
        "(a := 3)",
        "a if b else c",
        "f'{a}'",
        "a >",
        "",
        "b'x' == a",
        "a is None",
        "a << 100",
        "1 < 2; 3",
        "(" * 600,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_a_name_without_meaning_is_an_error() -> None:
    with pytest.raises(UsageError, match="'max_num_seq', which has no meaning"):
        holds("max_num_seq > 3", {"max_num_seqs": 3})


@pytest.mark.parametrize("text", ["kind > 3", "a / zero > 1", "kind + 1 == 2"])
def test_values_that_cannot_be_compared_are_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be computed"):
        holds(text, {"kind": "cuda", "a": 1, "zero": 0})


def test_names() -> None:
    assert names_in("a >= b and c in ('d', e)") == {"a", "b", "c", "e"}


@given(st.text(max_size=60))
def test_no_text_does_anything_but_mean_or_be_refused(text: str) -> None:
    try:
        result = holds(text, {"a": 1})
    except UsageError:
        return
    assert result in (True, False, None)
