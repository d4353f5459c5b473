from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import sweep_of

from orchestrator.answers.plan import PlanQuery
from orchestrator.base.errors import InputError
from orchestrator.sweepfile.custom_trainer import PARTS, whole_batch
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

OWN = "name: own\nobjective: {command: 'true {micro_batch} {accumulation} {workers}'}\nsteps: 20\n"
SIZES = st.integers(1, 10_000)


def sizes(body: str, base: str = OWN) -> list[tuple[int, ...]]:
    names = ("global_batch", "micro_batch", "accumulation", "workers")
    return [tuple(trial.config[name] for name in names) for trial in sweep_of(body, base).trials]


def refusal(body: str, base: str = OWN) -> str:
    with pytest.raises(InputError) as caught:
        sweep_of(body, base)
    return str(caught.value)


@given(SIZES, SIZES, st.integers(1, 64), st.sampled_from(list(PARTS.values())))
def test_any_of_the_three_follows_from_the_other_two(micro: int, accumulation: int, workers: int, left: str) -> None:
    whole = {"global_batch": micro * accumulation * workers, "micro_batch": micro, "accumulation": accumulation}
    given = {name: size for name, size in whole.items() if name != left}
    assert whole_batch(given, workers) == whole


@given(SIZES, SIZES, st.integers(1, 64))
def test_a_global_batch_is_whole_or_refused(global_batch: int, micro: int, workers: int) -> None:
    given = {"global_batch": global_batch, "micro_batch": micro}
    if global_batch % (micro * workers):
        with pytest.raises(ValueError, match="is not a multiple of micro_batch x workers"):
            whole_batch(given, workers)
    else:
        assert whole_batch(given, workers)["accumulation"] * micro * workers == global_batch


def test_a_command_gets_what_follows_from_the_section() -> None:
    assert sizes("batch: {global: 256, micro: 8, workers: 4}\n") == [(256, 8, 8, 4)]
    assert sizes("batch: {micro: 8, accumulation: 2}\nresources: {workers: 3}\n") == [(48, 8, 2, 3)]
    assert sizes("batch: {global: 256, accumulation: 2}\n") == [(256, 128, 2, 1)]


def test_sizes_may_be_axes_fixed_or_tied() -> None:
    axes = "axes: {global_batch: {values: [32, 64]}, micro_batch: {values: [4, 8]}}\n"
    assert sizes(f"batch: {{workers: 4}}\n{axes}") == [(32, 4, 2, 4), (32, 8, 1, 4), (64, 4, 4, 4), (64, 8, 2, 4)]
    assert sizes("batch: {micro: 8}\nfixed: {accumulation: 2}\n") == [(16, 8, 2, 1)]
    tied = "batch: {micro: 4}\naxes: {lr: {values: [1, 2]}}\ntie: {global_batch: 8 * lr}\n"
    assert sizes(tied, OWN.replace("{workers}", "{workers} {lr}")) == [(8, 4, 2, 1), (16, 4, 4, 1)]


def test_ties_may_use_the_numbers_of_the_section() -> None:
    base = OWN.replace("{workers}", "{lr}")
    (trial,) = sweep_of("batch: {global: 64, micro: 4}\ntie: {lr: 0.1 * global_batch / 256}\n", base).trials
    assert trial.config["lr"] == 0.025


def test_tokens_are_counted_with_the_global_batch() -> None:
    base = OWN.replace("steps: 20\n", "tokens: 4096\n")
    body = "batch: {micro: 2, workers: 4}\naxes: {accumulation: {values: [1, 4]}}\nfixed: {context: 16}\n"
    assert [trial.steps for trial in sweep_of(body, base).trials] == [32, 8]
    assert [trial.steps for trial in sweep_of("batch: {micro: 2, global: 8}\nfixed: {context: 16}\n", base).trials] == [
        32
    ]


def test_the_file_in_the_results_makes_the_same_trials() -> None:
    sweep = sweep_of("batch: {micro: 2, workers: 4}\naxes: {accumulation: {values: [1, 4]}}\n", OWN)
    again = build_sweep(parse_document(sweep.text, "sweep.yaml"))
    assert [trial.trial_id for trial in again.trials] == [trial.trial_id for trial in sweep.trials]


def test_the_plan_shows_what_follows(tmp_path: Path) -> None:
    sweep = sweep_of("batch: {micro: 8, workers: 4}\naxes: {global_batch: {values: [32, 256]}}\n", OWN)
    lines = PlanQuery().ask((sweep, tmp_path)).lines()
    assert "batch:    accumulation = global_batch / (micro_batch x 4 workers): 1 .. 8" in lines


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("batch: {global: 100, micro: 8, workers: 4}\n", "case.yaml:4: batch.global: global_batch = 100 is not"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, 9]}}\n", "axes.global_batch: global_batch = 9 is not"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, w]}}\n", "global_batch = 'w' must be a positive"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, true]}}\n", "global_batch = True must be a positive"),
        ("batch: {micro: 8}\naxes: {global_batch: {values: [8, 0]}}\n", "global_batch = 0 must be a positive"),
        ("batch: {micro: 8}\ntie: {global_batch: 10 / 4}\n", "global_batch = 2.5 must be"),
        ("batch: {micro: 8}\n", "case.yaml:4: batch: micro_batch of global_batch, micro_batch, accumulation given"),
        ("batch: {}\n", "case.yaml:4: batch: none of"),
        ("batch: {micro: 8, global: 8, accumulation: 1}\n", "the third follows from two"),
        ("batch: {micro: 8, global: 8}\nfixed: {micro_batch: 8}\n", "batch.micro: micro_batch is given elsewhere"),
        ("batch: {micro: 8, global: 8, workers: 2}\nresources: {workers: 4}\n", "2 differs from resources.workers = 4"),
        ("batch: {micro: 0, global: 8}\n", "case.yaml:4: batch.micro: 0 is refused"),
        ("batch: {mikro: 8}\n", "case.yaml:4: batch.mikro: unknown key"),
        ("batch: 8\n", "case.yaml:4: batch: 8 is refused"),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_whole_is_refused_with_its_line(body: str, message: str) -> None:
    assert message in refusal(body)


def test_built_in_objectives_have_no_such_section() -> None:
    message = refusal("batch: {micro: 8, global: 8}\n", "name: case\nobjective: gpt\nsteps: 20\n")
    assert "case.yaml:4: batch: applies to custom trainers only" in message
