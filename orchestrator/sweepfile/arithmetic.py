"""A small arithmetic on numbers and names. Text is read as a syntax tree, and only the parts below are evaluated."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.base.space import format_value, is_number

Number = int | float
_LONGEST = 200  # characters, so that no expression is nested too deep to be evaluated
_LARGEST_EXPONENT = 1024  # of two, beyond which no float lies
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
# Each function with the least and the largest number of values that it takes.
_CALLED: Mapping[str, tuple[Callable[..., Any], int, float]] = {
    "min": (min, 2, math.inf),
    "max": (max, 2, math.inf),
    "round": (round, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
}
FUNCTIONS = tuple(_CALLED)
ALLOWED = f"numbers, names, + - * / **, parentheses, {', '.join(FUNCTIONS[:-1])} and {FUNCTIONS[-1]}"


@dataclass(frozen=True, slots=True)
class Expression:
    """An arithmetic expression, as written, and the names that it uses."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr = field(repr=False, compare=False)

    def value(self, of: Mapping[str, Any]) -> Number:
        """Its value, as Python computes it, where each name has the value in ``of``.

        Raises ValueError where a name is no number, and where the result is not a finite real number.
        """
        for name in self.names:
            if not is_number(of[name]):
                raise ValueError(f"{name} is {format_value(of[name])}, which is no number")
        return _evaluated(self._tree, of)


def parsed(text: str) -> Expression:
    """The expression ``text``. Raises ValueError naming the part that is not arithmetic."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise ValueError(f"has {len(text)} characters, and {_LONGEST} is the most")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Python warns of some texts that it will not read in future
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} cannot be read as arithmetic") from None
    names: dict[str, None] = {}
    _check(tree, text, names)
    return Expression(text, tuple(names), tree)


def _check(node: ast.expr, text: str, names: dict[str, None]) -> None:
    """Raise ValueError unless ``node`` of ``text`` is arithmetic; collects its ``names``."""
    inner: list[ast.expr] = []
    match node:
        case ast.Constant(value=int() | float() as value) if is_number(value) and math.isfinite(value):
            pass
        case ast.Name(id=name):
            names[name] = None
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = [operand]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.Call(func=ast.Name(id=name), args=inner, keywords=[]) if name in _CALLED:
            _, least, most = _CALLED[name]
            if not least <= len(inner) <= most:
                takes = f"{least} value" if most == 1 else f"{least} values or more"
                raise ValueError(f"{_part(node, text)}: {name} takes {takes}")
        case _:
            raise ValueError(f"{_part(node, text)} is not arithmetic")
    for each in inner:
        _check(each, text, names)


def _evaluated(node: ast.expr, of: Mapping[str, Any]) -> Number:
    """The value of a checked ``node``. Raises ValueError where it is not a finite real number."""
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value] # a number, as checked
        case ast.Name(id=name):
            return of[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluated(operand, of)
        case ast.BinOp(left=left, op=op, right=right):
            return _finite(node, _OPERATORS[type(op)], _evaluated(left, of), _evaluated(right, of))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _finite(node, _CALLED[name][0], *[_evaluated(each, of) for each in args])
    raise AssertionError(f"not checked: {ast.dump(node)}")


def _finite(node: ast.expr, function: Callable[..., Any], *values: Number) -> Number:
    """The value of ``function`` at ``values``, a finite real number. Raises ValueError naming ``node``."""
    shown = ast.unparse(node)
    try:
        if function is operator.pow and _is_huge(*values):
            raise OverflowError
        found = function(*values)
        if isinstance(found, complex):
            raise ValueError
        if not math.isfinite(found):  # raises OverflowError for a whole number beyond all floats
            raise OverflowError
    except ZeroDivisionError:
        raise ValueError(f"{shown} divides by zero") from None
    except OverflowError:
        raise ValueError(f"{shown} is too large for a number of double precision") from None
    except ValueError:
        raise ValueError(f"{shown} is not a real number") from None
    return found


def _is_huge(base: Number, exponent: Number) -> bool:
    """Whether a power of whole numbers is beyond all floats: Python would compute all its digits."""
    if isinstance(base, float) or isinstance(exponent, float) or exponent <= 0:
        return False
    return (abs(base).bit_length() - 1) * exponent >= _LARGEST_EXPONENT


def _part(node: ast.expr, text: str) -> str:
    return repr(ast.get_source_segment(text, node) or text)
