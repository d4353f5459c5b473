"""The last values of some series of each member of a pack, and their medians, quantiles and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.control import LEAST_HISTORY, WINDOW

# Shapes: K members, R of them being read, S series, W values of a window.


class Recent:
    """The last ``WINDOW`` finite values of each of the series ``names``; what is not finite is left out.

    On the device, one pass of a few operations per step, without waiting for it.
    """

    def __init__(self, names: Sequence[str], num_members: int, device: torch.device) -> None:
        self._place = {name: s for s, name in enumerate(names)}
        self._window_KSW = torch.zeros(num_members, len(names), WINDOW, dtype=torch.float64, device=device)
        self._num_seen_KS = torch.zeros(num_members, len(names), dtype=torch.int64, device=device)

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add the values of a step, (K,) each; a series that is not given gets none."""
        nan_K = torch.full_like(self._window_KSW[:, 0, 0], torch.nan)
        value_KS = torch.stack([values[name].double() if name in values else nan_K for name in self._place], dim=1)
        is_finite_KS = torch.isfinite(value_KS)
        next_KS1 = (self._num_seen_KS % WINDOW)[:, :, None]
        before_KS = self._window_KSW.gather(2, next_KS1)[:, :, 0]
        kept_KS1 = torch.where(is_finite_KS, value_KS, before_KS)[:, :, None]
        self._window_KSW.scatter_(2, next_KS1, kept_KS1)
        self._num_seen_KS += is_finite_KS

    def median(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The median of ``rows``, (R,), of an even number the lower middle; NaN of fewer than ``LEAST_HISTORY``."""
        sorted_RW, num_R = self._sorted(name, rows)
        middle_R = sorted_RW.gather(1, ((num_R - 1).clamp(min=0) // 2)[:, None])[:, 0]
        return middle_R.masked_fill(num_R < LEAST_HISTORY, torch.nan)

    def quantile(self, name: str, row: int, share: float) -> float:
        """The least value of a row that at least ``share`` of its values do not exceed; waits for the device.

        NaN of fewer than ``LEAST_HISTORY``.
        """
        sorted_1W, num_1 = self._sorted(name, torch.tensor([row], device=self._window_KSW.device))
        num = int(num_1)
        # A share such as 0.9 of 10 is a rounding above 9.
        place = max(0, -int(-(share * num - 1e-9) // 1) - 1)
        return float(sorted_1W[0, min(place, num - 1)]) if num >= LEAST_HISTORY else float("nan")

    def total(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """The sum of ``rows``, (R,)."""
        return self._window_KSW[rows, self._place[name]].sum(1)

    def take_over(self, before: Recent, rows: torch.Tensor) -> None:
        """Continue ``rows`` of an earlier pack, -1 for a new member."""
        source_K, is_new_K = rows.clamp(min=0), rows < 0
        self._window_KSW = before._window_KSW[source_K].masked_fill(is_new_K[:, None, None], 0.0)
        self._num_seen_KS = before._num_seen_KS[source_K].masked_fill(is_new_K[:, None], 0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Windows and how many values each has seen."""
        return {"window": self._window_KSW.clone(), "num_seen": self._num_seen_KS.clone()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from the ``state_dict`` of the same members."""
        self._window_KSW.copy_(state["window"])
        self._num_seen_KS.copy_(state["num_seen"])

    def _sorted(self, name: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The values of ``rows`` in ascending order with infinity behind them, (R, W), and their numbers, (R,)."""
        place = self._place[name]
        num_R = self._num_seen_KS[rows, place].clamp(max=WINDOW)
        is_held_RW = torch.arange(WINDOW, device=num_R.device) < num_R[:, None]
        window_RW = self._window_KSW[rows, place].masked_fill(~is_held_RW, torch.inf)
        return window_RW.sort(dim=1).values, num_R
