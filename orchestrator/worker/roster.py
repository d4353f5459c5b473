"""Who of a pack trains in which row of the stacked model, who waits, and who may share a row.

Members that differ only in the clip threshold are the same run until a gradient norm exceeds one of
the thresholds: till then they share one row. Members that wait take the places of those that end.

Other clipping does not change that. ZClip and AdaGC act on a gradient whose norm is below all thresholds
as if these were not there, and the norm that is compared with a threshold is that before any clipping.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.base import Place, TrainingConfig

# Parting early changes nothing, and parting too late means training some steps again: members part when a
# norm has come within this factor of the threshold.
_NEAR = 1.05
# The norm that the optimizer compares with the threshold is rounded.
_ROUNDING = 1e-5


def _is_of_the_optimizer(field: str) -> bool:
    """Whether a field of the configuration does not act on the first gradient.

    Those that every objective has are the optimizer's, or the same in the whole pack; so is a layer group's
    learning rate. The factor on a group's gradient does act, as the norm is taken after it.
    """
    return field in TrainingConfig.model_fields or field.endswith("_lr")


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
        # The first gradient does not depend on the optimizer, so it is known for those who come later.
        self._origin = _origins(configs, seeds)
        self._first_norm: dict[int, float] = {}

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

    @property
    def is_surprise_near(self) -> bool:
        """Whether a shared row's first norm is not known, and so may part its members at once."""
        return any(len(row.members) > 1 and self._origin[row.members[0]] not in self._first_norm for row in self._rows)

    def note_first_norms(self, norm_of_member: Mapping[int, float]) -> None:
        """The gradient norm of some members at their first step."""
        self._first_norm.update({self._origin[member]: norm for member, norm in norm_of_member.items()})

    def drop(self, members: Collection[int]) -> None:
        """Let ``members`` go, in training or waiting."""
        for row in self._rows:
            row.members = [member for member in row.members if member not in members]
        self._rows = [row for row in self._rows if row.members]
        self.waiting = deque(member for member in self.waiting if member not in members)

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

    def has_clipped(self, highest_norm: Sequence[float]) -> bool:
        """Whether a norm has reached a threshold in a shared row, so that its members are no longer one run."""
        return any(
            clip is not None and clip <= norm * (1 + _ROUNDING) + _ROUNDING
            for row, norm in zip(self._rows, highest_norm, strict=True)
            for clip in (self.configs[member].clip for member in row.members)
            if len(row.members) > 1
        )

    def part(self, highest_norm: Sequence[float]) -> bool:
        """Give rows of their own to members whose threshold a norm has come near; returns whether any parted.

        ``highest_norm`` of each row's gradient since the last call. Below a threshold clipping does
        nothing, so where ``has_clipped`` is false the steps since then are those of every member.
        """
        parted: list[_Row] = []
        for row, norm in zip(self._rows, highest_norm, strict=True):
            reached = _NEAR * norm + _ROUNDING
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

    def state_dict(self) -> dict[str, Any]:
        """Who trains where, who waits, and what is known of first gradients: lists and numbers."""
        known = [(m, self._first_norm.get(self._origin[m])) for m in range(len(self.configs))]
        return {
            "rows": [list(row.members) for row in self._rows],
            "waiting": list(self.waiting),
            "first_norms": {member: float(norm) for member, norm in known if norm is not None},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict`` of the same members, with a trainer that holds its rows."""
        self._rows = [_Row(list(members), number) for number, members in enumerate(state["rows"])]
        self.waiting = deque(state["waiting"])
        self.note_first_norms(state["first_norms"])

    def _run(self, member: int) -> object:
        """Equal for members that are one run until clipping parts them."""
        clip, first_norm = self.configs[member].clip, self._first_norm.get(self._origin[member], 0.0)
        if clip is not None and not clip > _NEAR * first_norm:
            return member
        return self.configs[member].model_copy(update={"clip": None}), self.seeds[member]


def _origins(configs: Sequence[TrainingConfig], seeds: Sequence[int]) -> list[int]:
    """A number for each member, equal for those whose first gradient is: thousands are asked for at a checkpoint."""
    shaping = {kind: [n for n in kind.model_fields if not _is_of_the_optimizer(n)] for kind in set(map(type, configs))}
    numbers: dict[object, int] = {}
    found = []
    for config, seed in zip(configs, seeds, strict=True):
        origin = (tuple(getattr(config, name) for name in shaping[type(config)]), seed)
        found.append(numbers.setdefault(origin, len(numbers)))
    return found
