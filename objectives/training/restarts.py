"""Returns to a mean of earlier weights: at steps that are written, and where a rule of control fires.

An intervention with ``mean: k`` replaces the weights by the mean of k states of the member, ``apart`` steps from each
other, the last of them the weights at ``until``, or at its step. States of the optimizer stay (PMA-init of arXiv
2505.12082). A sum for each such entry collects the states as they come.

A rule with ``mean`` may fire at any step. So its member keeps the states that it may need, and what the rule does is
such an intervention, whose states are past. Either adds the same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence

import torch

from objectives.control import KeptStates, kept_states
from objectives.entries import Intervention
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import index_on
from objectives.training_config import TrainingConfig

# Shapes: K members, E entries with a mean, M states kept for rules, n parameters per member.

_SUM, _NUM_SUMMED = "restart_sums", "restart_num_summed"
_KEPT, _STEP_KEPT = "restart_kept", "restart_step_kept"
Memory = MutableMapping[str, torch.Tensor]


class Restarts:
    """The returns of K members, whose state is in the pack's ``memory``: zeros for a new member."""

    def __init__(
        self,
        configs: Sequence[TrainingConfig],
        acting: Sequence[TrainingConfig],
        ages: Sequence[int],
        memory: Memory,
        params_Kn: torch.Tensor,
    ) -> None:
        """Add to ``memory`` what it lacks. ``acting``, read at each step, also has what rules have done."""
        self._configs, self._acting, self._ages = configs, acting, ages
        self._params_Kn, self._memory = params_Kn, memory
        # By step of the pack: rows, the sums of their entries, and whether the weights of that step are a state too.
        self._adding: dict[int, list[tuple[int, int]]] = {}
        self._returning: dict[int, list[tuple[int, int, bool]]] = {}
        num_sums = max(self._plan(row, config) for row, config in enumerate(configs))
        kept = [kept_states(config.control) for config in configs]
        self._kept: dict[int, KeptStates] = {row: states for row, states in enumerate(kept) if states is not None}
        alike: dict[tuple[KeptStates, int], list[int]] = {}  # rows whose states come at the same steps
        for row, states in self._kept.items():
            alike.setdefault((states, ages[row]), []).append(row)
        self._keeping: list[tuple[KeptStates, int, Rows]] = [
            (states, age, slice(None) if len(rows) == len(configs) else index_on(params_Kn.device, tuple(rows)))
            for (states, age), rows in alike.items()
        ]
        if num_sums:
            reserve(memory, _SUM, params_Kn, num_sums, params_Kn.shape[1])
            reserve(memory, _NUM_SUMMED, params_Kn, num_sums, 1)
        if self._kept:
            most = max(states.number for states in self._kept.values())
            reserve(memory, _KEPT, params_Kn, most, params_Kn.shape[1])
            reserve(memory, _STEP_KEPT, params_Kn, most, 1)

    @property
    def acts(self) -> bool:
        """Whether a member will return to a mean, or may."""
        return bool(self._returning or self._kept)

    def before_step(self, num_steps: int, changed: Iterable[int]) -> None:
        """Let those members return that are due before the pack's step ``num_steps``, and take up the states of others.

        ``changed`` are the rows with a change before this step, such as one by a rule. A state that another return
        needs is the weights after a return at its step.
        """
        for row, number, adds in self._returning.get(num_steps, ()):
            if adds:
                self._add(row, number)
            self._return(row, self._memory[_SUM][row, number], self._memory[_NUM_SUMMED][row, number])
        for row in self._kept.keys() & changed:
            for entry in self._fired(row, self._ages[row] + num_steps):
                self._return(row, *self._sum_of_kept(row, entry))
        for row, number in self._adding.get(num_steps, ()):
            self._add(row, number)
        for states, age, rows in self._keeping:
            if states.keeps(step := age + num_steps):
                self._memory[_KEPT][rows, states.place(step)] = self._params_Kn[rows]
                self._memory[_STEP_KEPT][rows, states.place(step)] = step

    def _plan(self, row: int, config: TrainingConfig) -> int:
        """Note when the entries of a member need its weights; return how many there are.

        Sums are numbered by when they begin, so that a fork with more entries has the sums of its past.
        """
        entries = [entry for entry in config.interventions if entry.mean is not None]
        numbers = sorted(range(len(entries)), key=lambda place: (entries[place].begins, entries[place].at))
        for place, entry in enumerate(entries):
            number, start = numbers.index(place), self._ages[row]
            states = range(entry.begins, entry.ends + 1, entry.apart)
            self._returning.setdefault(entry.at - start, []).append((row, number, entry.at in states))
            for step in states:
                if step != entry.at:
                    self._adding.setdefault(step - start, []).append((row, number))
        return len(entries)

    def _fired(self, row: int, step: int) -> list[Intervention]:
        """Return the means before ``step`` that rules ask for."""
        own = self._configs[row].interventions
        return [
            entry
            for entry in self._acting[row].interventions
            if entry.at == step and entry.mean is not None and entry not in own
        ]

    def _add(self, row: int, number: int) -> None:
        self._memory[_SUM][row, number] += self._params_Kn[row]
        self._memory[_NUM_SUMMED][row, number] += 1

    def _sum_of_kept(self, row: int, entry: Intervention) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum of the states of an entry, and how many there are; a rollback may have taken some back."""
        states, total_n = self._kept[row], torch.zeros_like(self._params_Kn[row])
        num_1 = torch.zeros_like(total_n[:1])
        for step in range(entry.begins, entry.ends + 1, entry.apart):
            place = states.place(step)
            is_there_1 = self._memory[_STEP_KEPT][row, place] == step
            total_n += torch.where(is_there_1, self._memory[_KEPT][row, place], torch.zeros_like(total_n))
            num_1 += is_there_1
        return total_n, num_1

    def _return(self, row: int, total_n: torch.Tensor, num_1: torch.Tensor) -> None:
        """Replace the weights by the mean; they stay if there is no state of it. The sum begins anew."""
        self._params_Kn[row] = torch.where(num_1 > 0, total_n / num_1, self._params_Kn[row])
        total_n.zero_()
        num_1.zero_()


def reserve(memory: Memory, name: str, params_Kn: torch.Tensor, *sizes: int) -> None:
    """Make room in ``memory`` for (K, ``*sizes``) numbers, and keep what is there; only the first size may change."""
    known = memory.get(name)
    shape = len(params_Kn), *sizes
    if known is not None and known.shape == shape:
        return
    memory[name] = params_Kn.new_zeros(shape)
    if known is not None:
        shared = min(known.shape[1], sizes[0])
        memory[name][:, :shared] = known[:, :shared]
