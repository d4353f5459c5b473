"""Windows of recent values per member and series, with medians, quantiles and sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from objectives.control import LEAST_HISTORY, WINDOW

# Shapes: K members, R observed ones, S series, W values per window.


class Recent:
    """The last ``WINDOW`` finite values of each series in ``names``. Non-finite values are left out.

    A step costs a few operations on the device, without waiting for it.
    """

    def __init__(self, names: Sequence[str], num_members: int, device: torch.device) -> None:
        self._series = {name: s for s, name in enumerate(names)}
        self._window_KSW = torch.zeros(num_members, len(names), WINDOW, dtype=torch.float64, device=device)
        self._num_seen_KS = torch.zeros(num_members, len(names), dtype=torch.int64, device=device)

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add the values of a step, (K,) each. A series that is not given gets none."""
        nan_K = torch.full_like(self._window_KSW[:, 0, 0], torch.nan)
        value_KS = torch.stack([values[name].double() if name in values else nan_K for name in self._series], dim=1)
        is_finite_KS = torch.isfinite(value_KS)
        next_KS1 = (self._num_seen_KS % WINDOW)[:, :, None]
        before_KS = self._window_KSW.gather(2, next_KS1)[:, :, 0]
        kept_KS1 = torch.where(is_finite_KS, value_KS, before_KS)[:, :, None]
        self._window_KSW.scatter_(2, next_KS1, kept_KS1)
        self._num_seen_KS += is_finite_KS

    def median(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the median of ``rows``, (R,), the lower of two middle values; NaN below ``LEAST_HISTORY`` values."""
        sorted_RW, num_R = self._sorted(name, rows)
        middle_R = sorted_RW.gather(1, ((num_R - 1).clamp(min=0) // 2)[:, None])[:, 0]
        return middle_R.masked_fill(num_R < LEAST_HISTORY, torch.nan)

    def quantile(self, name: str, row: int, share: float) -> float:
        """Return the smallest value of a row that at least ``share`` of its values do not exceed. Waits for the device.

        NaN below ``LEAST_HISTORY`` values.
        """
        sorted_1W, num_1 = self._sorted(name, torch.tensor([row], device=self._window_KSW.device))
        num = int(num_1)
        # 1e-9, since a product such as 0.9 * 10 may round to just above 9.
        rank = max(0, -int(-(share * num - 1e-9) // 1) - 1)
        return float(sorted_1W[0, min(rank, num - 1)]) if num >= LEAST_HISTORY else float("nan")

    def total(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum of the window of ``rows``, (R,)."""
        return self._window_KSW[rows, self._series[name]].sum(1)

    def take_over(self, before: Recent, rows: torch.Tensor) -> None:
        """Continue ``rows`` of an earlier pack, -1 for a new member."""
        source_K, is_new_K = rows.clamp(min=0), rows < 0
        self._window_KSW = before._window_KSW[source_K].masked_fill(is_new_K[:, None, None], 0.0)
        self._num_seen_KS = before._num_seen_KS[source_K].masked_fill(is_new_K[:, None], 0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the windows and how many values each has seen."""
        return {"window": self._window_KSW.clone(), "num_seen": self._num_seen_KS.clone()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from the ``state_dict`` of the same members."""
        self._window_KSW.copy_(state["window"])
        self._num_seen_KS.copy_(state["num_seen"])

    def _sorted(self, name: str, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of ``rows`` in ascending order, padded with infinity, (R, W), and their numbers, (R,)."""
        series = self._series[name]
        num_R = self._num_seen_KS[rows, series].clamp(max=WINDOW)
        is_held_RW = torch.arange(WINDOW, device=num_R.device) < num_R[:, None]
        window_RW = self._window_KSW[rows, series].masked_fill(~is_held_RW, torch.inf)
        return window_RW.sort(dim=1).values, num_R
