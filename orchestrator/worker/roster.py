"""Which members of a pack train in which row of the stacked model, and which wait for a place."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from objectives.base import Place, TrainingConfig


class Roster:
    """Places for ``width`` members; a member is identified by its position in the pack.

    Waiting members take the places of those that end.
    """

    def __init__(self, configs: Sequence[TrainingConfig], seeds: Sequence[int], width: int) -> None:
        self.configs, self.seeds, self.width = configs, seeds, width
        self.training: list[int] = []  # by row of the trainer
        self.waiting = deque(range(len(configs)))
        self._placed: dict[int, int] = {}  # member -> its row in the trainer

    def drop(self, members: Collection[int]) -> None:
        """Drop ``members``, training or waiting."""
        self.training = [member for member in self.training if member not in members]
        self.waiting = deque(member for member in self.waiting if member not in members)

    def admit(self) -> None:
        """Give free places to waiting members, in order."""
        num_free = self.width - len(self.training)
        self.training += [self.waiting.popleft() for _ in range(min(len(self.waiting), num_free))]

    def places(self, num_rows: int) -> list[Place]:
        """The places for the trainer, the first row repeated up to ``num_rows``; marks the rows as placed."""
        places = [Place(self.configs[m], self.seeds[m], self._placed.get(m)) for m in self.training]
        self._placed = {member: row for row, member in enumerate(self.training)}
        return places + list(itertools.repeat(places[0], num_rows - len(places)))

    def state_dict(self) -> dict[str, Any]:
        """Which members train in which row and which wait: lists of numbers."""
        return {"training": list(self.training), "waiting": list(self.waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of the same members, with a trainer that holds their rows."""
        self.training, self.waiting = list(state["training"]), deque(state["waiting"])
        self._placed = {member: row for row, member in enumerate(self.training)}
