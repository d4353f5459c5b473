"""Members that go on in double precision from a step: forward pass, backward pass and optimizer.

A pack has one type of numbers, so such a member trains in a second pack, which takes up its parameters, the states of
its optimizer, its rules and its place in the data. It keeps its row in the first pack, whose results nobody reads: so
the others see no change of the pack's size, which could change the bits of compiled code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from objectives.base import ExecutionPlan, RowSpec, TrainingConfig
from objectives.held import float64_step
from objectives.training.packed import PackedTrainer

# Shapes: K members, R observed ones.

Start = Callable[[Sequence[Any], Sequence[int], str, ExecutionPlan], PackedTrainer[Any]]
Metrics = dict[str, torch.Tensor]
_NEVER = 2**31


@dataclass
class _Wide:
    """A pack in double precision, and the rows of its members in the whole pack."""

    trainer: PackedTrainer[Any]
    rows: list[int]

    def among(self, rows: Sequence[int]) -> list[int]:
        """Return the rows of this pack that stand among ``rows`` of the whole one."""
        return [k for k, row in enumerate(self.rows) if row in set(rows)]


class TwoPrecisions:
    """A pack whose members change to double precision as their interventions and rules say."""

    takes_interventions = takes_control = True

    def __init__(
        self, start: Start, configs: Sequence[TrainingConfig], seeds: Sequence[int], device: str, plan: ExecutionPlan
    ) -> None:
        """``start`` makes packs. Raises ValueError if they cannot be of double precision."""
        self._start, self._device = start, device
        # Eager, since one compiled for another number of rows rounds differently.
        kernels = "default" if plan.compiled else plan.kernels
        self._plan = replace(plan, compiled=False, kernels=kernels, float64=True)
        self._base, self._plan_of_base = start(configs, seeds, device, plan), plan
        self._wide: list[_Wide] = []
        if not getattr(self._base, "takes_float64", False):
            kind = type(self._base).__name__
            raise ValueError(f"interventions ask for float64: set takes_float64 = True in {kind} if it can train so")

    @property
    def num_members(self) -> int:
        """Number of members in the pack."""
        return self._base.num_members

    def step(self) -> Metrics:
        """Train one step; return metrics of shape (K,)."""
        self._split()
        return self._merged(self._base.step(), [wide.trainer.step() for wide in self._wide])

    def steps_ahead(self, count: int) -> list[Metrics]:
        """Do ``count`` steps, as many at once as no member changes its precision in."""
        found: list[Metrics] = []
        while (left := count - len(found)) > 0:
            self._split()
            ahead = min(left, self._num_alike())
            parts = [_ahead(trainer, ahead) for trainer in (self._base, *(wide.trainer for wide in self._wide))]
            found += [self._merged(base, wide) for base, *wide in zip(*parts, strict=True)]
        return found

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[Metrics, dict[str, torch.Tensor]]:
        """Do a ``step`` and return readings of the members in ``rows``, (R,) each."""
        self._split()
        metrics, readings = self._base.observed_step(rows, curved, num_products)
        found = []
        for wide in self._wide:
            if not (own := wide.among(rows)):
                found.append(wide.trainer.step())
                continue
            of_wide, values = wide.trainer.observed_step(own, wide.among(curved), num_products)
            found.append(of_wide)
            places = [list(rows).index(wide.rows[k]) for k in own]
            for name in readings:
                readings[name] = _replaced(readings[name], places, values.get(name))
        return self._merged(metrics, found), readings

    def arrange(self, rows: Sequence[RowSpec]) -> None:
        """Rearrange the pack into ``rows``."""
        self._base.arrange(rows)
        arranged = []
        for wide in self._wide:
            own = [k for k, row in enumerate(rows) if row.source in wide.rows]
            if own:
                sources = [wide.rows.index(source) for k in own if (source := rows[k].source) is not None]
                specs = zip((rows[k] for k in own), sources, strict=True)
                wide.trainer.arrange([RowSpec(spec.config.in_float64(), spec.seed, source) for spec, source in specs])
                arranged.append(_Wide(wide.trainer, own))
        self._wide = arranged

    def fired(self, row: int) -> Sequence[Mapping[str, Any]]:
        """Return what the rules of the member ``row`` have done so far."""
        trainer, own = self.of_row(row)
        return trainer.fired(own)

    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the held-out loss of the members in ``rows``."""
        losses = self._base.validate(rows)
        for wide in self._wide:
            if own := wide.among(rows):
                places = [list(rows).index(wide.rows[k]) for k in own]
                losses = _replaced(losses, places, wide.trainer.validate(own))
        return losses

    def averaged_losses(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the held-out losses of the averages of the weights of ``rows``, by name."""
        losses = self._base.averaged_losses(rows)
        for wide in self._wide:
            if own := wide.among(rows):
                places = [list(rows).index(wide.rows[k]) for k in own]
                of_wide = wide.trainer.averaged_losses(own)
                losses = {name: _replaced(value, places, of_wide.get(name)) for name, value in losses.items()}
        return losses

    def describe(self) -> Mapping[str, str]:
        """Return facts about the data."""
        return self._base.describe()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all packs."""
        wide = [{"rows": list(wide.rows), "state": wide.trainer.state_dict()} for wide in self._wide]
        return {"base": self._base.state_dict(), "wide": wide}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of a pack with the same members."""
        self._base.load_state_dict(state["base"])
        self._wide = [_Wide(self._wide_trainer(wide["rows"], wide["state"]), wide["rows"]) for wide in state["wide"]]

    def close(self) -> None:
        """Release all packs."""
        for trainer in (self._base, *(wide.trainer for wide in self._wide)):
            trainer.close()

    def of_row(self, row: int) -> tuple[PackedTrainer[Any], int]:
        """Return the pack that trains the member ``row``, and its row there."""
        found = ((wide.trainer, wide.rows.index(row)) for wide in self._wide if row in wide.rows)
        return next(found, (self._base, row))

    def _left(self) -> dict[int, int]:
        """Return after how many steps members of the first pack change their precision."""
        wide = {row for part in self._wide for row in part.rows}
        ages, configs = self._base.completed_steps, self._base.acting
        steps = ((row, float64_step(config)) for row, config in enumerate(configs) if row not in wide)
        return {row: max(0, step - ages[row]) for row, step in steps if step is not None}

    def _num_alike(self) -> int:
        """Return how many of the next steps change no member's precision; rules may do so at any."""
        if any(config.control for config in self._base.configs):
            return 1
        return min(self._left().values(), default=_NEVER)

    def _split(self) -> None:
        """Begin a pack of the members whose first step in double precision is next."""
        rows = [row for row, left in self._left().items() if left == 0]
        if not rows:
            return
        base = self._base
        copy = self._start(base.configs, base.seeds, self._device, self._plan_of_base)
        copy.load_state_dict(base.state_dict())
        copy.arrange([RowSpec(base.configs[row], base.seeds[row], row) for row in rows])
        state = copy.state_dict()
        copy.close()
        self._wide.append(_Wide(self._wide_trainer(rows, _in_double(state)), rows))

    def _wide_trainer(self, rows: Sequence[int], state: Mapping[str, Any]) -> PackedTrainer[Any]:
        configs = [self._base.configs[row].in_float64() for row in rows]
        trainer = self._start(configs, [self._base.seeds[row] for row in rows], self._device, self._plan)
        trainer.load_state_dict(state)
        return trainer

    def _merged(self, metrics: Mapping[str, torch.Tensor], found: Sequence[Mapping[str, torch.Tensor]]) -> Metrics:
        """Return ``metrics`` of all members with those in double precision, rounded."""
        merged = dict(metrics)
        for wide, values in zip(self._wide, found, strict=True):
            for name in merged:
                neutral = 0.0 if name == "is_skipped" else math.nan  # of what only half precision has
                merged[name] = _replaced(merged[name], wide.rows, values.get(name), neutral)
        return merged


def _ahead(trainer: PackedTrainer[Any], count: int) -> Sequence[Metrics]:
    ahead: Any = getattr(trainer, "steps_ahead", None)
    return ahead(count) if ahead is not None else [trainer.step() for _ in range(count)]


def _replaced(
    value: torch.Tensor, places: Sequence[int], others: torch.Tensor | None, neutral: float = math.nan
) -> torch.Tensor:
    """Return ``value`` with ``others`` at ``places``, or with a ``neutral`` number if there are none."""
    replaced = value.clone()
    replaced[list(places)] = neutral if others is None else others.to(value.device, value.dtype)
    return replaced


def _in_double(state: Any) -> Any:
    """Return a state with its floating numbers in double precision."""
    if isinstance(state, torch.Tensor):
        return state.double() if state.is_floating_point() else state
    if isinstance(state, Mapping):
        return {name: _in_double(value) for name, value in state.items()}
    return [_in_double(value) for value in state] if isinstance(state, list) else state


start = TwoPrecisions  # called by Objective.start
