"""What the rules of the members of a pack read, when they fire, and what they have done (objectives/control.py).

Signals of the step s, of which r is the reading:

``step``                      s itself: a rule that needs no measurement
``loss``, ``grad_norm``       the value over the median of its last 64 finite values before s; none of fewer than 8
``curvature``                 lambda_max lr / 2, the largest eigenvalue over the threshold of the optimizer's step
``curvature_along_gradient``  lambda_grad lr / 2
``v_lag``                     |g|^2 / sum(v), as in telemetry
``noise_scale``               the gradient noise scale over the batch size
``gain``                      AdaScale's gain of the batch over one micro-batch
``loss_scale_falls``          falls of the loss scale in the 64 steps before s

A reading that is not finite does not exceed anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from objectives.control import PRODUCTS, Rule, with_fired
from objectives.interventions import Intervention
from objectives.training.measuring import Pack, curvature_of
from objectives.training.recent import Recent
from objectives.training_config import TrainingConfig

# Shapes: K members, N pairs of a member and one of its rules, R members being read, C those with curvature.

_SERIES = ("loss", "grad_norm", "loss_scale_falls")
_NEVER = np.iinfo(np.int64).max

Signals = Mapping[str, torch.Tensor]  # (K,) each
# By number of products: rows, lambda_grad and lambda_max over the threshold, (C,) each.
Measured = Mapping[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Firing = dict[str, Any]


class Controller:
    """The rules of K members: which of them read at a step, and what they have changed.

    A step at which nothing is read costs one comparison, and the windows of ``Recent`` on the device. At the others the
    host waits for the device once. What a rule does is a function of its member alone.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        ages: Sequence[int],
        device: torch.device,
        before: Controller | None = None,
        sources: Sequence[int] = (),
    ) -> None:
        """``ages`` are the completed steps. Members continue the rows ``sources`` of ``before``, -1 for a new one."""
        self._own, self._device = list(configs), device
        self._pairs = [(row, number) for row, config in enumerate(configs) for number in range(len(config.control))]
        rules = [configs[row].control[number] for row, number in self._pairs]
        self._row_N = np.array([row for row, _ in self._pairs], dtype=np.int64)
        self._base_N = np.array([ages[row] for row, _ in self._pairs], dtype=np.int64)
        self._above_N = np.array([rule.above for rule in rules])
        self._needed_N, self._every_N, self._at_most_N, self._quiet_N = (
            np.array([getattr(rule, name) for rule in rules], dtype=np.int64)
            for name in ("readings", "every", "at_most", "cool_down")
        )
        # Before a reading there must be a step left to act in.
        self._end_N = np.array([configs[row].steps - 1 for row, _ in self._pairs], dtype=np.int64)
        # A member that gets rules in mid-run reads first at what is left of their steps.
        after_N = np.array([rule.after for rule in rules], dtype=np.int64)
        num_past_N = np.maximum(0, -(-(self._base_N - after_N) // self._every_N))
        self._next_N = after_N + num_past_N * self._every_N
        self._streak_N, self._num_fired_N = np.zeros_like(self._row_N), np.zeros_like(self._row_N)
        self.fired: list[list[Firing]] = [[] for _ in configs]
        self._recent = Recent(_SERIES, len(configs), device) if rules else None
        # The start vector of the next curvature of each member; not that of telemetry, which must not change training.
        self._warm_Kn: torch.Tensor | None = None
        self._due_N = np.zeros(0, dtype=np.int64)
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        if before is not None:
            self._take_over(before, sources)
        # With what rules have done so far.
        self.acting = [with_fired(config, log) for config, log in zip(configs, self.fired, strict=True)]
        self._find_soonest()

    @property
    def has_rules(self) -> bool:
        """Whether any of the members has rules."""
        return self._recent is not None

    def before_step(self, num_steps: int, params_Kn: torch.Tensor) -> None:
        """Before the pack's step ``num_steps``: find out what is read, and copy the parameters that that needs."""
        self._due_N, self._before = np.zeros(0, dtype=np.int64), {}
        if num_steps < self._soonest:
            return
        self._due_N = np.flatnonzero(self._next_N - self._base_N == num_steps)
        # With fewer products where fewer are enough.
        rows_of: dict[int, set[int]] = {}
        for n in self._due_N.tolist():
            if (products := PRODUCTS.get(self._rule(n).on, 0)) > 0:
                rows_of.setdefault(products, set()).add(int(self._row_N[n]))
        for products, rows in rows_of.items():
            index = torch.tensor(sorted(rows), device=self._device)
            self._before[products] = index, params_Kn[index]

    def after_step(self, pack: Pack, signals: Signals) -> list[int]:
        """Where there are rules, read what is due after the update of a step; the rows that change.

        The metrics of the step are among ``signals``. What the rows do is then in ``acting``.
        """
        assert self._recent is not None
        rows = self._fire(self._read(pack, signals), signals) if len(self._due_N) else []
        self._recent.add(signals)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Windows, counts, and what has been done: tensors and text."""
        if self._recent is None:
            return {}
        return {
            "recent": self._recent.state_dict(),
            "counts": torch.from_numpy(np.stack([self._next_N, self._streak_N, self._num_fired_N])),
            "fired": json.dumps(self.fired),
            **({} if self._warm_Kn is None else {"warm": self._warm_Kn.clone()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of the same members; of one without rules nothing was read."""
        if self._recent is None or not state:
            return
        self._recent.load_state_dict(state["recent"])
        self._next_N, self._streak_N, self._num_fired_N = (row.copy() for row in state["counts"].numpy())
        self.fired = json.loads(state["fired"])
        self._warm_Kn = state["warm"].clone() if "warm" in state else None
        self.acting = [with_fired(config, log) for config, log in zip(self._own, self.fired, strict=True)]
        self._find_soonest()

    def _rule(self, n: int) -> Rule:
        row, number = self._pairs[n]
        return self._own[row].control[number]

    def _read(self, pack: Pack, signals: Signals) -> np.ndarray:
        """The value of each due pair, float64; NaN for a member that is masked."""
        curvature = {products: self._curvature(pack, products) for products in self._before}
        names = [self._rule(n).on for n in self._due_N.tolist()]
        places, values = [], []
        for name in dict.fromkeys(names):
            of_name = [place for place, other in enumerate(names) if other == name]
            index = torch.from_numpy(self._row_N[self._due_N[of_name]]).to(self._device)
            value_R = self._signal(name, index, of_name, pack, signals, curvature)
            places += of_name
            values.append(value_R.double().masked_fill(~torch.isfinite(signals["loss"][index]), torch.nan))
        found = np.empty(len(names))
        found[places] = torch.cat(values).cpu().numpy()
        return found

    def _signal(
        self, name: str, rows: torch.Tensor, places: Sequence[int], pack: Pack, signals: Signals, curvature: Measured
    ) -> torch.Tensor:
        """The signal ``name`` of ``rows``, (R,); they are the due pairs at ``places``."""
        assert self._recent is not None
        if name == "step":
            return torch.from_numpy(self._next_N[self._due_N[list(places)]]).to(self._device)
        if name in ("loss", "grad_norm"):
            usual_R = self._recent.median(name, rows)
            return (signals[name][rows].double() / usual_R).masked_fill(usual_R <= 0, torch.nan)
        if name == "v_lag":
            v_Rn = pack.optimizer.rule.second_moment(*pack.optimizer.of_rows(rows))
            assert v_Rn is not None  # its facts say so
            return signals["grad_norm"][rows].double().square() / v_Rn.sum(1)
        if name == "loss_scale_falls":
            return self._recent.total(name, rows)
        if name in PRODUCTS:
            measured, along_C, largest_C = curvature[PRODUCTS[name]]
            place_R = torch.searchsorted(measured, rows)
            return (along_C if name == "curvature_along_gradient" else largest_C)[place_R]
        return signals[name][rows]

    def _curvature(self, pack: Pack, products: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The rows that were measured, in order, and their curvature over the threshold: lambda_grad, lambda_max."""
        rows, params_Cn = self._before[products]
        is_warm = products > 1
        if is_warm and self._warm_Kn is None:
            self._warm_Kn = params_Cn.new_zeros(len(self._own), params_Cn.shape[1])
        warm_Cn = torch.zeros_like(params_Cn) if self._warm_Kn is None else self._warm_Kn[rows]
        measured = curvature_of(pack, rows, params_Cn, warm_Cn, products)
        assert measured is not None  # the facts of the optimizer say so
        found, threshold_C = measured
        if is_warm and self._warm_Kn is not None:
            self._warm_Kn[rows] = found.warm_Rn
        return rows, found.lambda_grad_R / threshold_C, found.lambda_max_R / threshold_C

    def _fire(self, value_N: np.ndarray, signals: Signals) -> list[int]:
        """Count the readings of the due pairs, and note what those do that fire; the rows that change."""
        due = self._due_N
        is_above_N = np.isfinite(value_N) & (value_N > self._above_N[due])
        self._streak_N[due] = np.where(is_above_N, self._streak_N[due] + 1, 0)
        step_N = self._next_N[due]
        self._next_N[due] += self._every_N[due]
        firing = np.flatnonzero(self._streak_N[due] >= self._needed_N[due]).tolist()
        asks_gain = any(self._rule(n).asks_gain(self._num_fired_N[n] + 1) for n in due[firing].tolist())
        gains = signals["gain"].tolist() if asks_gain else []
        rows = []
        for place in firing:
            n, step = int(due[place]), int(step_N[place])
            if (entry := self._entry(n, step + 1, gains)) is None:
                continue
            row, rule = int(self._row_N[n]), self._rule(n)
            why = {"on": rule.on, "value": float(value_N[place]), "above": rule.above}
            self.fired[row].append({"step": step, "rule": self._pairs[n][1] + 1, **why, "did": entry.model_dump()})
            self.acting[row] = with_fired(self._own[row], self.fired[row])
            rows.append(row)
            self._streak_N[n], self._num_fired_N[n] = 0, self._num_fired_N[n] + 1
            self._next_N[n] = step + self._every_N[n] * (self._quiet_N[n] // self._every_N[n] + 1)
        self._find_soonest()
        return list(dict.fromkeys(rows))

    def _entry(self, n: int, at: int, gains: Sequence[float]) -> Intervention | None:
        """What the pair does now; None where it asks for a quantile of too few norms, or a gain that is not known."""
        rule, number, row = self._rule(n), int(self._num_fired_N[n]) + 1, int(self._row_N[n])
        measured = {}
        if (share := rule.asks_quantile(number)) is not None:
            assert self._recent is not None
            measured["clip"] = self._recent.quantile("grad_norm", row, share)
        if rule.asks_gain(number):
            measured["lr"] = self._own[row].lr * gains[row]
        return rule.entry(number, at, measured) if all(value > 0 for value in measured.values()) else None

    def _find_soonest(self) -> None:
        """The pack's step of the next reading: none of a rule that has done all it may, or that comes too late."""
        is_over_N = (self._num_fired_N >= self._at_most_N) | (self._next_N >= self._end_N)
        self._next_N[is_over_N] = _NEVER
        self._soonest = int((self._next_N - self._base_N).min(initial=_NEVER))

    def _take_over(self, before: Controller, sources: Sequence[int]) -> None:
        """Continue the members of an earlier pack, with their counts where their rules are the same.

        Members whose rules differ have parted before any of them read (orchestrator/worker/sharing.py).
        """
        first_pair = {row: n for n, (row, number) in enumerate(before._pairs) if number == 0}
        for row, source in enumerate(sources):
            if source < 0:
                continue
            self.fired[row] = list(before.fired[source])
            if self._own[row].control == before._own[source].control and source in first_pair:
                here = np.flatnonzero(self._row_N == row)
                there = first_pair[source] + np.arange(len(here))
                self._next_N[here], self._streak_N[here] = before._next_N[there], before._streak_N[there]
                self._num_fired_N[here] = before._num_fired_N[there]
        index = torch.tensor(sources, device=self._device)
        if self._recent is not None and before._recent is not None:
            self._recent.take_over(before._recent, index)
        if self._recent is not None and before._warm_Kn is not None:
            self._warm_Kn = before._warm_Kn[index.clamp(min=0)].masked_fill((index < 0)[:, None], 0.0)
