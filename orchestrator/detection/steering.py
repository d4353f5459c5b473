"""What a ``Watch`` with rules does besides judging: it fires rules, steers optimizers and keeps snapshots."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from objectives.action import Action
from objectives.policy import Firing, Newest
from orchestrator.detection.policies import PolicyLike, policy_of
from orchestrator.detection.rows import FIRED, ROLLED_BACK, firings_of

logger = logging.getLogger(__name__)


class Steering:
    """The rules of one run, and what follows from them: rows with firings, actions, updates and snapshots."""

    def __init__(self, control: PolicyLike, steps: int | None) -> None:
        """Start the rules in ``control``. Raises InputError for one that cannot act."""
        self.policy = policy_of(control, steps)
        self._steered: list[tuple[Any, Any]] = []  # optimizers, and what changes their updates
        self._snapshots: Any = None
        self._is_sound = True  # whether the last loss and norm are finite, so that a snapshot may be taken
        self._was_applied = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to this process."""
        return {**vars(self), "_steered": [], "_snapshots": None}

    def fire(self, row: Mapping[str, Any], *, logs: bool, has_telemetry: bool) -> dict[str, Any]:
        """Take a row; return it with what fires. Raises ValueError if a rule needs telemetry and there is none."""
        if not has_telemetry and (names := self.policy.asks_telemetry):
            raise ValueError(
                f"a rule reads {names[0]}: call watch.telemetry(model, optimizer, closure) before the loop"
            )
        if self._snapshots is not None:
            self._snapshots.begin(row["step"])
        newest = None if self._snapshots is None else self._snapshots.newest
        fired = self._take(row, newest)
        action = self.policy.action(row["step"])
        if logs and fired:
            logger.warning("step %d: %s", action.step, action.words)
            if not (self._was_applied or action):
                logger.warning("no watch.apply(optimizer, action) was called: the loop must follow the action itself")
        return {**row, **({FIRED: fired} if fired else {}), **({ROLLED_BACK: 1.0} if action.skip else {})}

    def repeat(self, row: Mapping[str, Any]) -> None:
        """Take a row whose firings are known."""
        self._take(row, None, firings_of(row))

    def _take(
        self, row: Mapping[str, Any], newest: Newest | None, known: Sequence[Firing] | None = None
    ) -> list[Firing]:
        loss, norm = row["loss"], row.get("grad_norm")
        self._is_sound = math.isfinite(loss) and (norm is None or math.isfinite(norm))
        return self.policy.take(row["step"], loss, norm, newest, known)

    def keep(self, parts: Sequence[Any], every: int | None, folder: Path | None) -> None:
        """Keep snapshots of ``parts`` to return to."""
        from objectives.training.snapshots import Snapshots  # imports torch

        if every is None:
            every = max(1, self.policy.nearest // 2)
        self._snapshots = Snapshots(parts, every, self.policy.farthest, folder)

    def apply(self, optimizer: Any, action: Action) -> None:
        """Let the next update of ``optimizer`` follow ``action``, return to a snapshot, or take one."""
        from objectives.optimizers.steered import SteeredOptimizer, inner  # imports torch

        own, self._was_applied = inner(optimizer), True
        steered = next((one for known, one in self._steered if known is own), None)
        if steered is None:
            steered = SteeredOptimizer(own, may_clip=self.policy.clips)
            self._steered.append((own, steered))
        steered.action = action
        if self._snapshots is None:
            return
        self._snapshots.begin(action.step)  # for a process whose rules another one fires
        if action.rollback_to is not None:
            target = self._snapshots.newest(action.rollback_to)
            if target is None:
                logger.warning("step %d: no snapshot of step %d or before", action.step, action.rollback_to)
            else:
                self._snapshots.restore(target)
        elif self._is_sound and not action:
            self._snapshots.offer(action.step)
