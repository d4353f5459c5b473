from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import sweep_of

from objectives.base import OBJECTIVES
from orchestrator.base.cell import Trial
from orchestrator.base.errors import InputError
from orchestrator.sweepfile.fields import ObjectiveFields
from orchestrator.sweepfile.lengths import Length
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

GPT = "name: case\nobjective: gpt\n"
SMALL = "fixed: {context: 32}\n"
OWN = "name: own\nobjective: {command: 'python t.py {batch_size} {steps}'}\n"


def steps_of(body: str, base: str = GPT) -> list[int]:
    return [trial.config["steps"] for trial in sweep_of(body, base).trials]


def refusal(body: str, base: str = GPT) -> str:
    with pytest.raises(InputError) as caught:
        sweep_of(body, base)
    return str(caught.value)


def ids(trials: tuple[Trial, ...]) -> set[str]:
    return {trial.trial_id for trial in trials}


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
        assert trial.trial_id in ids(written.trials)


def test_the_context_counts_too_and_what_is_not_given_has_its_default() -> None:
    assert steps_of("tokens: 8192\naxes: {context: {values: [16, 64]}}\n") == [64, 16]
    assert steps_of("tokens: 8192\nfixed: {context: 32}\n") == [32]


def test_tokens_of_one_length_are_the_sweep_of_that_many_steps() -> None:
    body = f"axes: {{warmup: {{values: [0%, 50%]}}}}\n{SMALL}"
    tokens, steps = (sweep_of(f"{length}\n{body}", GPT) for length in ("tokens: 8.2e3", "steps: 32"))
    assert [dict(trial.cell) for trial in tokens.trials] == [{"warmup": 0}, {"warmup": 16}]
    assert ids(tokens.trials) == ids(steps.trials)


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
    assert "case.yaml:4: tokens: stands beside steps" in refusal("steps: 2\ntokens: 100\n")
    message = refusal("seeds: [0]\n")
    assert "steps: is missing" in message
    assert "remedy: add `steps:` to the file, or `tokens:`" in message


@pytest.mark.parametrize(
    ("body", "base", "message"),
    [
        ("tokens: 2M\n", GPT, "case.yaml:3: tokens: '2M' is refused: input should be a valid number"),
        ("tokens: 0\n", GPT, "case.yaml:3: tokens: 0 is refused"),
        ("tokens: 1e15\n", GPT, "case.yaml:3: tokens: tokens = 1,000,000,000,000,000 are"),
        ("tokens: 1e15\naxes: {batch_size: {values: [1, 2]}}\n", GPT, "more than 10,000,000 (at batch_size=1)"),
        ("tokens: 100\n", "name: a\nobjective: function_fit\n", "function_fit has no context, so its data are"),
        ("tokens: 100\n", "name: a\nobjective: quadratic\n", "quadratic has no context"),
        ("tokens: 100\nfixed: {context_start: 4, context_steps: 9}\n", GPT, "fewer tokens while the context grows"),
        ("tokens: 100\ntie: {batch_size: steps}\n", GPT, "case.yaml:4: tie.batch_size: needs the steps"),
        (
            "tokens: 100\nfixed: {warmup: 5%}\ntie: {context: 2 * clip, clip: warmup}\n",
            GPT,
            "case.yaml:5: tie.context: needs the steps",
        ),
        ("tokens: 100\nfixed: {batch_size: 2}\n", OWN, "without values called batch_size and context"),
        ("tokens: 100\nfixed: {context: 2, batch_size: 0}\n", OWN, "batch_size = 0 is no number above 0"),
        ("tokens: 100\nfixed: {context: 2}\naxes: {batch_size: {values: [1, w]}}\n", OWN, "batch_size = 'w' is"),
    ],
)  # fmt: skip
def test_tokens_that_are_no_number_of_steps_are_refused_with_their_line(body: str, base: str, message: str) -> None:
    assert message in refusal(body, base)
