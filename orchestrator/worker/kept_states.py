"""States of weights that a pack keeps while it trains, and reading them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import StorageError
from orchestrator.base.packs import Keep, KeptState
from orchestrator.base.states import read_state
from orchestrator.worker.checkpoints import BadCheckpoint, from_bytes, to_bytes

if TYPE_CHECKING:
    import torch


class StateKeeper:
    """Collects the states of a pack's trials that are due, for its next report."""

    def __init__(self, keep: Keep | None) -> None:
        self._keep = keep
        self._states: dict[str, list[KeptState]] = {}

    def offer(self, trainer: Any, row: int, trial_ids: Sequence[str], age: int, *, is_last: bool) -> None:
        """Keep the state of the trials that share a row, if it is due after ``age`` steps."""
        if self._keep is None or not (is_last or age % self._keep.every == 0):
            return
        weights = weights_of_row(trainer, row)
        for trial_id in trial_ids:
            content = to_bytes({"weights": weights, "step": age}, [trial_id])
            kept = self._states.setdefault(trial_id, [])
            kept.append(KeptState(trial_id, age, content))
            del kept[: -self._keep.last]

    def take(self) -> tuple[KeptState, ...]:
        """Return what was kept since the last call."""
        taken, self._states = self._states, {}
        return tuple(state for states in taken.values() for state in states)


def weights_of_row(trainer: Any, row: int) -> dict[str, torch.Tensor]:
    """Return a copy of one member's weights by name, on the CPU."""
    return {name: weight.to("cpu", copy=True) for name, weight in _weights(trainer, row).items()}


def set_weights(trainer: Any, row: int, weights: Mapping[str, torch.Tensor]) -> None:
    """Replace one member's weights, by name."""
    for name, weight in _weights(trainer, row).items():
        weight.copy_(weights[name])


def _weights(trainer: Any, row: int) -> dict[str, torch.Tensor]:
    """Return one member's weights by name, in the memory of the trainer or of its part with another precision."""
    trainer, row = trainer.of_row(row) if hasattr(trainer, "of_row") else (trainer, row)
    return {name: weight[row].detach() for name, weight in trainer.weights.items()}


def kept_weights(folder: Path, trial_id: str, step: int) -> Mapping[str, torch.Tensor]:
    """Return the weights of a trial that were kept after ``step`` steps.

    Raises InputError if they were not, and StorageError if their file is damaged or another trial's.
    """
    content = read_state(folder, trial_id, step)
    try:
        state = from_bytes(content, [trial_id])
        if state["step"] != step:
            raise BadCheckpoint(f"it is the state of step {state['step']}")
        weights: Mapping[str, torch.Tensor] = state["weights"]
    except (BadCheckpoint, KeyError, TypeError) as error:
        raise StorageError(f"{folder}: the state of {trial_id} at step {step} is of no use: {error}") from None
    return weights
