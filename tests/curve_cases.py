"""Curves of a pack, (T, K) each, and their comparison bit for bit."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from objectives.base import RowSpec, TrainingConfig
from objectives.training.packed import PackedTrainer

Curves = dict[str, torch.Tensor]
Start = Callable[[Sequence[TrainingConfig], Sequence[int]], PackedTrainer]


def curves(trainer: PackedTrainer, num_steps: int) -> Curves:
    """Metrics of the next steps, none for no steps."""
    rows = [trainer.step() for _ in range(num_steps)]
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}


def joined(*parts: Curves) -> Curves:
    """Curves of one pack after each other, of which some may have no steps."""
    parts = tuple(part for part in parts if part)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def of_member(found: Curves, k: int) -> Curves:
    """The curves of the member ``k`` alone."""
    return {name: values[:, k : k + 1] for name, values in found.items()}


def assert_same(found: Curves, expected: Curves) -> None:
    """Bit for bit, NaN included."""
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0, equal_nan=True, msg=name)


def trained_as_alone(
    start: Start, configs: Sequence[TrainingConfig], seeds: Sequence[int], num_steps: int
) -> PackedTrainer:
    """A pack after so many steps, each of whose members trained, and fired its rules, as it does alone."""
    trainer = start(configs, seeds)
    together = curves(trainer, num_steps)
    for k, (config, seed) in enumerate(zip(configs, seeds, strict=True)):
        alone = start([config], [seed])
        assert_same(of_member(together, k), curves(alone, num_steps))
        assert trainer.fired(k) == alone.fired(0)
    return trainer


def assert_goes_on_as_alone(
    start: Start, configs: Sequence[TrainingConfig], seeds: Sequence[int], kept: Sequence[int], num_steps: int
) -> None:
    """The members ``kept`` when others leave after 5 steps train bit for bit as alone."""
    together = start(configs, seeds)
    before = curves(together, 5)
    together.arrange([RowSpec(configs[k], seeds[k], k) for k in kept])
    after = curves(together, num_steps - 5)
    for row, k in enumerate(kept):
        alone = curves(start([configs[k]], [seeds[k]]), num_steps)
        assert_same(joined(of_member(before, k), of_member(after, row)), alone)


def assert_resumes(
    start: Start, configs: Sequence[TrainingConfig], seeds: Sequence[int], stop: int, num_steps: int, folder: Path
) -> None:
    """A pack that is saved at ``stop`` goes on bit for bit, whatever the trainer that takes it up has done."""
    straight, first, second = (start(configs, seeds) for _ in range(3))
    expected, before = curves(straight, num_steps), curves(first, stop)
    torch.save(first.state_dict(), folder / "state.pt")
    curves(second, num_steps // 3)
    second.load_state_dict(torch.load(folder / "state.pt", weights_only=True))
    assert_same(joined(before, curves(second, num_steps - stop)), expected)
    assert [second.fired(k) for k in range(len(configs))] == [straight.fired(k) for k in range(len(configs))]
