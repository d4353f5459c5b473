"""Which members of a pack train in which row of the stacked model, and which wait for a place."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from objectives.base import RowSpec, TrainingConfig
from orchestrator.worker.sharing import families, first_difference, split_at


class Roster:
    """Places for ``width`` members; a member is identified by its position in the pack.

    Waiting members take the places of those that end. Members of a family (orchestrator/worker/sharing.py) share a row
    while they have the same past; ``apart`` is what else keeps members apart. Each of them has a place from the start,
    so that there is room when they fork: a family is admitted whole, or in parts of ``width`` members.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int],
        width: int,
        apart: Sequence[Hashable] | None = None,
    ) -> None:
        self.configs, self.seeds, self.width = configs, seeds, width
        self.rows: list[list[int]] = []  # the members of each row of the trainer
        self._family = families(configs, seeds, [None] * len(configs) if apart is None else apart)
        order = sorted(range(len(configs)), key=lambda member: self._family[member])
        self.waiting = deque(order)
        self._row_of: dict[int, int] = {}  # member -> its row in the trainer

    @property
    def training(self) -> list[int]:
        """The first member of each row, which trains for all of them."""
        return [row[0] for row in self.rows]

    @property
    def everybody(self) -> list[int]:
        """All members that train, or for which another does."""
        return [member for row in self.rows for member in row]

    def drop(self, members: Collection[int]) -> None:
        """Drop ``members``, training or waiting."""
        left = ([member for member in row if member not in members] for row in self.rows)
        self.rows = [row for row in left if row]
        self.waiting = deque(member for member in self.waiting if member not in members)

    def admit(self) -> None:
        """Give free places to waiting members, in order."""
        num_free = self.width - len(self.everybody)
        while self.waiting:
            family = self._family[self.waiting[0]]
            alike = itertools.takewhile(lambda member: self._family[member] == family, self.waiting)  # noqa: B023
            members = list(itertools.islice(alike, self.width))
            if len(members) > num_free:
                return
            num_free -= len(members)
            for _ in members:
                self.waiting.popleft()
            self.rows += split_at(members, self.configs, 0)

    def next_fork(self, row: int) -> int | None:
        """The step before which the members of ``row`` part; None where they never do."""
        return first_difference([self.configs[member] for member in self.rows[row]])

    def fork(self, age_of: Mapping[int, int]) -> bool:
        """Part the members that must not train their next step together; whether there were any."""
        num_before = len(self.rows)
        parts = (split_at(row, self.configs, age_of[row[0]]) if len(row) > 1 else [row] for row in self.rows)
        self.rows = [part for row in parts for part in row]
        return len(self.rows) > num_before

    def row_specs(self, num_rows: int) -> list[RowSpec]:
        """The places for the trainer, the first row repeated up to ``num_rows``; marks the rows as placed."""
        row_specs = [RowSpec(self.configs[m], self.seeds[m], self._row_of.get(m)) for m in self.training]
        self._mark()
        return row_specs + list(itertools.repeat(row_specs[0], num_rows - len(row_specs)))

    def state_dict(self) -> dict[str, Any]:
        """Which members train in which row and which wait: lists of numbers."""
        return {"rows": [list(row) for row in self.rows], "waiting": list(self.waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of the same members, with a trainer that holds their rows."""
        self.rows, self.waiting = [list(row) for row in state["rows"]], deque(state["waiting"])
        self._mark()

    def _mark(self) -> None:
        self._row_of = {member: k for k, row in enumerate(self.rows) for member in row}
