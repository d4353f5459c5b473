from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import sweep_of

from orchestrator.base.errors import InputError
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.shares import steps_of_share
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

LONG = "name: case\nobjective: quadratic\nsteps: 200\n"


def ids(sweep: Sweep) -> list[str]:
    return [trial.trial_id for trial in sweep.trials]


def refusal(body: str) -> str:
    with pytest.raises(InputError) as caught:
        sweep_of(body)
    return str(caught.value)


@pytest.mark.parametrize(
    ("share", "number"),
    [
        ("fixed: {warmup: 5%}", "fixed: {warmup: 10}"),
        ("axes: {warmup: {values: [0%, 5%, 20%]}}", "axes: {warmup: {values: [0, 10, 40]}}"),
        ("axes: {warmup: {values: [0, 2.5%, 40]}}", "axes: {warmup: {values: [0, 5, 40]}}"),
        ("fixed: {clip: null, rollback: 0, rollback_every: 10%}", "fixed: {rollback: 0, rollback_every: 20}"),
        ("fixed: {warmup: 5%}\ntie: {lr: 0.01 * warmup}", "fixed: {warmup: 10, lr: 0.1}"),
        (
            "axes: {beta1: {values: [0.1, 0.2], when: {warmup: 5%}}, warmup: {values: [0%, 5%]}}",
            "axes: {beta1: {values: [0.1, 0.2], when: {warmup: 10}}, warmup: {values: [0, 10]}}",
        ),
        (
            "axes: {lr: {values: [0.1, 0.2]}, warmup: {values: [5%, 10%]}}\nzip: [[lr, warmup]]",
            "axes: {lr: {values: [0.1, 0.2]}, warmup: {values: [10, 20]}}\nzip: [[lr, warmup]]",
        ),
    ],
)
def test_a_share_of_the_steps_makes_the_trials_of_that_number_of_steps(share: str, number: str) -> None:
    assert ids(sweep_of(share, LONG)) == ids(sweep_of(number, LONG))


def test_the_cells_have_whole_steps_and_the_file_in_the_results_keeps_the_shares() -> None:
    sweep = sweep_of("axes: {warmup: {values: [0%, 5%]}}\nfixed: {rollback: 0, rollback_every: 10%}\n", LONG)
    assert [dict(trial.cell) for trial in sweep.trials] == [{"warmup": 0}, {"warmup": 10}]
    again = build_sweep(parse_document(sweep.text, "sweep.yaml"))
    assert ids(again) == ids(sweep)
    shorter = build_sweep(parse_document(sweep.text, "sweep.yaml"), Overrides(steps=100))
    assert [(trial.cell["warmup"], trial.config["rollback_every"]) for trial in shorter.trials] == [(0, 10), (5, 10)]


def test_shares_can_be_given_on_the_command_line() -> None:
    document = parse_document(LONG, "case.yaml")
    sweep = build_sweep(
        document, Overrides(axes=["warmup=values:0%,5%"], sets=["fixed.adagc_warmup=1%", "fixed.adagc=1"])
    )
    assert [(trial.cell["warmup"], trial.config["adagc_warmup"]) for trial in sweep.trials] == [(0, 2), (10, 2)]


@given(st.integers(1, 10_000_000), st.decimals(0, 100, places=3))
def test_a_share_is_the_nearest_number_of_steps_and_only_nothing_is_none(steps: int, share: object) -> None:
    found = steps_of_share(f"{share}%", steps)
    exact = float(share) * steps / 100  # type: ignore[arg-type]
    assert abs(found - exact) <= 0.5 + 1e-6 or found == 1
    assert (found == 0) == (exact == 0)
    assert found <= steps


@pytest.mark.parametrize(
    "text", ["-1%", "120%", "%", "1e1%", "5%%", "100.001%", "- 1 %", "5.%", "\u0665%", "9" * 500 + "%"]
)
def test_what_is_no_share_of_the_steps_is_refused_with_its_line(text: str) -> None:
    message = refusal(f"fixed: {{warmup: '{text}'}}\n")
    assert message.startswith("case.yaml:4: fixed.warmup: ")
    assert "is refused: not a share of the steps" in message
    assert "remedy: write 0% to 100%, such as 5% or 2.5%" in message


def test_a_space_before_the_percent_sign_is_refused_with_the_right_form() -> None:
    message = refusal("axes: {warmup: {values: [0, 5 %]}}\n")
    assert "case.yaml:4: axes.warmup: '5 %' is refused: there is a space in it" in message
    assert "remedy: write 5%" in message


def test_shares_that_are_the_same_number_of_steps_are_refused_as_values_of_an_axis() -> None:
    message = refusal("axes:\n  warmup:\n    values: [0%, 5%, 4%]\n")
    assert "case.yaml:6: axes.warmup: 5% and 4% are both 1 of 20 steps" in message


def test_a_field_of_another_unit_takes_no_share() -> None:
    assert "fixed.lr: '5%' is refused" in refusal("fixed: {lr: 5%}\n")


def test_a_share_is_refused_where_the_field_refuses_its_number_of_steps() -> None:
    message = refusal("fixed: {rollback: 0, rollback_every: 0%}\n")
    assert "fixed.rollback_every: rollback_every = 0% of 20 steps: 0 is refused" in message
    message = refusal("axes: {rollback_every: {values: [5, 0%]}}\nfixed: {rollback: 0}\n")
    assert "axes.rollback_every: rollback_every = 0% of 20 steps: 0 is refused" in message


def test_a_custom_trainer_gets_a_percentage_as_it_is_written() -> None:
    own = "name: own\nobjective: {command: 'python t.py {warmup}'}\nsteps: 20\n"
    (trial,) = sweep_of("fixed: {warmup: 5%}\n", own).trials
    assert trial.config["warmup"] == "5%"
