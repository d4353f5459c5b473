"""The section ``tie`` of a sweep file: fields computed in each cell from other values, by arithmetic expressions.

An expression is read as a Python syntax tree; only numbers, names and a few operations are evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from orchestrator.base.errors import Problem, did_you_mean
from orchestrator.base.space import format_value, is_number
from orchestrator.sweepfile.fields import Fields, shown
from orchestrator.sweepfile.sections import SweepFile
from orchestrator.sweepfile.strict_yaml import Document

Number = int | float
STEPS = "steps"  # the key of a sweep file that every expression may use
_MAX_LENGTH = 200  # characters, so that nesting stays shallow enough to evaluate
_MAX_EXPONENT = 1024  # powers of two from here exceed all floats
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
# Each function with the least and the largest number of its arguments.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], int, float]] = {
    "min": (min, 2, math.inf),
    "max": (max, 2, math.inf),
    "round": (round, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
}
FUNCTIONS = tuple(_FUNCTIONS)
ALLOWED = f"numbers, names, + - * / **, parentheses, {', '.join(FUNCTIONS[:-1])} and {FUNCTIONS[-1]}"


# --- the section -----------------------------------------------------------------------------------


def checked_ties(file: SweepFile, fields: Fields, document: Document, problems: list[Problem]) -> dict[str, Expression]:
    """Return the tied fields of ``file``, each after the fields that it uses; appends to ``problems``."""
    ties: dict[str, Expression] = {}
    num_problems = len(problems)

    def reject(name: str, message: str, remedy: str) -> None:
        problems.append(document.problem(("tie", name), message, remedy))

    for name, text in file.tie.items():
        if unknown := (name == STEPS or not fields.is_known(name)) and fields.problem(name, None):
            reject(name, *unknown)
            continue
        if name in file.fixed:
            reject(name, "is also fixed", "keep one of the two")
            continue
        try:
            ties[name] = parse_expression(_text(text))
        except ValueError as error:
            reject(name, str(error), f"an expression has {ALLOWED}; put one with a comma in quotes")
            continue
        for used in ties[name].names:
            if problem := _name_problem(used, name, file, fields):
                reject(name, *problem)
    if len(problems) > num_problems:
        return ties
    try:
        order = list(TopologicalSorter({name: set(tie.names) - {name} for name, tie in ties.items()}).static_order())
    except CycleError as error:
        names = error.args[1]
        reject(names[0], f"needs itself: {' needs '.join(reversed(names))}", "take one of the names out")
        return ties
    return {name: ties[name] for name in order if name in ties}


def ties_of_steps(ties: Mapping[str, Expression], counted: Collection[str]) -> set[str]:
    """Return the ``ties`` that depend on the steps, directly or through other ties or the fields ``counted``."""
    late = {STEPS, *counted}
    for name, tie in ties.items():
        if not late.isdisjoint(tie.names):
            late.add(name)
    return late & ties.keys()


def tied_values(ties: Mapping[str, Expression], given: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Compute the tied fields from ``given``, the values of other fields, axes and ``steps``.

    A name means the value that a trial trains with, except in its own expression, where it is the value on its axis.
    An axis without a value (null) in a cell stays without one. Raises ValueError, whose first word is the tied field,
    if a value cannot be computed or the field refuses it.
    """
    values: dict[str, Any] = {}
    for name, tie in ties.items():
        if name in given and given[name] is None:
            continue
        own = {name: given[name]} if name in given else {}
        try:
            values[name] = fields.computed(name, tie.value({**given, **values, **own}))
        except ValueError as error:
            raise ValueError(f"{name} = {tie.text}: {error}") from None
        if problem := fields.problem(name, values[name]):
            raise ValueError(f"{name} = {tie.text}: {problem[0]}")
    return values


def _text(value: Any) -> str:
    """Return an expression as text; a number is one. Raises ValueError for anything else."""
    if not isinstance(value, str) and not is_number(value):
        raise ValueError(f"{shown(value)} is not an expression")
    return str(value)


def _name_problem(used: str, tied: str, file: SweepFile, fields: Fields) -> tuple[str, str] | None:
    """Return the problem of the name ``used`` in the expression of the field ``tied``, and the remedy."""
    if used == tied and used not in file.axes:
        return f"{used} has no value of its own here, as it is not an axis", f"make {used} an axis, or leave it out"
    if used in (STEPS, *file.axes, *file.fixed, *file.tie):
        return None
    if fields.is_known(used):
        return f"{used} has no value in this file", f"give it one: fixed: {{{used}: ...}}"
    known = [STEPS, *file.axes, *file.fixed, *file.tie]
    return f"{used!r} is not known", did_you_mean(used, known) or f"names: {', '.join(dict.fromkeys(known))}"


# --- expressions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expression:
    """An arithmetic expression, as written, and the names that it uses."""

    text: str
    names: tuple[str, ...]
    _tree: ast.expr = field(repr=False, compare=False)

    def value(self, of: Mapping[str, Any]) -> Number:
        """Evaluate the expression as Python does, with the values ``of`` its names.

        Raises ValueError if a value is not a number, or the result not a finite real number.
        """
        for name in self.names:
            if not is_number(of[name]):
                raise ValueError(f"{name} is {format_value(of[name])}, not a number")
        return _evaluate(self._tree, of)


def parse_expression(text: str) -> Expression:
    """Parse the expression ``text``. Raises ValueError naming the part that is not arithmetic."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"has {len(text)} characters, more than {_MAX_LENGTH}")
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
    """Raise ValueError unless ``node`` is arithmetic; collects its ``names``."""
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
        case ast.Call(func=ast.Name(id=name), args=inner, keywords=[]) if name in _FUNCTIONS:
            _, least, most = _FUNCTIONS[name]
            if not least <= len(inner) <= most:
                takes = f"{least} value" if most == 1 else f"{least} values or more"
                raise ValueError(f"{_part(node, text)}: {name} takes {takes}")
        case _:
            raise ValueError(f"{_part(node, text)} is not arithmetic")
    for child in inner:
        _check(child, text, names)


def _evaluate(node: ast.expr, of: Mapping[str, Any]) -> Number:
    """Evaluate a checked ``node``. Raises ValueError if the result is not a finite real number."""
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value] # a number, as checked
        case ast.Name(id=name):
            return of[name]
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, of)
        case ast.BinOp(left=left, op=op, right=right):
            return _finite(node, _OPERATORS[type(op)], _evaluate(left, of), _evaluate(right, of))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _finite(node, _FUNCTIONS[name][0], *[_evaluate(argument, of) for argument in args])
    raise AssertionError(f"not checked: {ast.dump(node)}")


def _finite(node: ast.expr, function: Callable[..., Any], *values: Number) -> Number:
    """Apply ``function`` to ``values``. Raises ValueError naming ``node`` unless the result is finite and real."""
    shown_node = ast.unparse(node)
    try:
        if function is operator.pow and _is_huge(*values):
            raise OverflowError
        result = function(*values)
        if isinstance(result, complex):
            raise ValueError
        if not math.isfinite(result):  # raises OverflowError for an integer beyond all floats
            raise OverflowError
    except ZeroDivisionError:
        raise ValueError(f"{shown_node} divides by zero") from None
    except OverflowError:
        raise ValueError(f"{shown_node} is too large for a number of double precision") from None
    except ValueError:
        raise ValueError(f"{shown_node} is not a real number") from None
    return result


def _is_huge(base: Number, exponent: Number) -> bool:
    """Whether a power of integers exceeds all floats: Python would compute all its digits."""
    if isinstance(base, float) or isinstance(exponent, float) or exponent <= 0:
        return False
    return (abs(base).bit_length() - 1) * exponent >= _MAX_EXPONENT


def _part(node: ast.expr, text: str) -> str:
    return repr(ast.get_source_segment(text, node) or text)
