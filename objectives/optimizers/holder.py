"""What members of a pack hold while an intervention lasts: frozen weights, norms, the decay of groups, a still v.

Frozen columns are put back after a step, and norms are restored by a factor on each weight. So steps are the same code
for the other members, compiled or native, and keep their bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from objectives.base import TrainingConfig
from objectives.held import EVERY_WEIGHT, Held, ever_holds
from objectives.optimizers.rules.rule import States
from objectives.stacking import Layout, sent

# Shapes: K members, n parameters per member, T weights.

_NORM, _AGE, _ADAGC = "held_norm", "still_age", "adagc"
HELD_STATES = (_NORM, _AGE)
_NOTHING = Held()
# Per row: the columns of a buffer, and what they held.
_Columns = list[tuple[int, slice, torch.Tensor]]


@dataclass(frozen=True)
class Kept:
    """What a step must not change: columns of the parameters and of states."""

    params: _Columns = field(default_factory=list)
    states: dict[str, _Columns] = field(default_factory=dict)


class Holder:
    """What K members hold; norms to keep and ages of still second moments are among the optimizer's states."""

    def __init__(self, configs: Sequence[TrainingConfig], layout: Layout, device: torch.device) -> None:
        """A kind that no configuration may ever hold costs nothing. Raises ValueError for an unknown group."""
        self.layout, self._num_members, self._device = layout, len(configs), device
        self._has_norms = any(ever_holds(config, "norm") for config in configs)
        self._has_still = any(ever_holds(config, "optimizer") for config in configs)
        self._weights = {**layout.weights_of_depths(), **layout.weights_of_groups()}
        self._of_row: dict[int, Held] = {}  # of members that hold something
        self._is_still_K: torch.Tensor | None = None
        self._decay_KT: torch.Tensor | None = None  # NaN where the member's own holds
        for group in {group for config in configs for group in _groups(config)}:
            self._pieces(group)

    @property
    def has_decay(self) -> bool:
        """Whether weight decay differs by weight."""
        return self._decay_KT is not None

    @property
    def acts(self) -> bool:
        """Whether a step needs ``before`` and ``after``."""
        return any(held.frozen or held.norms for held in self._of_row.values())

    @property
    def capped(self) -> list[int]:
        """The rows whose attention is capped."""
        return [row for row, held in self._of_row.items() if held.caps_attention]

    def freezing(self, name: str) -> list[int]:
        """Return the rows whose weight ``name`` is frozen."""
        return [row for row, held in self._of_row.items() if self._has(name, held.frozen)]

    def keeping(self, name: str) -> list[int]:
        """Return the rows whose weight ``name`` is frozen or keeps its norm."""
        return [row for row, held in self._of_row.items() if self._has(name, (*held.frozen, *held.norms))]

    def _has(self, name: str, groups: Iterable[str]) -> bool:
        return any(self.layout.pieces[t].name == name for group in groups for t in self._pieces(group))

    def states(self, params_Kn: torch.Tensor) -> States:
        """Return zeros: a norm for each weight, and the age of the second moment."""
        double = {"dtype": torch.float64, "device": params_Kn.device}
        states = {}
        if self._has_norms:
            states[_NORM] = torch.zeros(len(params_Kn), len(self.layout.pieces), **double)  # type: ignore[call-overload]
        if self._has_still:
            states[_AGE] = torch.zeros(len(params_Kn), 1, **double)  # type: ignore[call-overload]
        return states

    def begin(self, row: int, begins: Held, params_Kn: torch.Tensor, states: States, age_K: torch.Tensor) -> None:
        """Remember what the member ``row`` holds from now on."""
        for t in {t for group in begins.norms for t in self._pieces(group)}:
            states[_NORM][row, t] = _norm(params_Kn[row], self._columns(t))
        if begins.keeps_v:
            states[_AGE][row] = age_K[row]

    def change(self, row: int, held: Held) -> None:
        """Hold what ``held`` says for the member ``row`` until the next change."""
        before = self._of_row.pop(row, _NOTHING)
        if held != _NOTHING:
            self._of_row[row] = held
        if held == before:
            return
        still = [row in self._of_row and self._of_row[row].keeps_v for row in range(self._num_members)]
        self._is_still_K = sent(torch.tensor(still), self._device) if any(still) else None
        decays = {row: held.decay for row, held in self._of_row.items() if held.decay}
        decay_KT = torch.full((self._num_members, len(self.layout.pieces)), math.nan, dtype=torch.float64)
        for row, decay in decays.items():
            for group, value in decay.items():
                decay_KT[row, self._pieces(group)] = value
        self._decay_KT = sent(decay_KT, self._device) if decays else None

    def decay(self, weight_decay_K: torch.Tensor) -> torch.Tensor:
        """Return the weight decay of each member, (K, 1), or (K, T) if it differs by weight."""
        own_K1 = weight_decay_K[:, None]
        if self._decay_KT is None:
            return own_K1
        return torch.where(self._decay_KT.isnan(), own_K1, self._decay_KT)

    def still_age(self, states: States) -> torch.Tensor | None:
        """Return the ages of second moments that stand still, infinite for others; None if none does."""
        return None if self._is_still_K is None else states[_AGE][:, 0].masked_fill(~self._is_still_K, math.inf)

    def before(self, params_Kn: torch.Tensor, states: States, grad_Kn: torch.Tensor) -> Kept | None:
        """Return what the step must not change, None if nothing is held; a gradient whose moments stop becomes zero."""
        if not self.acts:
            return None
        kept = Kept()
        for row, held in self._of_row.items():
            for group, stops in held.frozen.items():
                for t in self._pieces(group):
                    columns = self._columns(t)
                    kept.params.append((row, columns, params_Kn[row, columns].clone()))
                    if stops:
                        grad_Kn[row, columns] = 0.0
                        self._keep_states(kept, row, t, states)
        return kept

    def _keep_states(self, kept: Kept, row: int, t: int, states: States) -> None:
        for name, state in states.items():
            if name == _ADAGC:
                columns = slice(1 + t, 2 + t)  # its first column counts norms
            elif state.shape[1] == self.layout.size:
                columns = self._columns(t)
            else:
                continue
            kept.states.setdefault(name, []).append((row, columns, state[row, columns].clone()))

    def after(
        self, kept: Kept, params_Kn: torch.Tensor, states: States, update_Kn: torch.Tensor, updated_K: torch.Tensor
    ) -> None:
        """Put back what was ``kept``, and restore the norms of members that were updated."""
        for row, columns, value in kept.params:
            params_Kn[row, columns] = value
            update_Kn[row, columns] = 0.0
        for name, places in kept.states.items():
            for row, columns, value in places:
                states[name][row, columns] = value
        for row, held in self._of_row.items():
            frozen = {t for group in held.frozen for t in self._pieces(group)}
            weights = {t for group in held.norms for t in self._pieces(group)} - frozen
            for t in sorted(weights):
                columns = self._columns(t)
                factor = states[_NORM][row, t] / _norm(params_Kn[row], columns)
                acts = updated_K[row] & factor.isfinite()  # a weight of zeros has no direction
                params_Kn[row, columns] *= torch.where(acts, factor, 1.0).to(params_Kn.dtype)

    def _columns(self, t: int) -> slice:
        piece = self.layout.pieces[t]
        return slice(piece.start, piece.end)

    def _pieces(self, group: str) -> list[int]:
        if group not in self._weights:
            known = ", ".join(self._weights)
            raise ValueError(f"interventions name the group {group!r}, which the model does not have: {known}")
        return self._weights[group]


def _norm(params_n: torch.Tensor, columns: slice) -> torch.Tensor:
    """Return the Euclidean norm of a member's weight in double precision; it does not depend on other members."""
    return torch.linalg.vector_norm(params_n[columns].double())


def _groups(config: TrainingConfig) -> set[str]:
    """Return the groups that interventions and rules may name."""
    entries = [entry.model_dump() for entry in config.interventions]
    entries += [dict(change) for rule in config.control for change in rule.do]
    named = {entry[key] for entry in entries for key in ("freeze", "group") if key in entry}
    return named - {EVERY_WEIGHT}
