"""Spectral Alignment as a rival of the warning."""

import pytest
import torch
from pack_cases import SMALL, trainer_of

from benchmarks.spectral_alignment import COLUMNS, alignment_readings, sign_share
from objectives.base import OBJECTIVES
from objectives.models import gpt_model


def test_inputs_on_both_sides_of_the_singular_vector_share_it_and_those_on_one_side_do_not() -> None:
    weight_KDE = torch.diag(torch.tensor([3.0, 1.0, 0.5]))[None]
    x_KND = torch.tensor([[[1.0, 5.0, 0.0], [2.0, -5.0, 0.0], [-1.0, 3.0, 0.0], [-4.0, 0.0, 1.0]]])
    assert sign_share(x_KND, weight_KDE).tolist() == [0.5]
    assert sign_share(x_KND.abs(), weight_KDE).tolist() == [1.0]


def test_the_sign_of_a_singular_vector_does_not_matter() -> None:
    torch.manual_seed(0)
    x_KND, weight_KDE = torch.randn(3, 40, 6), torch.randn(3, 6, 9)
    assert torch.equal(sign_share(x_KND, weight_KDE), sign_share(-x_KND, weight_KDE))
    assert torch.equal(sign_share(x_KND, weight_KDE), sign_share(x_KND, -weight_KDE))


@pytest.fixture
def trainer():
    """Two members of a small `gpt`."""
    config = OBJECTIVES["gpt"].config_class(steps=10, **SMALL["gpt"])
    return trainer_of("gpt", [config, config], [0, 1])


def test_a_member_s_alignment_is_its_own_and_a_broken_one_has_none(trainer) -> None:
    weights = {name: weight.detach().clone() for name, weight in trainer.weights.items()}
    tokens_KBS, knobs = trainer._batch()
    both = alignment_readings(trainer.structure, weights, tokens_KBS, knobs)
    assert tuple(both) == COLUMNS
    assert all(((value_K >= 0.5) & (value_K <= 1)).all() for value_K in both.values())
    weights["head"][1, 0, 0] = float("nan")
    broken = alignment_readings(trainer.structure, weights, tokens_KBS, knobs)
    assert broken["alignment/mean"][0] == both["alignment/mean"][0]
    assert broken["alignment/mean"][1].isnan()


def test_measuring_leaves_the_model_as_it_was(trainer) -> None:
    product = gpt_model.autocast_product
    tokens_KBS, knobs = trainer._batch()
    alignment_readings(trainer.structure, trainer.weights, tokens_KBS, knobs)
    assert gpt_model.autocast_product is product
