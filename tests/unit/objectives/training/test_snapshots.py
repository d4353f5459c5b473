"""Snapshots of a loop: what is kept, and what comes back."""

from pathlib import Path

import pytest
import torch

from objectives.training.snapshots import Snapshots
from orchestrator.detection.watch import Watch


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


def weight_after_a_return(weight: float, folder: Path, spike: int | None = None) -> float:
    """Train a run of ``weight`` from step 0 with snapshots in ``folder``; return its weight at the end."""
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = Watch(control=[{"on": "loss", "above": 2, "do": {"back": 20}, "every": 1, "at_most": 1}])
    watch.keep(model, optimizer, folder=folder)
    for step in range(120):
        watch.apply(optimizer, watch.report(step, 100.0 if step == spike else 1 + 0.001 * (step % 3)))
    return model.weight.item()


def test_a_run_from_the_start_does_not_return_to_another_run_in_the_same_folder(tmp_path: Path) -> None:
    weight_after_a_return(1.0, tmp_path)
    assert weight_after_a_return(7.0, tmp_path, spike=110) == 7.0


def test_a_run_that_begins_drops_what_is_no_past_of_it(tmp_path: Path) -> None:
    train(loop(), range(12), Snapshots(loop(), 5, 5, tmp_path))
    found = Snapshots(loop(), 5, 5, tmp_path)
    found.begin(10)
    assert found.steps == [5]
    found.begin(5)
    assert found.steps == [5], "only the first step is where the run begins"


class Odd:
    """A part whose state a file could only hold as code."""

    def state_dict(self) -> dict:
        return {"rule": Path}

    def load_state_dict(self, state: dict) -> None:
        self.rule = state["rule"]


def test_no_code_is_run_from_a_snapshot_on_disk_and_a_state_that_needs_it_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="keep it in memory"):
        Snapshots([Odd()], 1, 5, tmp_path).offer(0)
    own = Odd()
    in_memory = Snapshots([own], 1, 5)
    in_memory.offer(0)
    in_memory.restore(0)
    assert own.rule is Path
