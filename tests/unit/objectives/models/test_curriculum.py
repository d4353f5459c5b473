import pytest
import torch
from pydantic import ValidationError

from objectives.base import GptConfig
from objectives.models.gpt_knobs import context_lengths


def lengths(start: int, steps: int, context: int, num_ages: int) -> list[int]:
    """Of one member at its first steps."""
    return [
        int(context_lengths(torch.tensor([start]), torch.tensor([steps]), torch.tensor([age]), context))
        for age in range(num_ages)
    ]


@pytest.mark.parametrize(("start", "steps", "context"), [(1, 7, 32), (8, 100, 32), (3, 1, 33), (5, 60, 5), (2, 10, 64)])
def test_the_context_grows_along_a_line_rounded_down_to_whole_bytes(start: int, steps: int, context: int) -> None:
    found = lengths(start, steps, context, steps + 20)
    # In whole numbers: (context - start) * t / steps is exact there.
    assert found == [start + (context - start) * min(t, steps) // steps for t in range(steps + 20)]
    assert found[0] == start
    assert found[steps:] == [context] * 20
    assert found == sorted(found)


def test_a_member_without_a_curriculum_has_all_of_the_context_from_the_first_step() -> None:
    assert lengths(32, 0, 32, 3) == [32, 32, 32]
    assert lengths(32, 10, 32, 3) == [32, 32, 32]


def test_the_length_of_a_member_depends_on_nobody_else() -> None:
    start_K = torch.tensor([1, 4, 32, 31, 16])
    steps_K = torch.tensor([5, 13, 0, 1000, 7])
    age_K = torch.tensor([3, 12, 4, 999, 70])
    together = context_lengths(start_K, steps_K, age_K, 32)
    assert together.dtype == torch.int64
    for k in range(5):
        alone = context_lengths(start_K[k : k + 1], steps_K[k : k + 1], age_K[k : k + 1], 32)
        assert torch.equal(alone, together[k : k + 1])


def test_ages_may_be_whole_numbers_in_double_precision_as_an_optimizer_counts_them() -> None:
    start_K, steps_K, age_K = (torch.full((1,), value) for value in (8, 9_999_991, 9_999_990))
    assert torch.equal(
        context_lengths(start_K, steps_K, age_K.double(), 65_536), context_lengths(start_K, steps_K, age_K, 65_536)
    )
    assert int(context_lengths(start_K, steps_K, age_K, 65_536)) == 65_535


def test_a_start_beyond_the_context_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"context_start = 33 is longer than context = 32"):
        GptConfig(steps=10, context=32, context_start=33, context_steps=5)
    GptConfig(steps=10, context=32, context_start=32, context_steps=5)


def test_a_start_without_steps_to_grow_in_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"context_start = 8 needs context_steps"):
        GptConfig(steps=10, context=32, context_start=8)
    # An axis over the start may have null beside numbers.
    GptConfig(steps=10, context=32, context_start=None, context_steps=5)
