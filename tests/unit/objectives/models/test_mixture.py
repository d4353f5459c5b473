"""A second text that is mixed into batches: who trains on what, changes in mid-run, and the loss on each text."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from curve_cases import Curves, assert_goes_on_as_alone, assert_resumes, assert_same, curves
from diagnosis_cases import row_of
from pack_cases import SMALL, trainer_of
from pydantic import ValidationError
from sweep_cases import sweep_of

from objectives.base import ExecutionPlan, GptConfig
from objectives.models.data import held_out_batches, load_corpus
from objectives.models.drawn import mixture_draws
from objectives.models.gpt import GptTrainer
from objectives.models.origins import batch_origin
from orchestrator.base.errors import InputError
from orchestrator.causes.diagnosis import batch_texts_of_objectives

SIZES = {**SMALL["gpt"], "batch_size": 6}
NUM_STEPS = 10


@pytest.fixture
def config(texts: tuple[str, str]) -> GptConfig:
    return GptConfig(steps=NUM_STEPS, lr=1e-2, text=texts[:1], mix_text=texts[1:], mix_share=0.5, **SIZES)


def with_share(config: GptConfig, share: float) -> GptConfig:
    return config.model_copy(update={"mix_share": share})


def trained(config: GptConfig) -> Curves:
    return curves(trainer_of("gpt", [config], [3]), NUM_STEPS)


def are_digits(configs: list[GptConfig], seeds: list[int]) -> np.ndarray:
    """Which sequences of each step and member are of the second text, (steps, K, B)."""
    trainer = trainer_of("gpt", configs, seeds)
    found = []
    for _ in range(NUM_STEPS):
        is_digit = trainer._batch()[0] < 58
        assert (is_digit.all(-1) == is_digit.any(-1)).all(), "a sequence is of one text"
        found.append(is_digit.all(-1))
        trainer.step()
    return torch.stack(found).numpy()


def test_each_member_has_its_share_and_a_smaller_share_has_some_of_the_same_sequences(config: GptConfig) -> None:
    shares = [0.0, 0.3, 0.7, 1.0, 0.3]
    found = are_digits([with_share(config, share) for share in shares], [0, 0, 0, 0, 1])
    draws = [np.stack([mixture_draws(seed, step, 6) for step in range(NUM_STEPS)]) for seed in (0, 1)]
    for k, share in enumerate(shares):
        assert (found[:, k] == (draws[k == 4] < share)).all()
    assert 0 < found[:, 1].sum() < found[:, 2].sum() < found[:, 3].sum() == NUM_STEPS * 6


def test_without_a_share_a_run_is_the_same_to_the_bit_as_without_the_fields(config: GptConfig) -> None:
    plain = GptConfig(steps=NUM_STEPS, lr=1e-2, text=config.text, **SIZES)
    assert_same(
        trained(with_share(config, 0.0)),
        trained(plain),
    )


def test_all_of_the_second_text_is_a_run_on_it(config: GptConfig) -> None:
    alone = GptConfig(steps=NUM_STEPS, lr=1e-2, text=config.mix_text, **SIZES)
    assert_same(
        trained(with_share(config, 1.0)),
        trained(alone),
    )


def test_an_intervention_switches_the_mixture_as_a_shift_of_the_text_does(config: GptConfig) -> None:
    entries = ({"at": 6, "set": {"mix_share": 1.0}},)
    switch = GptConfig.model_validate({**config.model_dump(), "mix_share": 0.0, "interventions": entries})
    shift = GptConfig(steps=NUM_STEPS, lr=1e-2, text=config.text, shift_at=6, shift_text=config.mix_text, **SIZES)
    assert_same(trained(switch), trained(shift))


def test_a_member_trains_in_a_pack_as_alone_and_resumes_to_the_bit(config: GptConfig, tmp_path: Path) -> None:
    entries = ({"at": 3, "set": {"mix_share": 0.9}, "over": 4},)
    ramp = GptConfig.model_validate({**config.model_dump(), "mix_share": 0.1, "interventions": entries})
    configs = [config, ramp, with_share(config, 0.0), with_share(config, 1.0)]
    assert_goes_on_as_alone(partial(trainer_of, "gpt"), configs, [0, 0, 1, 2], [1, 3], NUM_STEPS)
    assert_resumes(partial(trainer_of, "gpt"), configs, [0, 0, 1, 2], 5, NUM_STEPS, tmp_path)


def test_the_native_kernel_trains_ahead_on_the_same_mixture(config: GptConfig) -> None:
    ramp = {"at": 4, "set": {"mix_share": 0.9}, "over": 2}
    changed = GptConfig.model_validate({**config.model_dump(), "interventions": (ramp,)})
    plan = ExecutionPlan(2, kernels="native")
    one, many = (GptTrainer([config, changed], [0, 1], "cpu", plan) for _ in range(2))
    expected = [one.step()["loss"] for _ in range(NUM_STEPS)]
    found = [metrics["loss"] for metrics in many.steps_ahead(NUM_STEPS)]
    assert all(map(torch.equal, found, expected))


def test_readings_have_the_loss_on_the_held_out_part_of_each_text(config: GptConfig) -> None:
    trainer = trainer_of("gpt", [with_share(config, 1.0), with_share(config, 0.0)], [0, 0])
    for _ in range(NUM_STEPS - 1):
        trainer.step()
    found = trainer.own_readings(slice(None))
    assert torch.equal(found["domain_loss/text"], trainer.validate([0, 1]))
    other = load_corpus(config.mix_text)
    trainer.corpus = other
    assert torch.equal(found["domain_loss/mix_text"], trainer.validate([0, 1]))
    assert found["domain_loss/mix_text"][0] < found["domain_loss/mix_text"][1]
    assert held_out_batches(other, 1, 1, 8).max() < 58
    plain = GptConfig(steps=3, text=config.text, **SIZES)
    assert not [name for name in trainer_of("gpt", [plain], [0]).own_readings(slice(None)) if "domain" in name]


def test_the_origin_of_each_sequence_is_in_the_text_that_it_is_from(config: GptConfig, texts: tuple[str, str]) -> None:
    is_digit = are_digits([config], [5])[:, 0]
    for step in range(NUM_STEPS):
        assert [origin.file == texts[1] for origin in batch_origin(config, 5, step)] == is_digit[step].tolist()


def test_a_diagnosis_knows_the_text_of_a_step_after_batches_that_were_left_out(
    config: GptConfig, texts: tuple[str, str]
) -> None:
    entries = ({"at": 3, "skip": 4}, {"at": 5, "set": {"mix_share": 1.0}})
    changed = GptConfig.model_validate({**with_share(config, 0.0).model_dump(), "interventions": entries})
    text = batch_texts_of_objectives(row_of("diverged", 8, changed.model_dump()), np.array([], dtype=np.int64))
    told = [(text(step) or "").count("digits.txt") > 0 for step in range(NUM_STEPS)]
    trainer, seen = trainer_of("gpt", [changed], [0]), []
    for _ in range(NUM_STEPS):
        trainer.step()
        _, tokens_KBS, _ = trainer._drawn
        seen.append(bool((tokens_KBS < 58).all()))
    assert told == seen == [False] * 5 + [True] * (NUM_STEPS - 5)


def test_a_mixture_needs_another_text(texts: tuple[str, str]) -> None:
    for more in ({}, {"mix_text": texts[:1]}):
        with pytest.raises(ValidationError, match="needs a mix_text other than text"):
            GptConfig(steps=10, text=texts[:1], mix_share=0.1, **more)
    with pytest.raises(ValidationError, match="needs a mix_text other than text"):
        GptConfig.model_validate({"steps": 10, "interventions": ({"at": 3, "set": {"mix_share": 0.5}},)})


BASE = "name: case\nobjective: gpt\nsteps: 20\n"
REFUSED = {
    "fixed: {mix_text: ['case.txt']}\n": ("fixed.mix_text", "mix_share"),
    "fixed: {mix_share: 0.5, mix_text: [missing.txt]}\n": ("case.yaml:4", "fixed.mix_text", "matches no file"),
    "fixed: {mix_share: 0.5}\n": ("mix_share = 0.5 needs a mix_text other than text",),
    "fixed: {mix_share: 2, mix_text: ['case.txt']}\n": ("case.yaml:4", "fixed.mix_share", "2"),
}


@pytest.mark.parametrize("body", REFUSED)
def test_settings_that_do_not_fit_are_refused(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.txt").write_text("text" * 3000)
    with pytest.raises(InputError) as refused:
        sweep_of(body, BASE)
    assert all(word in str(refused.value) for word in REFUSED[body]), str(refused.value)
