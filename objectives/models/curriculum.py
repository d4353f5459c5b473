"""Curricula: the share of its text that a member's sequences are drawn from, as a function of the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from objectives.models.ahead import Ahead, Cohorts, steps_ahead
from objectives.models.facts.feed import FeedFields
from objectives.models.facts.text import ORDERS

# Shapes: T steps, K members, B sequences.

_PARTS = 2**20  # of a text: shares are in whole parts, so that places are integers


class Curriculum:
    """Draw each member's sequences from a growing share of its text, whose documents are ordered from easy to hard.

    The share at step i is from + (to - from) min(i / steps, 1), of the beginning of the text, or of its end where the
    order is reversed. A place in the whole text becomes the place that is as far into the share, so with a share of 1
    a member draws what it draws without a curriculum. Data steps count, so that after a rollback or a fork
    the order goes on with the batches.
    """

    def __init__(self, configs: Sequence[FeedFields]) -> None:
        self.orders_documents = configs[0].curriculum in ORDERS
        self.orders_domains = configs[0].curriculum == "domains"
        self._is_reversed = configs[0].curriculum_reversed
        self._devices: dict[torch.device, _Windows] = {}
        self._configs = configs
        self._index: tuple[torch.Tensor | None, dict[torch.device, torch.Tensor]] = None, {}

    def placed(
        self, positions_TKB: torch.Tensor, num_starts: int, cohorts: Cohorts, cohort_of_member_K: torch.Tensor
    ) -> torch.Tensor:
        """Return where sequences begin that would begin at ``positions_TKB`` of all ``num_starts`` places."""
        windows = self._windows(positions_TKB.device)
        share_TK1 = windows.at(cohorts, len(positions_TKB), cohort_of_member_K)
        num_open_TK1 = (num_starts * share_TK1 // _PARTS).clamp(min=1)
        placed_TKB = torch.minimum(positions_TKB * share_TK1 // _PARTS, num_open_TK1 - 1)
        return placed_TKB + (num_starts - num_open_TK1) if self._is_reversed else placed_TKB

    def drawn(self, draw_TKB: torch.Tensor, cohorts: Cohorts, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return the uniform draws of domains, which end at the share, or begin there where the order is reversed."""
        windows = self._windows(draw_TKB.device)
        share_TK1 = windows.at(cohorts, len(draw_TKB), cohort_of_member_K).double() / _PARTS
        drawn_TKB = draw_TKB * share_TK1
        return drawn_TKB + (1 - share_TK1) if self._is_reversed else drawn_TKB

    def index_on(self, device: torch.device, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return ``cohort_of_member_K`` on a device; it is kept, since the host waits for what comes from another."""
        if self._index[0] is not cohort_of_member_K:
            self._index = cohort_of_member_K, {}
        known = self._index[1]
        if device not in known:
            known[device] = cohort_of_member_K.to(device)
        return known[device]

    def _windows(self, device: torch.device) -> _Windows:
        """Return the windows on the device that reads the text, which for a text on disk is the host."""
        if device not in self._devices:
            self._devices[device] = _Windows(self._configs, device)
        return self._devices[device]


class _Windows:
    """The share of each member at each data step, in parts of ``_PARTS``, on one device."""

    def __init__(self, configs: Sequence[FeedFields], device: torch.device) -> None:
        def tensor(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._first_K = tensor([config.curriculum_from for config in configs], torch.float64)
        self._change_K = tensor([config.curriculum_to - config.curriculum_from for config in configs], torch.float64)
        self._steps_K = tensor([config.curriculum_steps for config in configs], torch.float64)
        self._steps_ahead = Ahead(steps_ahead, device)

    def at(self, cohorts: Cohorts, count: int, cohort_of_member_K: torch.Tensor) -> torch.Tensor:
        """Return the share of each member in ``count`` steps, int64 (T, K, 1)."""
        step_TK = self._steps_ahead.take(cohorts, count)[:, cohort_of_member_K]
        done_TK = (step_TK / self._steps_K).clamp(max=1)
        share_TK = ((self._first_K + self._change_K * done_TK) * _PARTS).round().clamp(min=1)
        return share_TK.long()[..., None]
