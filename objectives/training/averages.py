"""Averages of a member's weights while it trains: an exponential one, and a mean of states.

- ``ema``: the debiased exponential average of the weights after each step. With decay d the weights after step t of T
  have the share (1 - d) d^(T - t) / (1 - d^T) (as Adam's moments; Polyak averaging with a finite memory).
- ``merge_last``: the states after every ``merge_every`` steps, the last so many of them, for their mean (Izmailov et
  al., arXiv 1803.05407; Li et al., arXiv 2505.12082).

Neither touches training; returns to a mean do (objectives/training/restarts.py). A mean of states with shares c equals
training whose update i is multiplied by w_i = sum over j >= i of c_j (arXiv 2507.17634), so a constant rate with an
average stands for a decaying rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from objectives.optimizers.packed_optimizer import Rows
from objectives.training.restarts import Memory, reserve
from objectives.training_config import TrainingConfig

# Shapes: K members, R of them with an average, M states kept of each, n parameters per member.

_EMA, _EMA_SHARE = "ema", "ema_share"
_KEPT, _NUM_KEPT = "kept", "num_kept"
MERGED_LOSS, EMA_LOSS = "merged_loss", "ema_loss"


class Averages:
    """The averages of K members, whose state is in the pack's ``memory``: zeros for a new member."""

    def __init__(
        self, configs: Sequence[TrainingConfig], ages: Sequence[int], memory: Memory, params_Kn: torch.Tensor
    ) -> None:
        """Add to ``memory`` what it lacks. ``ages`` are the completed steps."""
        self._params_Kn, self._memory = params_Kn, memory
        self._last, self._every = configs[0].merge_last, configs[0].merge_every
        kept: dict[int, list[int]] = {}  # by step of the pack, modulo merge_every
        for row, age in enumerate(ages if self._last is not None else ()):
            kept.setdefault(-age % self._every, []).append(row)
        self._kept_rows = {phase: torch.tensor(rows, device=params_Kn.device) for phase, rows in kept.items()}
        decays = [config.ema for config in configs]
        rows = [row for row, decay in enumerate(decays) if decay is not None]
        self._has_ema = bool(rows)
        self._rows_R: Rows = slice(None) if len(rows) == len(configs) else torch.tensor(rows, device=params_Kn.device)
        self._decay_R1 = params_Kn.new_tensor([[decays[row]] for row in rows])
        self._rest_R1 = params_Kn.new_tensor([[1 - (decays[row] or 0.0)] for row in rows])
        if rows:
            reserve(memory, _EMA, params_Kn, params_Kn.shape[1])
            reserve(memory, _EMA_SHARE, params_Kn, 1)
        if self._last is not None:
            reserve(memory, _KEPT, params_Kn, self._last, params_Kn.shape[1])
            reserve(memory, _NUM_KEPT, params_Kn)

    @property
    def acts(self) -> bool:
        """Whether a member has an average."""
        return self._has_ema or self._last is not None

    def after_step(self, num_steps: int) -> None:
        """Take up the weights after the pack's step; ``num_steps`` counts it."""
        if self._has_ema:
            self._add_to_ema()
        if self._last is not None:
            rows_R = self._kept_rows.get(num_steps % self._every)
            if rows_R is not None:
                self._keep(rows_R, self._last)

    def losses(self, validate: Callable[[Sequence[int]], torch.Tensor], rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the losses that ``validate`` measures with averages in place of weights, for ``rows``; NaN without."""
        found = {}
        for name, mean_Kn in self._means().items():
            own_Kn = self._params_Kn.clone()
            self._params_Kn.copy_(mean_Kn)
            try:
                found[name] = validate(rows)
            finally:
                self._params_Kn.copy_(own_Kn)
        return found

    def _means(self) -> Mapping[str, torch.Tensor]:
        means = {}
        if self._last is not None:
            kept_KMn, number_K1 = self._memory[_KEPT], self._memory[_NUM_KEPT][:, None].clamp(max=self._last)
            total_Kn = torch.zeros_like(self._params_Kn)
            for state in range(self._last):  # in order, so that bits do not depend on the number of members
                total_Kn += kept_KMn[:, state]
            means[MERGED_LOSS] = total_Kn / number_K1
        if self._has_ema:
            mean_Kn = torch.full_like(self._params_Kn, torch.nan)
            mean_Kn[self._rows_R] = self._memory[_EMA][self._rows_R]
            means[EMA_LOSS] = mean_Kn
        return means

    def _add_to_ema(self) -> None:
        """Move each average by its debiased share; products and sums round alike in every pack, a power would not."""
        rows_R = self._rows_R
        share_R1 = self._memory[_EMA_SHARE][rows_R] * self._decay_R1 + self._rest_R1
        ema_Rn = self._memory[_EMA][rows_R]
        self._memory[_EMA_SHARE][rows_R] = share_R1
        self._memory[_EMA][rows_R] = ema_Rn + (self._params_Kn[rows_R] - ema_Rn) * (self._rest_R1 / share_R1)

    def _keep(self, rows_R: torch.Tensor, last: int) -> None:
        number_R = self._memory[_NUM_KEPT][rows_R]
        self._memory[_KEPT][rows_R, number_R.long() % last] = self._params_Kn[rows_R]
        self._memory[_NUM_KEPT][rows_R] = number_R + 1
