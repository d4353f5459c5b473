"""What a user asks of an import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.detection.config import StoppingConfig
from orchestrator.importing.values import number_of
from orchestrator.logs.columns import MetricsConfig


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options of `sweep import`, by their names there.

    ``x``, ``y`` and ``axis`` are COLUMN or NAME=COLUMN, ``scale`` NAME=SCALE, ``map`` OUTCOME=WORD,WORD. ``steps`` and
    ``initial_loss`` are columns or numbers. ``scattered`` None is found from the cells. ``told`` has a pattern or a
    format of logs; ``stopping`` None is the detector's default.
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
    initial_loss: str | None = None
    map: Sequence[str] = ()
    diverged_above: float | None = None
    step: str | None = None
    grad_norm: str | None = None
    run: Sequence[str] = ()
    from_path: str | None = None
    config: str | None = None
    log: str | None = None
    told: MetricsConfig = field(default_factory=MetricsConfig)
    stopping: StoppingConfig | None = None

    @property
    def axes(self) -> list[tuple[str, str]]:
        """The axes as (option, text) pairs, the horizontal one first."""
        y = [("--y", self.y)] if self.y is not None else []
        return [("--x", self.x), *y, *(("--axis", text) for text in self.axis)]

    @property
    def stopping_config(self) -> StoppingConfig:
        """The detector's settings for curves."""
        return self.stopping if self.stopping is not None else StoppingConfig()

    @property
    def initial_loss_number(self) -> float | None:
        """The initial loss of all runs, where it is given as a number."""
        number = None if self.initial_loss is None else number_of(self.initial_loss)
        return None if number is None else float(number)
