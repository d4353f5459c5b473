"""What a user asks of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of `sweep import`, by their names there.

    ``x``, ``y`` and ``axis`` are COLUMN or NAME=COLUMN, ``scale`` NAME=SCALE, ``map`` OUTCOME=WORD,WORD. ``steps`` is a
    column or a number. ``scattered`` None is found from the cells.
    """

    x: str
    y: str | None = None
    axis: Sequence[str] = ()
    scale: Sequence[str] = ()
    scattered: bool | None = None
    seed: str | None = None
    steps: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    outcome: str | None = None
    loss: str | None = None
    validation_loss: str | None = None
    map: Sequence[str] = ()
    diverged_above: float | None = None

    @property
    def axes(self) -> list[tuple[str, str]]:
        """The axes as (option, text) pairs, the horizontal one first."""
        y = [("--y", self.y)] if self.y is not None else []
        return [("--x", self.x), *y, *(("--axis", text) for text in self.axis)]
