"""Bursts of bad batches and a change of the text in mid-run: who trains on what, and what is told of it."""

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch
from curve_cases import assert_goes_on_as_alone, assert_resumes
from pack_cases import SMALL, trainer_of
from pydantic import ValidationError
from sweep_cases import sweep_of

from objectives.base import GptConfig
from objectives.models.data import load_corpus
from objectives.models.drawn import random_bytes
from objectives.models.origins import batch_origin, batch_text
from orchestrator.base.errors import InputError

SIZES = SMALL["gpt"]
NUM_STEPS = 12


@pytest.fixture
def config(texts: tuple[str, str]) -> GptConfig:
    return GptConfig(steps=NUM_STEPS, lr=1e-2, text=texts[:1], shift_at=7, shift_text=texts[1:], **SIZES)


def batches(configs: list[GptConfig], seeds: list[int]) -> torch.Tensor:
    """The bytes that each member trains on at each step, (steps, K, B, S)."""
    trainer = trainer_of("gpt", configs, seeds)
    found = []
    for _ in range(NUM_STEPS):
        found.append(trainer._batch()[0])
        trainer.step()
    return torch.stack(found)


def test_each_member_trains_on_the_other_text_from_its_own_step_on(config: GptConfig) -> None:
    shifts = [7, 3, None, 0]
    found = batches([config.model_copy(update={"shift_at": at}) for at in shifts], [0, 0, 1, 1])
    for k, at in enumerate(shifts):
        is_digit_T = (found[:, k] < 58).flatten(1).all(dim=1).tolist()
        assert is_digit_T == [at is not None and step >= at for step in range(NUM_STEPS)]


def test_a_burst_is_as_many_batches_of_random_bytes_in_a_row_as_the_member_has(config: GptConfig) -> None:
    base = config.model_copy(update={"shift_at": None, "shift_text": ()})
    bursts = [(2, 0), (2, 3), (2, 5), (None, 5)]
    changes = [{"burst_at": at, "burst_length": length} for at, length in bursts]
    found = batches([base.model_copy(update=change) for change in changes], [4] * len(bursts))
    for step, (k, (at, length)) in itertools.product(range(NUM_STEPS), enumerate(bursts)):
        is_in = at is not None and at <= step < at + length
        expected = torch.from_numpy(random_bytes(4, step, (2, 9))).long() if is_in else found[step, -1]
        assert torch.equal(found[step, k], expected)


def test_a_burst_adds_to_a_share_of_corrupted_batches_with_the_same_bytes(config: GptConfig) -> None:
    share = config.model_copy(update={"corrupted": 0.5})
    both = share.model_copy(update={"burst_at": 2, "burst_length": 4})
    everything = config.model_copy(update={"corrupted": 1.0})
    alone, together, random = batches([share, both, everything], [3] * 3).unbind(1)
    for step in range(NUM_STEPS):
        assert torch.equal(together[step], random[step] if 2 <= step < 6 else alone[step])


def test_a_member_trains_in_a_pack_as_it_does_alone_and_after_others_have_left(config: GptConfig) -> None:
    changes = [{}, {"shift_at": 3}, {"burst_at": 5, "burst_length": 2}, {"shift_at": None, "shift_text": ()}]
    configs = [config.model_copy(update=change) for change in changes]
    assert_goes_on_as_alone(partial(trainer_of, "gpt"), configs, [0, 0, 1, 2], [0, 2], NUM_STEPS)


def test_a_trainer_that_resumes_after_the_shift_goes_on_bit_for_bit(config: GptConfig, tmp_path: Path) -> None:
    assert_resumes(partial(trainer_of, "gpt"), [config], [0], 9, NUM_STEPS, tmp_path)


def test_the_origin_of_a_batch_is_in_the_text_of_its_step(config: GptConfig, texts: tuple[str, str]) -> None:
    bursting = config.model_copy(update={"burst_at": 8, "burst_length": 2})
    found = batches([config], [5])
    for step in range(NUM_STEPS):
        corpus = load_corpus(texts[:1] if step < 7 else texts[1:])
        for origin, sequence in zip(batch_origin(config, 5, step), found[step, 0], strict=True):
            assert torch.equal(corpus.training[origin.start : origin.start + 9].long(), sequence)
            assert origin.file == texts[step >= 7]
        told = batch_text(bursting, 5, step)
        assert texts[step >= 7] in told
        assert told.endswith(", replaced by random bytes") == (step in (8, 9))


def test_the_trainer_is_validated_on_the_text_of_the_beginning(config: GptConfig) -> None:
    shifted, plain = (trainer_of("gpt", [one], [0]) for one in (config, config.model_copy(update={"shift_at": None})))
    for _ in range(7):
        shifted.step(), plain.step()
    assert torch.equal(shifted.validate([0]), plain.validate([0]))


def test_a_shift_to_the_same_text_is_refused(texts: tuple[str, str]) -> None:
    with pytest.raises(ValidationError, match="needs a shift_text other than text"):
        GptConfig(steps=10, shift_at=3)
    with pytest.raises(ValidationError, match="needs a shift_text other than text"):
        GptConfig(steps=10, shift_at=3, text=texts[:1], shift_text=texts[:1])


BASE = "name: case\nobjective: gpt\nsteps: 20\n"
REFUSED = {
    "fixed: {shift_at: 5, shift_text: [missing.txt]}\n": ("case.yaml:4", "fixed.shift_text", "matches no file"),
    "fixed: {shift_text: ['case.txt']}\n": ("fixed.shift_text", "shift_at"),
    "fixed: {burst_length: 5}\n": ("fixed.burst_length", "burst_at"),
    "fixed: {shift_at: 5}\n": ("shift_at = 5 needs a shift_text other than text",),
    "fixed: {burst_at: -1}\n": ("case.yaml:4", "fixed.burst_at", "-1"),
}


@pytest.mark.parametrize("body", REFUSED)
def test_settings_that_do_not_fit_are_refused(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.txt").write_text("text" * 3000)
    with pytest.raises(InputError) as refused:
        sweep_of(body, BASE)
    assert all(word in str(refused.value) for word in REFUSED[body]), str(refused.value)


def test_they_are_part_of_a_trial_only_where_they_act_and_lengths_share_a_pack(texts: tuple[str, str]) -> None:
    (plain,) = sweep_of("", BASE).trials
    assert not {"burst_at", "burst_length", "shift_at", "shift_text"} & set(plain.config)
    axes = "axes: {burst_length: {values: [0, 4, 16]}}\n"
    trials = sweep_of(f"{axes}fixed: {{burst_at: 8, shift_at: 4, shift_text: [{texts[1]}]}}\n", BASE).trials
    assert [trial.config["burst_length"] for trial in trials] == [0, 4, 16]
    assert {tuple(trial.config["shift_text"]) for trial in trials} == {(texts[1],)}
    assert len({trial.trial_id for trial in trials}) == 3
