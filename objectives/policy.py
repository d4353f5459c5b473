"""Control of a training loop of the user's own: from reported steps to what the loop should do; free of torch.

The rules are a pack's (objectives/control.py). A step is reported before or after its update, and a change is in force
from the next update: from the step ``at`` if that was reported before. The field ``lr`` is a factor on the rate that
the loop itself sets.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from objectives.action import Action, Kind
from objectives.control import BACK, LEAST_HISTORY, QUANTILE, STOP, WINDOW, Rule, with_fired
from objectives.interventions import in_force
from objectives.loop_config import OF_TELEMETRY, SIGNALS, checked
from objectives.rule_clocks import RuleClocks
from objectives.rule_words import firing_in_words

Firing = dict[str, Any]
Newest = Callable[[int], int | None]  # the step of the newest snapshot up to a step, or None


class Policy:
    """The rules of one run: ``take`` a step, then ask for its ``action``."""

    def __init__(self, rules: Sequence[Rule], steps: int | None = None) -> None:
        """Start ``rules`` in a run of ``steps``. Raises ValueError for a rule that cannot act in it."""
        self._config = self._acting = checked(rules, steps)
        self._rules = list(rules)
        self._clocks = RuleClocks(rules, [self._config.steps] * len(rules))
        self._recent: dict[str, deque[float]] = {name: deque(maxlen=WINDOW) for name in ("loss", "grad_norm")}
        self._read: dict[str, tuple[int, float]] = {}  # the last step and value of signals of telemetry
        self.fired: list[Firing] = []

    @property
    def farthest(self) -> int:
        """The most steps that a change goes back; 0 if none does."""
        return max(self._backs(), default=0)

    @property
    def nearest(self) -> int:
        """The fewest steps that a change goes back; 0 if none does."""
        return min(self._backs(), default=0)

    @property
    def clips(self) -> bool:
        """Whether a change clips gradients."""
        return any(name in change for rule in self._rules for change in rule.do for name in ("clip", QUANTILE))

    @property
    def asks_telemetry(self) -> list[str]:
        """The signals of its rules that only telemetry has."""
        return list(dict.fromkeys(rule.on for rule in self._rules if rule.on in OF_TELEMETRY))

    def read(self, step: int, reading: Mapping[str, float]) -> None:
        """Take a ``reading`` of telemetry for the rules of later steps."""
        for name, (top, bottom) in OF_TELEMETRY.items():
            below = 1.0 if bottom is None else reading.get(bottom, math.nan)
            if top in reading and below > 0:
                self._read[name] = step, reading[top] / below

    def take(
        self,
        step: int,
        loss: float,
        norm: float | None = None,
        newest: Newest | None = None,
        known: Sequence[Firing] | None = None,
    ) -> list[Firing]:
        """Take a step; return what fires. Steps must increase.

        ``newest`` knows the snapshots to return to. ``known`` are the firings of a step that is repeated.
        """
        due = np.flatnonzero(self._clocks.next_N <= step)
        firings = list(known or ())
        if len(due):
            signals = self._signals(step, loss, norm)
            rules = [self._rules[n] for n in due.tolist()]
            value_N = np.array([signals.get(rule.on, self._last(rule, step)) for rule in rules])
            fires = self._clocks.read(due, np.full(len(due), step), value_N)
            if known is None:
                made = (self._firing(int(due[i]), step, float(value_N[i]), newest) for i in fires)
                firings = [firing for firing in made if firing is not None]
        for firing in firings:
            self._clocks.fire(firing["rule"] - 1)
        self._clocks.retire()
        if firings:
            self.fired += firings
            self._acting = with_fired(self._config, self.fired)
        for name, value in (("loss", loss), ("grad_norm", norm)):
            if value is not None and math.isfinite(value):
                self._recent[name].append(value)
        return firings

    def action(self, step: int) -> Action:
        """Return what to do at ``step``, one that was taken: the same when it is asked again."""
        now = [firing for firing in self.fired if firing["step"] == step]
        past = [firing["did"] for firing in self.fired if firing["step"] <= step]
        backs = [firing["did"][BACK] for firing in now if BACK in firing["did"]]
        is_over = any(STOP in did for did in past)
        skips = bool(backs) or any(step < did["at"] + did.get("skip", 0) for did in past)
        kind: Kind = "stop" if is_over else "rollback" if backs else "skip" if skips else "change" if now else "none"
        config = in_force(self._acting, step)
        return Action(
            step=step,
            kind=kind,
            factor=config.lr,
            clip=config.clip,
            skip=skips,
            rollback_to=step - max(backs) if backs else None,
            reason="; ".join(f"{firing['on']} {firing['value']:.3g} > {firing['above']:g}" for firing in now),
            words="; ".join(map(firing_in_words, now)),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        recent = {name: list(values) for name, values in self._recent.items()}
        counts = self._clocks.counts.tolist()
        return {"counts": counts, "recent": recent, "read": dict(self._read), "fired": list(self.fired)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of the same rules. Raises ValueError if there were more or fewer."""
        counts = np.array(state["counts"], dtype=np.int64)
        if counts.shape[1:] != (len(self._rules),):
            raise ValueError(f"the state is of {counts.shape[-1]} rules, and there are {len(self._rules)}")
        self._clocks.counts = counts
        self._recent = {name: deque(values, maxlen=WINDOW) for name, values in state["recent"].items()}
        self._read = {name: (at, value) for name, (at, value) in state["read"].items()}
        self.fired = list(state["fired"])
        self._acting = with_fired(self._config, self.fired)

    def _backs(self) -> Iterable[int]:
        return (change[BACK] for rule in self._rules for change in rule.do if BACK in change)

    def _signals(self, step: int, loss: float, norm: float | None) -> dict[str, float]:
        """Return the signals of a step; NaN if unknown, and for all except ``not_finite`` if the loss is not finite."""
        if not math.isfinite(loss):
            return {**dict.fromkeys(SIGNALS, math.nan), "not_finite": 1.0}
        return {
            "step": float(step),
            "loss": self._over_trend("loss", loss),
            "grad_norm": math.nan if norm is None else self._over_trend("grad_norm", norm),
            "not_finite": float(norm is not None and not math.isfinite(norm)),
        }

    def _last(self, rule: Rule, step: int) -> float:
        """Return the last reading of telemetry, or NaN if it is older than the rule's own last reading."""
        at, value = self._read.get(rule.on, (-math.inf, math.nan))
        return value if step - at <= rule.every else math.nan

    def _over_trend(self, name: str, value: float) -> float:
        """Return ``value`` over the median of the values before it, the lower of two middle ones."""
        recent = sorted(self._recent[name])
        usual = recent[(len(recent) - 1) // 2] if len(recent) >= LEAST_HISTORY else math.nan
        return value / usual if usual > 0 else math.nan

    def _quantile(self, share: float) -> float:
        """Return the smallest recent gradient norm that at least ``share`` of them do not exceed; NaN for too few."""
        recent = sorted(self._recent["grad_norm"])
        # 1e-9, since a product such as 0.9 * 10 may round to just above 9.
        rank = max(0, math.ceil(share * len(recent) - 1e-9) - 1)
        return recent[rank] if len(recent) >= LEAST_HISTORY else math.nan

    def _firing(self, n: int, step: int, value: float, newest: Newest | None) -> Firing | None:
        """Return what the rule ``n`` does at ``step``, or None if it cannot: too few norms, or nothing to return to."""
        rule = self._rules[n]
        past = [firing["step"] for firing in self.fired if firing["rule"] == n + 1]
        number, measured = rule.number(past, step), {}
        if (share := rule.asks_quantile(number)) is not None:
            measured["clip"] = self._quantile(share)
            if not measured["clip"] > 0:
                return None
        did = rule.did(number, step, measured)
        if BACK in did:
            target = step - did[BACK] if newest is None else newest(step - did[BACK])
            if target is None or target < 0:
                return None
            did[BACK] = step - target
        return {"step": step, "rule": n + 1, "on": rule.on, "value": value, "above": rule.above, "did": did}
