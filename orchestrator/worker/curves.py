"""Metrics of a pack on the host, and the pieces of its members' curves that wait for the next report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.base.reports import Trace
from orchestrator.worker.readings import Point, as_table


class Curves:
    """Curves and readings since the last report: every ``every``-th step, the last one and that of the verdict.

    ``num_steps`` is the length of a whole curve.
    """

    def __init__(self, every: int, num_steps: int) -> None:
        self._every, self._num_steps = every, num_steps
        self._traces: dict[str, list[Trace]] = {}
        self._telemetry: dict[str, list[Point]] = {}

    def add(self, trial_id: str, first_step: int, columns: Mapping[str, np.ndarray], *, has_ended: bool) -> None:
        """Add the next steps of a member, ``columns`` of equal length; ``has_ended`` at the last of them."""
        step_N = first_step + np.arange(len(columns["loss"]))
        is_kept_N = (step_N % self._every == 0) | (step_N == self._num_steps - 1)
        is_kept_N[-1:] |= has_ended
        if is_kept_N.any():
            kept = {name: values[is_kept_N] for name, values in columns.items()}
            self._traces.setdefault(trial_id, []).append({"step": step_N[is_kept_N], **kept})

    def add_readings(self, trial_id: str, points: Sequence[Point]) -> None:
        """Add readings of a member at some of its steps, in ascending order; those of one step become one row."""
        for step, values in points:
            rows = self._telemetry.setdefault(trial_id, [])
            if rows and rows[-1][0] == step:
                rows[-1] = (step, {**rows[-1][1], **values})
            else:
                rows.append((step, values))

    def taken(self) -> tuple[dict[str, Trace], dict[str, Trace]]:
        """Curves and readings since the last call, by trial."""
        traces = {trial_id: _joined(pieces) for trial_id, pieces in self._traces.items()}
        telemetry = {trial_id: as_table(points) for trial_id, points in self._telemetry.items()}
        self._traces, self._telemetry = {}, {}
        return traces, telemetry


def to_host(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Metrics of T steps, (K,) each and possibly on a device, as float64 arrays of shape (T, K).

    All are moved in one copy, so a GPU is waited for once per look instead of once per step.
    """
    names = list(rows[0])
    values = [row[name] for row in rows for name in names]
    if all(hasattr(value, "detach") for value in values):
        import torch

        stacked = torch.stack([value.detach().double() for value in values]).cpu().numpy()
    else:
        stacked = np.stack([np.asarray(value, dtype=np.float64) for value in values])
    by_step = stacked.reshape(len(rows), len(names), -1)
    return {name: by_step[:, i] for i, name in enumerate(names)}


def _joined(pieces: Sequence[Trace]) -> Trace:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
