from __future__ import annotations

import ast
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweepfile.arithmetic import parsed

NAMES = {"lr": 0.003, "batch_size": 48, "steps": 200, "x": -1.5, "zero": 0}
OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Call)
PYTHON = {"__builtins__": {}, "min": min, "max": max, "round": round, "sqrt": math.sqrt}
LEAVES = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e12, allow_nan=False).map(repr),
    st.sampled_from(sorted(NAMES)),
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        # Larger exponents of whole numbers keep Python busy for as long as one likes.
        st.tuples(inner, st.sampled_from(["2", "3", "0.5", "-1", "-1.5", "0"])).map(" ** ".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("sqrt({})".format),
        inner.map("round({})".format),
        pair.map(lambda two: f"min({two[0]}, {two[1]})"),
        pair.map(lambda two: f"max({two[0]}, {two[1]})"),
    )


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=8).filter(lambda text: len(text) <= 200)


def as_python_has_it(text: str) -> float | int | None:
    """The value that Python computes; None where it has none, or none that is a finite real number."""
    try:
        value = eval(text, PYTHON, NAMES)
        return None if isinstance(value, complex) or not math.isfinite(value) else value
    except (ArithmeticError, ValueError, TypeError):  # a root of a negative number cannot be rounded
        return None


@given(EXPRESSIONS)
def test_an_expression_has_the_value_that_python_computes_or_is_refused_where_a_part_has_no_finite_one(text) -> None:
    parts = [ast.unparse(node) for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, OPERATIONS)]
    if any(as_python_has_it(part) is None for part in parts):
        with pytest.raises(ValueError, match=r"divides by zero|too large|not a real number"):
            parsed(text).value(NAMES)
    else:
        expected = eval(text, PYTHON, NAMES)
        found = parsed(text).value(NAMES)
        assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lr.real", "'lr.real' is not arithmetic"),
        ("2 * lr[0]", r"'lr\[0\]' is not arithmetic"),
        ("1 + open('x')", r"""["']open\('x'\)["'] is not arithmetic"""),
        ("abs(lr)", r"'abs\(lr\)' is not arithmetic"),
        ("(lambda: 1)()", "lambda: 1.* is not arithmetic"),
        ("lr if lr else 1", "'lr if lr else 1' is not arithmetic"),
        ("lr > 1", "'lr > 1' is not arithmetic"),
        ("7 // 2", "'7 // 2' is not arithmetic"),
        ("7 % 2", "'7 % 2' is not arithmetic"),
        ("+lr", r"'\+lr' is not arithmetic"),
        ("not lr", "'not lr' is not arithmetic"),
        ("1j * lr", "'1j' is not arithmetic"),
        ("True + 1", "'True' is not arithmetic"),
        ("'a' * 3", """"'a'" is not arithmetic"""),
        ("[lr]", r"'\[lr\]' is not arithmetic"),
        ("1e999", "'1e999' is not arithmetic"),
        ("(x := 3)", "'x := 3' is not arithmetic"),
        ("max(*lr, 2)", r"'\*lr' is not arithmetic"),
        ("max(lr, 2, key=lr)", r"'max\(lr, 2, key=lr\)' is not arithmetic"),
        ("round(lr, 2)", r"'round\(lr, 2\)': round takes 1 value"),
        ("min(lr)", r"'min\(lr\)': min takes 2 values or more"),
        ("sqrt()", r"'sqrt\(\)': sqrt takes 1 value"),
        ("min(100", r"'min\(100' cannot be read as arithmetic"),
        ("lr; lr", "cannot be read"),
        ("", "cannot be read"),
        ("1if lr else 2", "cannot be read"),
        ("\0", "cannot be read"),
        ("-" * 201 + "1", "202 characters, and 200 is the most"),
    ],
)
def test_what_is_not_arithmetic_is_refused_by_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10 ** 10 ** 10", r"10 \*\* 10 \*\* 10 is too large"),
        ("steps ** steps ** steps ** steps", "is too large"),
        ("2 ** 1024", "is too large"),
        ("2.0 ** 1024", "is too large"),
        ("1e308 * 10", "is too large"),
        ("lr / zero", "lr / zero divides by zero"),
        ("zero ** -1", "divides by zero"),
        ("x ** 0.5", r"x \*\* 0.5 is not a real number"),
        ("sqrt(x)", r"sqrt\(x\) is not a real number"),
    ],
)
def test_what_has_no_finite_real_value_is_refused_by_the_part_and_at_once(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parsed(text).value(NAMES)


def test_whole_numbers_stay_exact_up_to_the_largest_double() -> None:
    assert parsed("2 ** 1023").value({}) == 2**1023
    assert parsed("(0 - 1) ** 10 ** 9").value({}) == 1


@pytest.mark.parametrize("value", [None, True, "adamw", (1,)])
def test_a_name_must_be_a_number(value) -> None:
    with pytest.raises(ValueError, match=r"lr is .* which is no number"):
        parsed("2 * lr").value({"lr": value})


def test_an_expression_knows_the_names_that_it_uses_but_not_its_functions() -> None:
    assert parsed("min(b, a) * b + max(2, sqrt(c))").names == ("b", "a", "c")


def test_the_deepest_expression_can_be_evaluated() -> None:
    assert parsed("-" * 198 + "1").value({}) == 1
