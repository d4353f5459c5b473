"""Who of a pack trains in which row of the stacked model, who waits, and who may share a row.

Members that differ only in the clip threshold are the same run until a gradient norm exceeds one of
the thresholds: till then they share one row. Members that wait take the places of those that end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from objectives.base import Place, TrainingConfig

# The norm that the optimizer compares is rounded; parting a little early changes nothing.
_NORM_ROUNDING = 1e-5


@dataclass(slots=True)
class _Row:
    """Members that are one run so far; ``source`` is their row of the trainer, None before it has one."""

    members: list[int]
    source: int | None = None


class Roster:
    """Places for ``width`` members; members are known by their position in the pack."""

    def __init__(self, configs: Sequence[TrainingConfig], seeds: Sequence[int], width: int) -> None:
        self.configs, self.seeds, self.width = configs, seeds, width
        self.waiting = deque(range(len(configs)))
        self._rows: list[_Row] = []

    @property
    def training(self) -> list[int]:
        """Members in training, row by row."""
        return [member for row in self._rows for member in row.members]

    @property
    def row_of(self) -> list[int]:
        """For each of ``training``, the row that trains it."""
        return [number for number, row in enumerate(self._rows) for _ in row.members]

    @property
    def is_shared(self) -> bool:
        """Whether some members are still one run."""
        return any(len(row.members) > 1 for row in self._rows)

    def drop(self, members: Collection[int]) -> None:
        """Let ``members`` go."""
        for row in self._rows:
            row.members = [member for member in row.members if member not in members]
        self._rows = [row for row in self._rows if row.members]

    def admit(self) -> None:
        """Give free places to those who wait."""
        began: dict[object, _Row] = {}
        for _ in range(min(len(self.waiting), self.width - len(self.training))):
            member = self.waiting.popleft()
            run = self._run(member)
            if run in began:
                began[run].members.append(member)
            else:
                began[run] = _Row([member])
                self._rows.append(began[run])

    def part(self, highest_norm: Sequence[float]) -> bool:
        """Give rows of their own to members whose threshold a norm has come near.

        ``highest_norm`` of each row's gradient since the last call. Returns whether any parted.
        """
        parted: list[_Row] = []
        for row, norm in zip(self._rows, highest_norm, strict=True):
            reached = norm * (1 + _NORM_ROUNDING) + _NORM_ROUNDING
            leaving = [m for m in row.members if (clip := self.configs[m].clip) is not None and clip <= reached]
            if len(row.members) > 1 and leaving:
                staying = [member for member in row.members if member not in leaving] or [leaving.pop()]
                row.members = staying
                parted += [_Row([member], row.source) for member in leaving]
        self._rows += parted
        return bool(parted)

    def places(self, num_rows: int) -> list[Place]:
        """What the trainer is to hold, the first row repeated up to ``num_rows``; the rows count as placed."""
        places = [Place(self.configs[row.members[0]], self.seeds[row.members[0]], row.source) for row in self._rows]
        for number, row in enumerate(self._rows):
            row.source = number
        return places + list(itertools.repeat(places[0], num_rows - len(places)))

    def _run(self, member: int) -> object:
        """Equal for members that are one run until clipping parts them."""
        return self.configs[member].model_copy(update={"clip": None}), self.seeds[member]
