"""Snapshots of a loop: what is kept, and what comes back."""

from pathlib import Path

import pytest
import torch

from objectives.training.snapshots import Snapshots


def loop() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def train(parts: tuple, steps: range, taken: Snapshots | None = None) -> list[float]:
    model, optimizer, scheduler = parts
    losses = []
    for step in steps:
        loss = model(torch.full((4, 3), 1.0 + step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if taken is not None:
            taken.offer(step)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_loop_trains_from_a_snapshot_as_it_did_from_that_step(is_on_disk: bool, tmp_path: Path) -> None:
    parts = loop()
    taken = Snapshots(parts, 5, 10, tmp_path / "kept" if is_on_disk else None)
    losses = train(parts, range(20), taken)
    assert taken.steps == [5, 10, 15]
    for _ in range(2):
        taken.restore(5)
        assert train(parts, range(5, 20)) == losses[5:]
    assert taken.steps == [5]


def test_as_many_are_kept_as_the_farthest_return_needs() -> None:
    parts = loop()
    taken = Snapshots(parts, 4, 10)
    for step in range(40):
        taken.offer(step)
        if step >= 10:
            assert (newest := taken.newest(step - 10)) is not None
            assert step - 10 - newest < 4
        assert len(taken.steps) <= 5
    assert taken.newest(20) is None


def test_a_resumed_run_finds_what_is_on_disk(tmp_path: Path) -> None:
    parts = loop()
    losses = train(parts, range(12), Snapshots(parts, 5, 5, tmp_path))
    again = loop()
    found = Snapshots(again, 5, 5, tmp_path)
    assert found.steps == [5, 10]
    assert not found.offer(12)
    found.restore(5)
    assert train(again, range(5, 12)) == losses[5:]
    assert [path.name for path in tmp_path.iterdir()] == ["step-5.pt"]
