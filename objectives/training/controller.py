"""Apply the control rules of a pack: read signals, fire rules, and record the changes (objectives/control.py).

Signals of the step s, whose value is the reading r:

``step``                      s itself, for a rule that needs no measurement
``loss``, ``grad_norm``       the value over the median of its last 64 finite values before s; none for fewer than 8
``curvature``                 lambda_max lr / 2: the largest eigenvalue over the threshold of the optimizer's step
``curvature_along_gradient``  lambda_grad lr / 2
``v_lag``                     |g|^2 / sum(v), as in telemetry
``noise_scale``               the gradient noise scale over the batch size
``gain``                      AdaScale's gain of the batch over one micro-batch
``loss_scale_falls``          falls of the loss scale in the 64 steps before s
``router_gini``               the Gini coefficient of the experts' loads in the worst layer, or of a router's
``router_dead``               experts with less than a tenth of an even share in the worst layer

A non-finite reading does not exceed anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from objectives.control import LEAST_HISTORY, PRODUCTS, WINDOW, Rule, with_fired
from objectives.rule_clocks import NEVER, RuleClocks
from objectives.stacking import continued
from objectives.training.measuring import Pack, curvature_of
from objectives.training_config import TrainingConfig

# Shapes: K members, N pairs of a member and one of its rules, R observed members, C those with curvature,
# S series, W values per window.

_SERIES = ("loss", "grad_norm", "loss_scale_falls")

Signals = Mapping[str, torch.Tensor]  # (K,) each
# By number of products: rows, and lambda_grad and lambda_max over the threshold, (C,) each.
Measured = Mapping[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Firing = dict[str, Any]


class Controller:
    """The rules of K members: which read at a step, and what they have changed.

    A step without readings costs one comparison, plus the windows of ``Recent`` on the device. At the other steps the
    host waits for the device once. What a rule does is a function of its own member.
    """

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        ages: Sequence[int],
        device: torch.device,
        before: Controller | None = None,
        sources: Sequence[int] = (),
    ) -> None:
        """Start the rules of members that continue the rows ``sources`` of ``before``, -1 for a new member.

        ``ages`` are the completed steps.
        """
        self._own, self._device = list(configs), device
        self._pairs = [(row, number) for row, config in enumerate(configs) for number in range(len(config.control))]
        rules = [configs[row].control[number] for row, number in self._pairs]
        self._row_N = np.array([row for row, _ in self._pairs], dtype=np.int64)
        self._base_N = np.array([ages[row] for row, _ in self._pairs], dtype=np.int64)
        # A reading needs a later step to act on.
        ends = [configs[row].steps - 1 for row, _ in self._pairs]
        self._clocks = RuleClocks(rules, ends, self._base_N.tolist())
        self.fired: list[list[Firing]] = [[] for _ in configs]
        self._recent = Recent(_SERIES, len(configs), device) if rules else None
        # Start vectors of the next curvature measurement. Telemetry has its own: it must not change training.
        self._warm_Kn: torch.Tensor | None = None
        self._due_N = np.zeros(0, dtype=np.int64)
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        if before is not None:
            self._take_over(before, sources)
        # Configurations with the changes of rules so far.
        self.acting = [with_fired(config, log) for config, log in zip(configs, self.fired, strict=True)]
        self._find_soonest()

    @property
    def has_rules(self) -> bool:
        """Whether any member has rules."""
        return self._recent is not None

    def before_step(self, num_steps: int, params_Kn: torch.Tensor) -> None:
        """Determine what is read at the pack's step ``num_steps``, and copy the parameters for curvature."""
        self._due_N, self._before = np.zeros(0, dtype=np.int64), {}
        if num_steps < self._soonest:
            return
        self._due_N = np.flatnonzero(self._clocks.next_N - self._base_N == num_steps)
        # Members that need fewer products are measured with fewer.
        rows_of: dict[int, set[int]] = {}
        for n in self._due_N.tolist():
            if (products := PRODUCTS.get(self._rule(n).on, 0)) > 0:
                rows_of.setdefault(products, set()).add(int(self._row_N[n]))
        for products, rows in rows_of.items():
            index = torch.tensor(sorted(rows), device=self._device)
            self._before[products] = index, params_Kn[index]

    def after_step(self, pack: Pack, signals: Signals) -> list[int]:
        """Read what is due after a step's update and return the rows that change; requires rules.

        ``signals`` include the step's metrics. The changes are then in ``acting``.
        """
        assert self._recent is not None
        rows = self._fire(self._read(pack, signals), signals) if len(self._due_N) else []
        self._recent.add(signals)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return windows, counts and past firings: tensors and text."""
        if self._recent is None:
            return {}
        return {
            "recent": self._recent.state_dict(),
            "counts": torch.from_numpy(self._clocks.counts),
            "fired": json.dumps(self.fired),
            **({} if self._warm_Kn is None else {"warm": self._warm_Kn.clone()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of the same members. A state without rules is ignored."""
        if self._recent is None or not state:
            return
        self._recent.load_state_dict(state["recent"])
        self._clocks.counts = state["counts"].numpy()
        self.fired = json.loads(state["fired"])
        self._warm_Kn = state["warm"].clone() if "warm" in state else None
        self.acting = [with_fired(config, log) for config, log in zip(self._own, self.fired, strict=True)]
        self._find_soonest()

    def _rule(self, n: int) -> Rule:
        row, number = self._pairs[n]
        return self._own[row].control[number]

    def _read(self, pack: Pack, signals: Signals) -> np.ndarray:
        """Return the value of each due pair, float64; NaN for a masked member."""
        curvature = {products: self._curvature(pack, products) for products in self._before}
        names = [self._rule(n).on for n in self._due_N.tolist()]
        order, values = [], []
        for name in dict.fromkeys(names):
            positions = [i for i, other in enumerate(names) if other == name]
            index = torch.from_numpy(self._row_N[self._due_N[positions]]).to(self._device)
            value_R = self._signal(name, index, positions, pack, signals, curvature)
            order += positions
            values.append(value_R.double().masked_fill(~torch.isfinite(signals["loss"][index]), torch.nan))
        value_N = np.empty(len(names))
        value_N[order] = torch.cat(values).cpu().numpy()
        return value_N

    def _signal(
        self, name: str, rows: torch.Tensor, positions: Sequence[int], pack: Pack, signals: Signals, curvature: Measured
    ) -> torch.Tensor:
        """Return the signal ``name`` of ``rows``, (R,), which are at ``positions`` among the due pairs."""
        assert self._recent is not None
        if name == "step":
            return torch.from_numpy(self._clocks.next_N[self._due_N[list(positions)]]).to(self._device)
        if name in ("loss", "grad_norm"):
            usual_R = self._recent.median(name, rows)
            return (signals[name][rows].double() / usual_R).masked_fill(usual_R <= 0, torch.nan)
        if name == "v_lag":
            v_Rn = pack.optimizer.rule.second_moment(*pack.optimizer.of_rows(rows))
            assert v_Rn is not None  # by the optimizer's facts
            return signals["grad_norm"][rows].double().square() / v_Rn.sum(1)
        if name == "loss_scale_falls":
            return self._recent.total(name, rows)
        if name in PRODUCTS:
            measured, along_C, largest_C = curvature[PRODUCTS[name]]
            position_R = torch.searchsorted(measured, rows)
            return (along_C if name == "curvature_along_gradient" else largest_C)[position_R]
        return signals[name][rows]

    def _curvature(self, pack: Pack, products: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the measured rows in order, and their lambda_grad and lambda_max over the threshold."""
        rows, params_Cn = self._before[products]
        is_warm = products > 1
        if is_warm and self._warm_Kn is None:
            self._warm_Kn = params_Cn.new_zeros(len(self._own), params_Cn.shape[1])
        warm_Cn = torch.zeros_like(params_Cn) if self._warm_Kn is None else self._warm_Kn[rows]
        measured = curvature_of(pack, rows, params_Cn, warm_Cn, products)
        assert measured is not None  # by the optimizer's facts
        result, threshold_C = measured
        if is_warm and self._warm_Kn is not None:
            self._warm_Kn[rows] = result.warm_Rn
        return rows, result.lambda_grad_R / threshold_C, result.lambda_max_R / threshold_C

    def _fire(self, value_N: np.ndarray, signals: Signals) -> list[int]:
        """Count the readings of the due pairs, record what the firing ones do, and return the rows that change."""
        due = self._due_N
        step_N = self._clocks.next_N[due]
        firing = self._clocks.read(due, step_N, value_N)
        at_firing = zip(due[firing].tolist(), step_N[firing].tolist(), strict=True)
        asks_gain = any(self._rule(n).asks_gain(self._number(n, step)) for n, step in at_firing)
        gains = signals["gain"].tolist() if asks_gain else []
        rows = []
        for i in firing:
            n, step = int(due[i]), int(step_N[i])
            if (entry := self._entry(n, step + 1, gains)) is None:
                continue
            row, rule = int(self._row_N[n]), self._rule(n)
            why = {"on": rule.on, "value": float(value_N[i]), "above": rule.above}
            self.fired[row].append({"step": step, "rule": self._pairs[n][1] + 1, **why, "did": entry})
            self.acting[row] = with_fired(self._own[row], self.fired[row])
            rows.append(row)
            self._clocks.fire(n)
        self._find_soonest()
        return list(dict.fromkeys(rows))

    def _entry(self, n: int, at: int, gains: Sequence[float]) -> dict[str, Any] | None:
        """Return the pair's change, or None if there are too few norms or states for it, or the gain is unknown."""
        rule, number, row = self._rule(n), self._number(n, at - 1), int(self._row_N[n])
        if rule.waits_for_states(number, at):
            return None
        measured = {}
        if (share := rule.asks_quantile(number)) is not None:
            assert self._recent is not None
            measured["clip"] = self._recent.quantile("grad_norm", row, share)
        if rule.asks_gain(number):
            measured["lr"] = self._own[row].lr * gains[row]
        return rule.did(number, at, measured) if all(value > 0 for value in measured.values()) else None

    def _number(self, n: int, step: int) -> int:
        """Return which of its changes the pair makes if it fires at ``step``, from 1."""
        row, number = self._pairs[n]
        steps = [firing["step"] for firing in self.fired[row] if firing["rule"] == number + 1]
        num_own = int(self._clocks.num_fired_N[n])  # the others were made by earlier rules of a fork
        return self._rule(n).number(steps[len(steps) - num_own :], step)

    def _find_soonest(self) -> None:
        """Update the step of the next reading, without rules that have fired ``at_most`` times or read too late."""
        self._clocks.retire()
        self._soonest = int((self._clocks.next_N - self._base_N).min(initial=NEVER))

    def _take_over(self, before: Controller, sources: Sequence[int]) -> None:
        """Continue members of an earlier pack, with their counts if their rules are the same.

        Members with different rules are separate before any rule reads (orchestrator/worker/members.py).
        """
        first_pair = {row: n for n, (row, number) in enumerate(before._pairs) if number == 0}
        for row, source in enumerate(sources):
            if source < 0:
                continue
            self.fired[row] = list(before.fired[source])
            if self._own[row].control == before._own[source].control and source in first_pair:
                here = np.flatnonzero(self._row_N == row)
                there = first_pair[source] + np.arange(len(here))
                self._clocks.take_over(here, before._clocks, there)
        index = torch.tensor(sources, device=self._device)
        if self._recent is not None and before._recent is not None:
            self._recent.take_over(before._recent, index)
        if self._recent is not None and before._warm_Kn is not None:
            self._warm_Kn = continued(before._warm_Kn, index)


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
        self._window_KSW = continued(before._window_KSW, rows)
        self._num_seen_KS = continued(before._num_seen_KS, rows)

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
