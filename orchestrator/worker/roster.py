"""The members of a pack that train, their rows in the stacked model, and the members that wait for a free row.

Members with equal seeds and configurations, apart from interventions and control, are a family. Their pasts are equal
until their interventions differ, or until a rule acts that some of the members lack. Until that step they share a row;
there the row forks.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from objectives.base import RowSpec, TrainingConfig
from objectives.control import first_reading

_VARIABLE = {"interventions", "control"}  # fields in which members of a family may differ


class Roster:
    """Members that train at a time, at most ``width``; a member is identified by its position in the pack.

    Waiting members take the rows of members that end. A family is admitted whole, or in parts of ``width`` members, so
    that each member has a row when it forks. ``groups`` may separate members further: families do not span groups.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int],
        width: int,
        groups: Sequence[Hashable] | None = None,
    ) -> None:
        self.configs, self.seeds, self.width = configs, seeds, width
        self.rows: list[list[int]] = []  # the members of each row of the trainer
        self._family = families(configs, seeds, [None] * len(configs) if groups is None else groups)
        order = sorted(range(len(configs)), key=lambda member: self._family[member])
        self.waiting = deque(order)
        self._row_of: dict[int, int] = {}  # row of each member in the trainer

    @property
    def training(self) -> list[int]:
        """The first member of each row, which trains for all of its members."""
        return [row[0] for row in self.rows]

    @property
    def everybody(self) -> list[int]:
        """All members in a row."""
        return [member for row in self.rows for member in row]

    def drop(self, members: Collection[int]) -> None:
        """Drop ``members``, training or waiting."""
        left = ([member for member in row if member not in members] for row in self.rows)
        self.rows = [row for row in left if row]
        self.waiting = deque(member for member in self.waiting if member not in members)

    def admit(self) -> None:
        """Give free rows to waiting members, in order."""
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
        """Return the step before which the members of ``row`` part, or None if they never do."""
        return first_difference([self.configs[member] for member in self.rows[row]])

    def fork(self, age_of: Mapping[int, int]) -> bool:
        """Split rows whose members must not train their next step together; returns whether there were any."""
        num_before = len(self.rows)
        parts = (split_at(row, self.configs, age_of[row[0]]) if len(row) > 1 else [row] for row in self.rows)
        self.rows = [part for row in parts for part in row]
        return len(self.rows) > num_before

    def row_specs(self, num_rows: int) -> list[RowSpec]:
        """Return the rows for the trainer, padded with the first one to ``num_rows``, and record them as trained."""
        specs = [RowSpec(self.configs[m], self.seeds[m], self._row_of.get(m)) for m in self.training]
        self._record_rows()
        return specs + list(itertools.repeat(specs[0], num_rows - len(specs)))

    def state_dict(self) -> dict[str, Any]:
        """The members of each row and the waiting ones, as lists of numbers."""
        return {"rows": [list(row) for row in self.rows], "waiting": list(self.waiting)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of the same members, with a trainer that holds their rows."""
        self.rows, self.waiting = [list(row) for row in state["rows"]], deque(state["waiting"])
        self._record_rows()

    def _record_rows(self) -> None:
        self._row_of = {member: k for k, row in enumerate(self.rows) for member in row}


def families(configs: Sequence[TrainingConfig], seeds: Sequence[int], groups: Sequence[Hashable]) -> list[int]:
    """Number the families of members: equal numbers may share a row. Families do not span ``groups``.

    Without interventions and control each member is a family of its own.
    """
    if not any(config.interventions or config.control for config in configs):
        return list(range(len(configs)))
    number: dict[Hashable, int] = {}
    keys = [
        (config.model_dump_json(exclude=_VARIABLE), seed, group)
        for config, seed, group in zip(configs, seeds, groups, strict=True)
    ]
    return [number.setdefault(key, len(number)) for key in keys]


def first_difference(configs: Sequence[TrainingConfig]) -> int | None:
    """Return the first step before which the members of a family change differently, or None if they never do."""
    steps = [first_reading(config.control) for config in configs if config.control != configs[0].control]
    steps += [first_reading(configs[0].control)] if steps else []
    first, *others = (config.interventions for config in configs)
    for other in others:
        num_alike = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), None)
        num_alike = min(len(first), len(other)) if num_alike is None else num_alike
        steps += [entry.at for entries in (first, other) for entry in entries[num_alike : num_alike + 1]]
    soonest = min(steps, default=math.inf)
    return None if math.isinf(soonest) else int(soonest)


def split_at(members: Sequence[int], configs: Sequence[TrainingConfig], step: int) -> list[list[int]]:
    """Split ``members`` of a family into rows that may train ``step`` together: equal changes up to and including it.

    Rows keep the order of their members, except that members with rules come first: a row keeps the trends that rules
    will read only if its first member has rules.
    """
    parts: dict[str, list[int]] = {}
    for member in members:
        past = [entry.model_dump_json() for entry in configs[member].interventions if entry.at <= step]
        rules = configs[member].control
        past += [rule.model_dump_json() for rule in rules] if first_reading(rules) <= step else []
        parts.setdefault("\n".join(past), []).append(member)
    return [sorted(part, key=lambda member: not configs[member].control) for part in parts.values()]
