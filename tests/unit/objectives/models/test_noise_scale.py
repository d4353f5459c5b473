import math

import pytest
import torch
from pack_cases import trainer_of

from objectives.base import GptConfig, RowSpec
from objectives.models.batch_gradient import NoiseScale

# Shapes: K members, P micro-batches, n parameters of one member.


def memory_of(num_members: int) -> dict[str, torch.Tensor]:
    """Averages of members that begin, in double precision for exact comparisons."""
    return {name: torch.zeros(num_members, dtype=torch.float64) for name in NoiseScale.MEMORY}


def synthetic_step(
    mean_Kn: torch.Tensor, variance_Kn: torch.Tensor, num_pieces: int, piece_size: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """|g_m|^2 and |g_n|^2 of gradients of known mean and covariance of one sequence, (K,) each."""
    K, n = mean_Kn.shape
    noise_KPn = torch.randn(K, num_pieces, n, generator=generator, dtype=torch.float64)
    grad_KPn = mean_Kn[:, None] + noise_KPn * (variance_Kn[:, None] / piece_size).sqrt()
    return grad_KPn.square().sum(2).mean(1), grad_KPn.mean(1).square().sum(1)


@pytest.mark.parametrize(("num_pieces", "piece_size"), [(2, 1), (4, 2), (8, 16)])
def test_both_estimates_are_unbiased(num_pieces: int, piece_size: int) -> None:
    mean_n = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    variance_n = torch.tensor([1.0, 4.0, 0.25], dtype=torch.float64)
    # Every member is another try; what they remember of one step, with nothing forgotten, is the estimate.
    num_tries, memory = 100_000, memory_of(100_000)
    of_both = (value.expand(num_tries, 3) for value in (mean_n, variance_n))
    step = synthetic_step(*of_both, num_pieces, piece_size, torch.Generator().manual_seed(0))
    NoiseScale(memory, piece_size, [num_pieces] * num_tries, decay=0.0).update(*step)
    for name, expected in zip(NoiseScale.MEMORY, (mean_n.square().sum(), variance_n.sum()), strict=True):
        error = memory[name].std() / math.sqrt(num_tries)
        assert abs(memory[name].mean() - expected) < 4 * error, name


def test_the_noise_scale_is_that_of_the_known_covariance() -> None:
    generator = torch.Generator().manual_seed(1)
    mean_Kn = torch.randn(2, 50, generator=generator, dtype=torch.float64) * torch.tensor([[0.3], [1.0]])
    variance_Kn = torch.rand(2, 50, generator=generator, dtype=torch.float64) * 4
    scale = NoiseScale(memory_of(2), 2, [4, 4])
    for _ in range(2000):
        scale.update(*synthetic_step(mean_Kn, variance_Kn, 4, 2, generator))
    expected = variance_Kn.sum(1) / mean_Kn.square().sum(1)
    torch.testing.assert_close(scale.estimate(), expected, rtol=0.15, atol=0)


def test_averages_are_taken_before_the_quotient() -> None:
    scale = NoiseScale(memory_of(1), 1, [2], decay=0.5)
    # |G|^2 is estimated as 3 and -1, tr(Sigma) as 2 and 6: averages 0.25 and 3.5 of weights 1/4 and 1/2.
    for squared, variance in ((3.0, 2.0), (-1.0, 6.0)):
        of_pieces, whole = squared + variance / 1, squared + variance / 2
        scale.update(torch.tensor([of_pieces]), torch.tensor([whole]))
    assert scale.estimate().tolist() == pytest.approx([3.5 / 0.25])


def test_it_is_unknown_before_the_first_step_and_while_an_average_is_not_positive() -> None:
    scale = NoiseScale(memory_of(3), 1, [2, 2, 2])
    assert torch.isnan(scale.estimate()).all()
    # Pieces that are larger than the whole by too much, by a little, and not at all.
    scale.update(torch.tensor([10.0, 1.2, 1.0]), torch.tensor([1.0, 1.0, 1.0]))
    found = scale.estimate()
    assert torch.isnan(found).tolist() == [True, False, True]
    assert found[1].item() == pytest.approx(0.4 / 0.8)


def test_a_step_that_is_not_finite_is_passed_over() -> None:
    scale, undisturbed = (NoiseScale(memory_of(2), 2, [4, 4]) for _ in range(2))
    good = torch.tensor([1.5, 1.4]), torch.tensor([1.0, 1.0])
    for one in (scale, undisturbed):
        one.update(*good)
    scale.update(torch.tensor([math.inf, math.nan]), torch.tensor([1.0, math.nan]))
    assert torch.equal(scale.estimate(), undisturbed.estimate())


# In a pack.

SHAPE = {"steps": 10, "width": 8, "heads": 2, "context": 8, "batch_size": 6, "accumulate": 3, "depth": 1}


def test_a_pack_reads_it_off_its_micro_batches(text) -> None:
    configs = [GptConfig(text=text, lr=lr, **SHAPE) for lr in (1e-3, 1e-2)]
    trainer = trainer_of("gpt", configs, [0, 1])
    scale = NoiseScale(memory_of(2), 2, [3, 3])
    rows = torch.arange(2)
    assert torch.isnan(trainer.own_readings(rows)["noise_scale"]).all()
    for _ in range(5):
        # Each micro-batch as a batch of its own.
        tokens_KBS, knobs = trainer._batch()
        pieces = [trainer._loss_and_gradient(tokens_KBS[:, i : i + 2], knobs)[1].double() for i in (0, 2, 4)]
        of_pieces_K = torch.stack([piece.square().sum(1) for piece in pieces]).mean(0)
        whole_K = (sum(pieces) / 3).square().sum(1)
        scale.update(of_pieces_K, whole_K)
        trainer.step()
    found = trainer.own_readings(rows)["noise_scale"]
    torch.testing.assert_close(found.double(), scale.estimate(), rtol=1e-4, atol=0, equal_nan=True)
    assert torch.isfinite(found).any()


def test_a_batch_in_one_piece_says_nothing_of_it(text) -> None:
    trainer = trainer_of("gpt", [GptConfig(text=text, **(SHAPE | {"accumulate": 1}))], [0])
    assert "noise_scale" not in trainer.own_readings(torch.arange(1))


def test_averages_go_with_their_members(text) -> None:
    configs = [GptConfig(text=text, lr=lr, **SHAPE) for lr in (1e-3, 1e-2)]
    straight, arranged, resumed = (trainer_of("gpt", configs, [0, 1]) for _ in range(3))
    for trainer in (straight, arranged):
        for _ in range(4):
            trainer.step()
    resumed.load_state_dict(straight.state_dict())
    arranged.arrange([RowSpec(configs[0], 7, None), RowSpec(configs[1], 1, 1), RowSpec(configs[0], 0, 0)])
    expected = straight.own_readings(torch.arange(2))["noise_scale"]
    found = arranged.own_readings(torch.arange(3))["noise_scale"]
    assert torch.isnan(found[0])
    torch.testing.assert_close(found[1:], expected.flip(0), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(resumed.own_readings(torch.arange(2))["noise_scale"].nan_to_num(), expected.nan_to_num())
