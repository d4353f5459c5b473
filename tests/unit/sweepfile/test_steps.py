import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import ids, refusal, sweep_of

from objectives.base import OBJECTIVES
from orchestrator.sweepfile.objective_fields import ObjectiveFields
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.steps import Length, steps_of_share
from orchestrator.sweepfile.strict_yaml import parse_document

LONG = "name: case\nobjective: quadratic\nsteps: 200\n"


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


GPT = "name: case\nobjective: gpt\n"
SMALL = "fixed: {context: 32}\n"
OWN = "name: own\nobjective: {command: 'python t.py {batch_size} {steps}'}\n"


def steps_of(body: str, base: str = GPT) -> list[int]:
    return [trial.config["steps"] for trial in sweep_of(body, base).trials]


@given(st.integers(1, 10**9), st.integers(1, 4096), st.integers(1, 512))
def test_tokens_are_the_nearest_number_of_steps_and_at_least_one(tokens: int, batch: int, context: int) -> None:
    fields, settings = ObjectiveFields(OBJECTIVES["gpt"]), {"batch_size": batch, "context": context}
    if tokens / (batch * context) > 10_000_000:
        with pytest.raises(ValueError, match="more than 10,000,000"):
            Length(None, tokens).steps_of(settings, fields)
        return
    steps = Length(None, tokens).steps_of(settings, fields)
    assert steps >= 1
    assert steps == 1 or abs(steps - tokens / (batch * context)) <= 0.5


def test_every_batch_size_trains_the_same_tokens_as_the_trial_of_that_many_steps() -> None:
    sweep = sweep_of(f"tokens: 16384\naxes: {{batch_size: {{values: [4, 8, 16]}}}}\n{SMALL}", GPT)
    assert [trial.steps for trial in sweep.trials] == [128, 64, 32]
    assert (sweep.steps, sweep.tokens) == (128, 16384)
    for trial in sweep.trials:
        written = sweep_of(f"steps: {trial.steps}\naxes: {{batch_size: {{values: [4, 8, 16]}}}}\n{SMALL}", GPT)
        assert trial.trial_id in ids(written)


def test_the_context_counts_too_and_what_is_not_given_has_its_default() -> None:
    assert steps_of("tokens: 8192\naxes: {context: {values: [16, 64]}}\n") == [64, 16]
    assert steps_of("tokens: 8192\nfixed: {context: 32}\n") == [32]


def test_tokens_of_one_length_are_the_sweep_of_that_many_steps() -> None:
    body = f"axes: {{warmup: {{values: [0%, 50%]}}}}\n{SMALL}"
    tokens, steps = (sweep_of(f"{length}\n{body}", GPT) for length in ("tokens: 8.2e3", "steps: 32"))
    assert [dict(trial.cell) for trial in tokens.trials] == [{"warmup": 0}, {"warmup": 16}]
    assert {*ids(tokens)} == {*ids(steps)}


def test_a_share_and_a_tie_take_the_steps_of_each_trial() -> None:
    body = """
tokens: 16384
axes: {batch_size: {values: [4, 16]}, lr: {values: [0.1]}}
fixed: {context: 32, warmup: 25%}
tie: {lr: lr / warmup, beta1: 1 - 1 / steps}
"""
    found = [trial.config for trial in sweep_of(body, GPT).trials]
    assert [(one["steps"], one["warmup"], one["lr"]) for one in found] == [(128, 32, 0.003125), (32, 8, 0.0125)]
    assert [one["beta1"] for one in found] == [1 - 1 / 128, 1 - 1 / 32]


def test_shares_on_an_axis_stay_as_written_where_the_steps_differ() -> None:
    body = f"tokens: 16384\naxes: {{batch_size: {{values: [4, 16]}}, warmup: {{values: [0%, 25%]}}}}\n{SMALL}"
    trials = sweep_of(body, GPT).trials
    assert [trial.cell["warmup"] for trial in trials] == ["0%", "25%"] * 2
    assert [trial.config["warmup"] for trial in trials] == [0, 32, 0, 8]


def test_a_tied_batch_size_gives_the_steps() -> None:
    body = f"tokens: 16384\naxes: {{lr: {{values: [0.1, 0.4]}}}}\ntie: {{batch_size: 40 * lr}}\n{SMALL}"
    assert steps_of(body) == [128, 32]


def test_a_batch_size_that_exists_in_some_cells_only_has_its_default_elsewhere() -> None:
    body = "axes: {batch_size: {values: [16], when: {optimizer: sgd}}, optimizer: {values: [sgd, adamw]}}\n"
    assert steps_of(f"tokens: 16384\n{body}{SMALL}") == [32, 64]


def test_a_search_knows_the_longest_trial_that_it_may_propose() -> None:
    axes = "axes: {lr: {log: [1e-3, 1.0]}, batch_size: {linear: [2, 64]}}\nsearch: {method: random, trials: 4}\n"
    sweep = sweep_of(f"tokens: 16384\n{axes}{SMALL}", GPT)
    assert sweep.steps == 16384 // (2 * 32)
    for trial in sweep.trials:
        assert trial.steps == round(16384 / (trial.cell["batch_size"] * 32))


def test_a_custom_trainer_gets_the_steps_of_its_batch_size_and_context() -> None:
    body = "tokens: 4096\naxes: {batch_size: {values: [1, 2, 4]}}\nfixed: {context: 64}\n"
    assert steps_of(body, OWN) == [64, 32, 16]


def overridden(text: str, **changes) -> Sweep:
    return build_sweep(parse_document(text, "case.yaml"), Overrides(**changes))


def test_steps_on_the_command_line_replace_tokens_and_tokens_replace_steps() -> None:
    tokens, steps = f"{GPT}tokens: 16384\n{SMALL}", f"{GPT}steps: 10\n{SMALL}"
    assert overridden(tokens, steps=7).steps == overridden(tokens, sets=["steps=7"]).steps == 7
    assert overridden(steps, sets=["tokens=512"]).steps == 2
    assert "tokens" not in overridden(tokens, steps=7).text


def test_a_file_has_either_steps_or_tokens() -> None:
    assert "case.yaml:4: tokens: is given together with steps" in refusal("steps: 2\ntokens: 100\n", GPT)
    message = refusal("seeds: [0]\n", GPT)
    assert "steps: is missing" in message
    assert "remedy: add `steps:` to the file, or `tokens:`" in message


@pytest.mark.parametrize(
    ("body", "base", "message"),
    [
        ("tokens: 2M\n", GPT, "case.yaml:3: tokens: '2M' is refused: input should be a valid number"),
        ("tokens: 0\n", GPT, "case.yaml:3: tokens: 0 is refused"),
        ("tokens: 1e15\n", GPT, "case.yaml:3: tokens: tokens = 1,000,000,000,000,000 are"),
        ("tokens: 1e15\naxes: {batch_size: {values: [1, 2]}}\n", GPT, "more than 10,000,000 (at batch_size=1)"),
        ("tokens: 100\n", "name: a\nobjective: function_fit\n", "function_fit has no context, so its data"),
        ("tokens: 100\n", "name: a\nobjective: quadratic\n", "quadratic has no context"),
        ("tokens: 100\nfixed: {context_start: 4, context_steps: 9}\n", GPT, "fewer tokens while the context grows"),
        ("tokens: 100\ntie: {batch_size: steps}\n", GPT, "case.yaml:4: tie.batch_size: needs the steps"),
        (
            "tokens: 100\nfixed: {warmup: 5%}\ntie: {context: 2 * clip, clip: warmup}\n",
            GPT,
            "case.yaml:5: tie.context: needs the steps",
        ),
        ("tokens: 100\nfixed: {batch_size: 2}\n", OWN, "without values called batch_size and context"),
        ("tokens: 100\nfixed: {context: 2, batch_size: 0}\n", OWN, "batch_size = 0 must be a positive number"),
        ("tokens: 100\nfixed: {context: 2}\naxes: {batch_size: {values: [1, w]}}\n", OWN, "batch_size = 'w' must"),
    ],
)  # fmt: skip
def test_tokens_that_are_no_number_of_steps_are_refused_with_their_line(body: str, base: str, message: str) -> None:
    assert message in refusal(body, base)
