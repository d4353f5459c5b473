"""Snapshots of a training loop of the user's own, to return to: in memory, or on disk."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

_FILE = re.compile(r"step-(\d+)\.pt")


class Snapshots:
    """The states of ``parts``, which have ``state_dict`` and ``load_state_dict``: a model, an optimizer, a scheduler.

    One is taken every ``every`` steps. As many are kept as a return of ``farthest`` steps needs: in memory, on the CPU,
    or as files in ``folder``, where a resumed run finds them.
    """

    def __init__(self, parts: Sequence[Any], every: int, farthest: int, folder: Path | None = None) -> None:
        self._parts, self._every, self._farthest, self._folder = parts, every, farthest, folder
        self._taken: dict[int, list[Any]] = {}  # in memory; an empty list stands for a file
        self._has_begun = self._has_written = False
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            found = sorted(int(match[1]) for path in folder.iterdir() if (match := _FILE.fullmatch(path.name)))
            self._taken = {step: [] for step in found}

    @property
    def steps(self) -> list[int]:
        """The steps of the snapshots, ascending."""
        return list(self._taken)

    def begin(self, step: int) -> None:
        """Drop snapshots that are not before the first ``step`` of this run: another run left them in the folder."""
        if not self._has_begun:
            self._has_begun = True
            self._drop_from(step)

    def newest(self, step: int) -> int | None:
        """Return the step of the newest snapshot at or before ``step``, or None."""
        return max((taken for taken in self._taken if taken <= step), default=None)

    def offer(self, step: int) -> bool:
        """Take a snapshot before the update of ``step`` if one is due, and drop the ones that are out of reach."""
        last = max(self._taken, default=None)
        if last is not None and step - last < self._every:
            return False
        states = [_copied(part.state_dict()) for part in self._parts]
        if self._folder is not None:
            path = self._path(step)
            torch.save(states, path.with_suffix(".new"))
            if not self._has_written:
                self._has_written = bool(_loaded(path.with_suffix(".new")))
            os.replace(path.with_suffix(".new"), path)
            states = []
        self._taken[step] = states
        oldest = self.newest(step - self._farthest)
        for taken in [taken for taken in self._taken if oldest is not None and taken < oldest]:
            self._drop(taken)
        return True

    def restore(self, step: int) -> None:
        """Give the parts the states of the snapshot of ``step``, and drop later ones."""
        states = self._taken[step]
        if self._folder is not None:
            states = _loaded(self._path(step))
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(deepcopy(state))
        self._drop_from(step + 1)

    def _drop_from(self, step: int) -> None:
        for taken in [taken for taken in self._taken if taken >= step]:
            self._drop(taken)

    def _drop(self, step: int) -> None:
        del self._taken[step]
        if self._folder is not None:
            self._path(step).unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"step-{step}.pt"


def _loaded(path: Path) -> Any:
    """Return the states in a file without running code from it. Raises TypeError for a part that needs more."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        what = str(error).strip().splitlines()[0]
        raise TypeError(
            f"{path.name}: a state has more than tensors and plain values; keep it in memory ({what})"
        ) from None


def _copied(state: Any) -> Any:
    """Return a copy of a state, with its tensors on the CPU."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, Mapping):
        return {key: _copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(_copied, state))
    return deepcopy(state)
