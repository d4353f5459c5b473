"""Merges of several models' weights by name, and the loss of such weights on two halves of held-out text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.base import GptConfig
from objectives.models.data import validation_sequences
from objectives.models.gpt_knobs import Knobs
from objectives.models.gpt_model import cross_entropy

Weights = Mapping[str, torch.Tensor]
_PARALLEL = 1e-6  # sine of an angle below which a slerp is a straight line


def combined(parts: Sequence[tuple[float, Weights]]) -> dict[str, torch.Tensor]:
    """Return the sum of weights times factors, in double precision and rounded once."""
    zero = torch.zeros((), dtype=torch.float64)

    def of(name: str, like: torch.Tensor) -> torch.Tensor:
        return sum((factor * weights[name].double() for factor, weights in parts), zero).to(like.dtype)

    return {name: of(name, like) for name, like in parts[0][1].items()}


def mean(models: Sequence[Weights]) -> dict[str, torch.Tensor]:
    """Return the mean of models (model soups: Wortsman et al., arXiv 2203.05482)."""
    return combined([(1 / len(models), weights) for weights in models])


def between(first: Weights, second: Weights, share: float) -> dict[str, torch.Tensor]:
    """Return a point of the straight line from ``first``, at share 0, to ``second``, at 1."""
    return combined([(1 - share, first), (share, second)])


def task_arithmetic(base: Weights, models: Sequence[Weights], scale: float) -> dict[str, torch.Tensor]:
    """Return base + scale * sum of (model - base) (Ilharco et al., arXiv 2212.04089)."""
    return combined([(1 - scale * len(models), base), *((scale, weights) for weights in models)])


def slerp(first: Weights, second: Weights, share: float, *, per_tensor: bool) -> dict[str, torch.Tensor]:
    """Return a point of the arc from ``first`` to ``second`` (Shoemake 1985): of all weights as one vector, or of each.

    With the angle w between two vectors it is sin((1 - t) w) / sin(w) of the first plus sin(t w) / sin(w) of the
    second, and a point of the straight line where they are parallel or one is zero.
    """
    if per_tensor:
        return {name: _arc(first[name], second[name], share) for name in first}
    a, b = (torch.cat([weights[name].flatten().double() for name in first]) for weights in (first, second))
    parts = _arc(a, b, share).split([first[name].numel() for name in first])
    return {name: part.view_as(first[name]).to(first[name].dtype) for name, part in zip(first, parts, strict=True)}


def _arc(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    a, b = first.double(), second.double()
    lengths = a.norm() * b.norm()
    angle = torch.acos(((a * b).sum() / lengths).clamp(-1, 1)) if lengths > 0 else torch.zeros(())
    if angle.sin().abs() < _PARALLEL:
        return ((1 - share) * a + share * b).to(first.dtype)
    return ((torch.sin((1 - share) * angle) * a + torch.sin(share * angle) * b) / angle.sin()).to(first.dtype)


def greedy(models: Sequence[Weights], losses: Sequence[float], loss: Callable[[Weights], float]) -> list[int]:
    """Return which models a greedy soup takes (arXiv 2203.05482): best first, each that lowers the mean's loss.

    ``losses`` are the losses of the models alone.
    """
    order = sorted(range(len(models)), key=losses.__getitem__)
    taken, best = order[:1], losses[order[0]]
    for index in order[1:]:
        tried = loss(mean([models[i] for i in (*taken, index)]))
        if tried <= best:
            taken, best = [*taken, index], tried
    return taken


class HeldOut:
    """Two halves of the held-out text of a transformer, of each of its domains: one to choose by, one to report on."""

    def __init__(self, config: GptConfig) -> None:
        """Raises ValueError if the text is missing or has a single sequence."""
        sequences = validation_sequences(config)
        number = sequences.shape[1]
        if number < 2:
            raise ValueError("a single held-out sequence has no two halves: raise validation_batches")
        halves = sequences.split([number // 2, number - number // 2], dim=1)
        self._halves = [half.flatten(0, 1) for half in halves]

    @torch.no_grad()
    def losses(self, config: GptConfig, weights: Weights) -> tuple[float, float]:
        """Return the mean cross-entropy of ``weights`` on each half, in nats."""
        scale = None if config.branch_scale == 1 else torch.tensor([config.branch_scale], dtype=torch.float64)
        stacked = {name: weight[None] for name, weight in weights.items()}
        first, second = (
            float(cross_entropy(config, stacked, half[None], Knobs(residual_scale_K=scale))[0]) for half in self._halves
        )
        return first, second
