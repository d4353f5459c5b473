import ast
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import search_with, sweep_of, trial_row

from orchestrator.base.errors import InputError
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.sweepfile.ties import parse_expression

SCALED = """
axes: {lr: {values: [0.1, 0.2]}, batch_size: {values: [8, 32]}}
fixed: {beta1: 0.5}
tie:
  lr: lr * (batch_size / 32) ** 0.5
  warmup: 0.26 * steps
"""


def configs(body: str) -> list[dict]:
    return [dict(trial.config) for trial in sweep_of(body).trials]


def test_a_trial_trains_with_the_computed_value_and_its_cell_keeps_that_of_the_axis() -> None:
    trials = sweep_of(SCALED).trials
    assert [dict(trial.cell) for trial in trials] == [
        {"lr": lr, "batch_size": size} for lr in (0.1, 0.2) for size in (8, 32)
    ]
    assert [trial.config["lr"] for trial in trials] == [0.05, 0.1, 0.1, 0.2]
    assert {trial.config["warmup"] for trial in trials} == {5}, "5.2 in a field of whole numbers"


def test_a_computed_value_makes_the_same_trial_as_that_value_written() -> None:
    tied = sweep_of("axes: {batch_size: {values: [8, 16]}}\ntie: {lr: 0.1 * 3, warmup: steps / 2}\n")
    written = sweep_of("axes: {batch_size: {values: [8, 16]}}\nfixed: {lr: 0.3, warmup: 10}\n")
    assert [trial.trial_id for trial in tied.trials] == [trial.trial_id for trial in written.trials]


@given(st.floats(0.01, 1), st.integers(1, 512), st.floats(-1, 1))
def test_the_effective_value_is_that_of_the_expression_to_fifteen_digits(lr: float, size: int, power: float) -> None:
    (trial,) = sweep_of(
        f"axes: {{lr: {{values: [{lr!r}]}}}}\nfixed: {{batch_size: {size}}}\n"
        f"tie: {{lr: lr * (batch_size / 32) ** {power!r}}}\n"
    ).trials
    assert math.isclose(trial.config["lr"], lr * (size / 32) ** power, rel_tol=1e-14)


def test_a_tie_may_use_a_tied_field_which_means_the_value_that_is_trained_with() -> None:
    body = SCALED.replace("0.26 * steps", "100 * lr")
    assert [config["warmup"] for config in configs(body)] == [5, 10, 10, 20]


def test_the_order_of_ties_does_not_matter() -> None:
    ties = ["warmup: 100 * lr", "lr: lr * beta1", "beta1: batch_size / 64"]
    axes = "axes: {lr: {values: [0.1, 0.2]}, batch_size: {values: [8, 32]}}\n"
    found = [configs(f"{axes}tie: {{{', '.join(order)}}}\n") for order in (ties, ties[::-1])]
    assert found[0] == found[1]


def test_an_axis_without_a_value_in_a_cell_stays_without_one() -> None:
    body = "axes: {clip: {values: [0.5, null]}}\nfixed: {lr: 0.1}\ntie: {clip: clip * lr}\n"
    assert [config.get("clip") for config in configs(body)] == [0.05, None]


def test_a_tie_works_on_sampled_and_on_searched_cells() -> None:
    ranges = "axes: {lr: {log: [1e-3, 1.0]}, beta1: {linear: [0.0, 0.9]}}\ntie: {lr: lr * (1 - beta1)}\n"
    sampled = sweep_of(f"{ranges}sample: {{method: random, num: 5}}\n")
    searched = sweep_of(f"{ranges}search: {{method: random, trials: 5}}\n")
    for sweep in (sampled, searched):
        for trial in sweep.trials:
            assert trial.config["lr"] == pytest.approx(trial.cell["lr"] * (1 - trial.cell["beta1"]), rel=1e-14)


def test_a_command_gets_the_computed_values_and_whole_numbers_stay_whole() -> None:
    command = "name: own\nobjective: {command: 'python t.py {lr} {size} {warmup} {half} {double}'}\nsteps: 20\n"
    (trial,) = sweep_of(
        "axes: {lr: {values: [0.1]}, size: {values: [64]}}\n"
        "tie:\n  lr: lr * (size / 16) ** 0.5\n  warmup: round(0.26 * steps)\n  half: size / 2\n  double: 2 * size\n",
        command,
    ).trials
    wanted = {"lr": 0.2, "size": 64, "warmup": 5, "half": 32.0, "double": 128}
    assert {name: repr(trial.config[name]) for name in wanted} == {name: repr(value) for name, value in wanted.items()}


def test_a_row_of_the_ledger_is_recognised_by_the_tie_that_made_it() -> None:
    one, other = (search_with(f"tie={{lr: lr * {factor}}}") for factor in (0.5, 0.25))
    trial = one.trials[0]
    row = replace(trial_row(cell=trial.cell, config=trial.config), trial_id=trial.trial_id)
    assert one.trial_like(row) == trial
    assert other.trial_like(row) is None


def test_the_frozen_file_makes_the_same_trials() -> None:
    sweep = sweep_of(SCALED)
    assert sweep_of(sweep.text, "").trials == sweep.trials


def test_the_command_line_sets_a_tie() -> None:
    document = parse_document(f"name: a\nobjective: quadratic\nsteps: 20\n{SCALED}", "a.yaml")
    sweep = build_sweep(document, Overrides(sets=("tie.lr=lr * min(1, 16 / batch_size)",)))
    assert [trial.config["lr"] for trial in sweep.trials] == [0.1, 0.05, 0.2, 0.1]


@pytest.mark.parametrize(
    ("tie", "message", "remedy"),
    [
        ("lr: os.system('x')", r"case.yaml:6: tie.lr: .*os.system.* is not arithmetic", "numbers, names"),
        ("warmup: min(5, lr)", r"case.yaml:6: tie.warmup: 'min\(5' cannot be read", "a comma in quotes"),
        ("warmup: 2 * warmup", "tie.warmup: warmup has no value of its own here", "make warmup an axis"),
        ("warmup: eps", "tie.warmup: eps has no value in this file", "fixed: {eps: ...}"),
        ("warmup: step", "tie.warmup: 'step' is not known", "steps"),
        ("warmup: 1, eps: beta2, beta2: eps", "needs itself: .*beta2 needs eps", "take one of the names out"),
        ("beta1: 0.5", "tie.beta1: is also fixed", "keep one"),
        ("warmpu: 3", "tie.warmpu: unknown field of quadratic", "did you mean `warmup`"),
        ("steps: 3", "tie.steps: is not swept or fixed here", "top-level"),
        ("lr: -lr", r"tie.lr: lr = -lr: -0.1 is refused: .*greater than 0 \(at lr=0.1 batch_size=8\)", "expression"),
        ("lr: lr / (batch_size - 8)", r"divides by zero \(at lr=0.1 batch_size=8\)", "expression"),
        ("lr: lr ** batch_size ** batch_size", "tie.lr: .*(too large|refused)", "expression"),
        ("warmup: 1e3 * lr", r"tie.warmup: warmup = 100 is longer than steps = 20 \(at lr=0.1", "expression"),
        ("optimizer: lr", "tie.optimizer: optimizer = lr: 0.1 is refused", "expression"),
        ("lr: 0.1", "lr=0.1 batch_size=8 and lr=0.2 batch_size=8 would train the same trials", "a different value"),
        ("spam_interval: 10", "tie.spam_interval: acts only where optimizer is spam", "remove it"),
        ("lr: [1]", r"tie.lr: \[1\] is not an expression", "numbers, names"),
        ("lr: true", "tie.lr: True is not an expression", "numbers, names"),
        ("lr: null", "tie.lr: None is not an expression", "numbers, names"),
    ],
)  # fmt: skip
def test_a_tie_that_does_not_work_is_refused_with_its_place_and_a_remedy(tie: str, message: str, remedy: str) -> None:
    axes = "axes: {lr: {values: [0.1, 0.2]}, batch_size: {values: [8, 32]}}\n"
    with pytest.raises(InputError, match=rf"(?s){message}.*{remedy}".replace("{", r"\{").replace("}", r"\}")):
        sweep_of(f"{axes}fixed: {{beta1: 0.5}}\ntie: {{{tie}}}\n")


def test_a_search_refuses_a_tie_that_makes_one_trial_of_many_values() -> None:
    with pytest.raises(InputError, match="would train the same trials"):
        search_with("tie={lr: 'min(lr, 0.1)'}")


def test_a_tie_in_a_cell_that_lacks_a_value_names_the_cell() -> None:
    with pytest.raises(InputError, match=r"tie.warmup: warmup = 10 \* clip: clip is none, not a number \(at clip=none"):
        sweep_of("axes: {clip: {values: [1.0, null]}}\ntie: {warmup: 10 * clip}\n")


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
            parse_expression(text).value(NAMES)
    else:
        expected = eval(text, PYTHON, NAMES)
        found = parse_expression(text).value(NAMES)
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
        ("-" * 201 + "1", "202 characters, more than 200"),
    ],
)
def test_what_is_not_arithmetic_is_refused_by_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_expression(text)


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
        parse_expression(text).value(NAMES)


def test_whole_numbers_stay_exact_up_to_the_largest_double() -> None:
    assert parse_expression("2 ** 1023").value({}) == 2**1023
    assert parse_expression("(0 - 1) ** 10 ** 9").value({}) == 1


@pytest.mark.parametrize("value", [None, True, "adamw", (1,)])
def test_a_name_must_be_a_number(value) -> None:
    with pytest.raises(ValueError, match=r"lr is .* not a number"):
        parse_expression("2 * lr").value({"lr": value})


def test_an_expression_knows_the_names_that_it_uses_but_not_its_functions() -> None:
    assert parse_expression("min(b, a) * b + max(2, sqrt(c))").names == ("b", "a", "c")


def test_the_deepest_expression_can_be_evaluated() -> None:
    assert parse_expression("-" * 198 + "1").value({}) == 1
