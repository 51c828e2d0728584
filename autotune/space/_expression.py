"""Conditions of rules: comparisons over named values, evaluated without ``eval``.

The text is parsed by Python's own parser and only a few node kinds are accepted: comparisons, ``and``,
``or``, ``not``, the four operations, ``%`` and ``//``, numbers, texts, True and False, tuples for ``in``,
and names. There are no calls, attributes, subscripts or powers, so a rule can neither reach objects
nor take long.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

from autotune.base.errors import UsageError

Scalar = bool | int | float | str
#: None is a value that nobody knows.
Names = Mapping[str, Scalar | None]

_LONGEST = 500
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NODES = (
    ast.Expression, ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Name,
    ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Eq, ast.NotEq, ast.In, ast.NotIn, *_ARITHMETIC, *_ORDER,
)  # fmt: skip


class _UnknownValueError(Exception):
    """A comparison needs a value that nobody knows."""


@lru_cache(maxsize=512)
def parse(text: str) -> ast.Expression:
    """The syntax tree of a condition.

    Raises:
        UsageError: not a condition of the language above.
    """
    remedy = "Use names, numbers, texts, comparisons, and, or, not, in, + - * / // %."
    if len(text) > _LONGEST:
        raise UsageError(f"rule: a condition of {len(text)} characters is too long.", remedy)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(f"rule: '{text}' is not a condition.", remedy) from error
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise UsageError(f"rule: '{text}' uses {type(node).__name__}, which conditions have not.", remedy)
        if isinstance(node, ast.Constant) and not isinstance(node.value, (bool, int, float, str)):
            raise UsageError(f"rule: '{text}' has a constant that is no number or text.", remedy)
    return tree


def names_in(text: str) -> frozenset[str]:
    """The names that a condition reads."""
    return frozenset(node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name))


def holds(text: str, names: Names) -> bool | None:
    """Whether the condition is true of the values; None where it hangs on a value that is not known.

    Raises:
        UsageError: a name that is not among the names, or values that cannot be compared.
    """
    unknown = sorted(names_in(text) - names.keys())
    if unknown:
        raise UsageError(f"rule: '{text}' reads '{unknown[0]}', which has no meaning here.", "Correct the rule.")
    return _truth(parse(text).body, names, text)


def _truth(node: ast.expr, names: Names, text: str) -> bool | None:
    """Three-valued logic: ``unknown and False`` is false, ``unknown or True`` is true."""
    if isinstance(node, ast.BoolOp):
        parts = [_truth(part, names, text) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, names, text)
        return None if inner is None else not inner
    try:
        if isinstance(node, ast.Compare):
            return _comparison(node, names)
        return bool(_value(node, names))
    except _UnknownValueError:
        return None
    except (TypeError, ZeroDivisionError) as error:
        raise UsageError(f"rule: '{text}' cannot be computed: {error}.", "Correct the rule or the values.") from error


def _comparison(node: ast.Compare, names: Names) -> bool:
    left = _value(node.left, names)
    for kind, right_node in zip(node.ops, node.comparators, strict=True):
        if isinstance(kind, (ast.In, ast.NotIn)):
            if not isinstance(right_node, (ast.Tuple, ast.List)):
                raise TypeError("'in' needs a list of values")
            found = any(left == _value(item, names) for item in right_node.elts)
            if found != isinstance(kind, ast.In):
                return False
            continue
        right = _value(right_node, names)
        if isinstance(kind, ast.Eq):
            good = left == right
        elif isinstance(kind, ast.NotEq):
            good = left != right
        else:
            good = _ORDER[type(kind)](_number(left), _number(right))
        if not good:
            return False
        left = right
    return True


def _value(node: ast.expr, names: Names) -> Scalar:
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        return node.value
    if isinstance(node, ast.Name):
        value = names[node.id]
        if value is None:
            raise _UnknownValueError(node.id)
        return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_value(node.operand, names))
    if isinstance(node, ast.BinOp):
        left, right = _number(_value(node.left, names)), _number(_value(node.right, names))
        return _ARITHMETIC[type(node.op)](left, right)
    raise TypeError(f"{type(node).__name__} is not a value")


def _number(value: Scalar) -> float:
    if isinstance(value, str):
        raise TypeError(f"'{value}' is not a number")
    return value
