"""Draws without torch are those of torch's own generators."""

import numpy as np
import pytest
import torch

from objectives.draws import integers, seed_of, uniforms
from objectives.stacking import seeded_generator

NUMBERS = [(0,), (5, 1, 0), (2**31, 8, 3), (2**63, 15, 10**6)]


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("bound", [1, 256, 10**6 + 7, 2**28 - 1, 2**28, 2**32 - 1, 2**32, 2**40 + 3])
def test_integers_are_those_of_torch_where_32_bits_do_and_where_they_do_not(
    bound: int, numbers: tuple[int, ...]
) -> None:
    expected = torch.randint(bound, (37, 3), generator=seeded_generator(*numbers))
    assert np.array_equal(integers(bound, (37, 3), *numbers), expected.numpy())


@pytest.mark.parametrize("numbers", NUMBERS)
def test_bytes_are_those_of_torch(numbers: tuple[int, ...]) -> None:
    expected = torch.randint(256, (5, 7), generator=seeded_generator(*numbers), dtype=torch.uint8)
    assert np.array_equal(integers(256, (5, 7), *numbers), expected.numpy())


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("count", [1, 15, 16, 700])
def test_uniform_numbers_are_those_of_torch(count: int, numbers: tuple[int, ...]) -> None:
    expected = torch.rand(count, generator=seeded_generator(*numbers), dtype=torch.float64)
    assert np.array_equal(uniforms(count, *numbers), expected.numpy())


def test_neighbouring_seeds_and_their_order_give_other_generators() -> None:
    seeds = [seed_of(*numbers) for numbers in [(0, 1), (1, 0), (0, 1, 0), (0, 2), (1,)]]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
