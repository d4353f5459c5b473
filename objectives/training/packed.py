"""The training loop that the built-in objectives share: one stacked model, one flat buffer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch

from objectives.base import ExecutionPlan, RowSpec
from objectives.instruments.curvature import GradientGraph
from objectives.instruments.telemetry import group_readings
from objectives.optimizers.named import make_optimizer
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking.layer_names import longest_beginning, refuse_idle_beginnings, third_of_depth
from objectives.stacking.layout import ALL, Layout
from objectives.stacking.rounding import rows_of_blocks
from objectives.stacking.seeding import seeded_generator
from objectives.training.changes import Changes, batches_of
from objectives.training.controller import Controller
from objectives.training.hyperparameters import hyperparameter
from objectives.training.measuring import curvature_readings
from objectives.training.members import refuse_stale_members
from objectives.training.rollback import begin_rollback
from objectives.training_config import TrainingConfig

# Shapes: K members, R of them being read, C of those with curvature; S cohorts; n parameters of one member, padded with
# zeros to whole blocks.

Config = TypeVar("Config", bound=TrainingConfig)  # of the objective
Weights = dict[str, torch.Tensor]
# Random streams of one seed that must not overlap.
WEIGHT_PURPOSE, DATA_PURPOSE, _HESSIAN_PURPOSE = 0, 1, 12


class PackedTrainer(ABC, Generic[Config]):
    """A pack of K members whose parameters are rows of one (K, n) buffer.

    A subclass provides ``initial_weights`` of one member and ``losses``, a differentiable function of ``self.weights``
    (name -> tensor of shape (K, ...), views into the buffer) that does not mix members. A function written for one
    member is applied to all by ``of_each_member``. Data and noise come from ``draw``. A cohort is the members of equal
    seed and age, which see the same data and noise. A member with ``rollback`` returns to a snapshot on a spike and
    skips data (objectives/training/rollback.py); then its data step is ahead of its age. So may one with interventions
    be, which change its numbers, its states and its data before given steps (objectives/interventions.py).
    """

    weights: Weights
    # The layer group of weights, by the beginning of their names. One that no beginning fits is in no group.
    groups: Mapping[str, str] = MappingProxyType({})
    # The beginnings of the names of each block's weights, from the input to the output; none for no parts by depth.
    blocks: Sequence[str] = ()
    takes_interventions = takes_control = True

    def __init__(self, configs: Sequence[Config], seeds: Sequence[int], device: str, plan: ExecutionPlan) -> None:
        self.device, self.plan = torch.device(device), plan
        self.structure = configs[0]  # for its structural fields, which are equal in all members
        self._shapes = {name: tuple(weight.shape) for name, weight in self.initial_weights(seeds[0]).items()}
        zeros = [0] * len(seeds)
        self._set_members(configs, seeds, zeros, zeros, Controller(configs, zeros, self.device))
        self._bind(self._initial_rows(self.configs, self.seeds))
        refuse_idle_beginnings(self.groups, self.blocks, self._shapes)
        groups = {name: self.group_of(name) for name in self._shapes}
        depths = {name: depth for name in self._shapes if (depth := self.depth_of(name)) is not None}
        self.layout = Layout(self._shapes, groups, depths)
        self.optimizer = make_optimizer(
            self._params_Kn, self.configs, self.layout, seeds=self.seeds, compiled=plan.compiled
        )
        # A subclass's state for each member, (K,) each, updated in place; zeros for a new member.
        self.memory = {name: self._params_Kn.new_zeros(self.num_members) for name in self.memory_names()}
        # Members that the optimizer leaves unchanged at this step, bool (K,); None for no member.
        self.held_K: torch.Tensor | None = None
        # Start vector of the next curvature measurement, zeros before a member's first; None before any.
        self._warm_Kn: torch.Tensor | None = None
        self._rollback = begin_rollback(self.configs, self._ages, self._live())
        self.members_changed()

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The weights of one member."""
        return self._shapes

    @property
    def num_members(self) -> int:
        """How many members are still in the pack."""
        return len(self.seeds)

    @abstractmethod
    def initial_weights(self, seed: int) -> Weights:
        """One member's weights, a function only of the seed and ``self.structure``."""

    def own_weights(self, drawn: Weights, config: Config) -> Weights:
        """A member's initial weights: the weights drawn from its seed, adjusted by its config."""
        return drawn

    @abstractmethod
    def losses(self) -> torch.Tensor:
        """Loss of each member on this step's data, shape (K,)."""

    def group_of(self, name: str) -> str:
        """The layer group of the weight ``name`` in telemetry: that of ``groups``, or ``all`` where it has none."""
        start = longest_beginning(name, self.groups)
        return ALL if start is None else self.groups[start]

    def depth_of(self, name: str) -> str | None:
        """The third of ``blocks`` that the weight ``name`` is in: shallow, middle or deep; None outside of them."""
        start = longest_beginning(name, self.blocks)
        return None if start is None else third_of_depth(list(self.blocks).index(start), len(self.blocks))

    def memory_names(self) -> Sequence[str]:
        """Names of the state that a subclass keeps per member in ``self.memory``; none by default."""
        return ()

    def field(self, name: str) -> torch.Tensor:
        """The field ``name`` of each member that is now in the pack, (K,), in the precision of the weights."""
        return hyperparameter(self.configs, name, self.device, self._params_Kn.dtype)

    def draw(self, sample: Callable[[torch.Generator], torch.Tensor], purpose: int = DATA_PURPOSE) -> torch.Tensor:
        """``sample(generator)`` with each member's generator for this step, (K, ...) on the device.

        A second draw in one step needs another ``purpose``; otherwise it gets the same numbers.
        """
        by_cohort = [sample(seeded_generator(seed, purpose, step)) for seed, step in self.cohorts()]
        return torch.stack(by_cohort).to(self.device)[self.cohort_of_member_K]

    def of_each_member(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        """``function(weights, *values)``, written for one member, applied to all by ``torch.func.vmap``.

        The first axis of ``values`` is the members. Bits may depend on the other members of the pack, depending on the
        kernel: a product of two matrices per member keeps its bits if they fill whole blocks of 16 bytes; ``conv2d``
        does not.
        """
        if self.num_members > 1:
            return torch.func.vmap(function)(self.weights, *values)

        # A single member would use other kernels: duplicate it.
        def doubled(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.expand(2, *value_K.shape[1:])

        weights = {name: doubled(weight) for name, weight in self.weights.items()}
        return torch.func.vmap(function)(weights, *(doubled(value) for value in values))[:1]

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each member, (K,), and its gradient, (K, n), on this step's data."""
        loss_K = self.losses()
        # Members do not mix, so the gradient of the sum holds each member's own gradient.
        grads = torch.autograd.grad(loss_K.sum(), list(self.weights.values()))
        # A recorded CUDA graph overwrites this loss with the next step's.
        return loss_K.detach().clone(), rows_of_blocks(grads)

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """The gradient that the optimizer sees; override to add noise."""
        return grad_Kn

    def step(self) -> dict[str, torch.Tensor]:
        """Train one step; returns metrics of shape (K,), still on the device."""
        self._begin_step()
        self._estimate_hessian()
        loss_K, grad_Kn = self.losses_and_gradient()
        was_alive_K = self.optimizer.alive_K
        metrics = self.optimizer.step(loss_K, self.gradient_noise(grad_Kn), held_K=self.held_K)
        return self._after_step(metrics | self._own_metrics(was_alive_K))

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """A ``step`` plus readings of the members in ``rows`` during it, shape (R,) each, on the device.

        Members of ``rows`` that are in ``curved`` get curvature from ``num_products`` Hessian-vector products; the
        others get NaN. Reading does not change training.
        """
        self._begin_step()
        is_everybody = list(rows) == list(range(self.num_members))
        index: Rows = slice(None) if is_everybody else torch.tensor(rows, device=self.device)
        readings = self.own_readings(index)
        self._estimate_hessian()
        loss_K, grad_Kn = self.losses_and_gradient()
        was_alive_K = self.optimizer.alive_K
        metrics, observed = self.optimizer.observed_step(
            loss_K, self.gradient_noise(grad_Kn), index, held_K=self.held_K
        )
        states, numbers, age_R = self.optimizer.of_rows(index)
        rule, nan_R = self.optimizer.rule, torch.full((len(rows),), math.nan, device=self.device)
        readings |= group_readings(
            self.layout,
            observed.params_Rn,
            observed.grad_Rn,
            observed.update_Rn,
            rule.first_moment(states, numbers, age_R),
            rule.second_moment(states, numbers, age_R),
            numbers.get("eps", nan_R),
        )
        readings["clip_factor"] = observed.clip_factor_R
        if curved:
            if self._warm_Kn is None:
                self._warm_Kn = torch.zeros_like(self._params_Kn)
            readings |= curvature_readings(self, rows, curved, observed.params_Rn, self._warm_Kn, num_products)
        return self._after_step(metrics | self._own_metrics(was_alive_K)), readings

    def _begin_step(self) -> None:
        """Change the members whose interventions are due."""
        refuse_stale_members(self)
        if changed := self._changes.before_step(self.num_steps, self.optimizer, self.seeds):
            self._set_cohorts()
            self.numbers_changed(changed)
        self._control.before_step(self.num_steps, self._params_Kn)

    def _estimate_hessian(self) -> None:
        """Estimate the Hessian's diagonal for the members that are due, if the optimizer needs it (Sophia)."""
        rule = self.optimizer.rule
        if not rule.needs_hessian:
            return
        due = [k for k, age in enumerate(self._ages) if rule.hessian_is_due(age + self.num_steps)]
        if not due:
            return
        index, size = torch.tensor(due, device=self.device), self.layout.size
        dtype = self._params_Kn.dtype
        direction_Kn = self.draw(
            lambda generator: torch.randn(size, generator=generator, dtype=dtype), _HESSIAN_PURPOSE
        )
        graph = GradientGraph(lambda weights: self.losses_of(weights, index), self._params_Kn[index], self._shapes)
        direction_Rn = direction_Kn[index]
        self.optimizer.take_hessian(index, direction_Rn * graph.hessian_product(direction_Rn))

    def losses_of(self, weights: Weights, rows: torch.Tensor) -> torch.Tensor:
        """Loss on this step's data of the members in ``rows``, with ``weights`` of shape (R, ...).

        Eager and twice differentiable. By default it computes the losses of all members; a subclass may do better.
        """
        own, every = self.weights, dict(self.weights)
        for name, weight in weights.items():
            every[name] = self.weights[name].detach().index_copy(0, rows, weight)
        self.weights = every
        try:
            return self.losses()[rows]
        finally:
            self.weights = own

    def own_readings(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Readings that an objective takes of ``rows`` before a step, (R,) each; none by default."""
        return {}

    def own_metrics(self) -> dict[str, torch.Tensor]:
        """Metrics that an objective adds to every step, (K,) each; none by default."""
        return {}

    def signals(self) -> dict[str, torch.Tensor]:
        """Signals of a step that an objective has for rules besides its metrics, (K,) each; none by default."""
        return {}

    def fired(self, row: int) -> list[dict[str, Any]]:
        """What the rules of the member ``row`` have done so far, in order."""
        return list(self._control.fired[row])

    def _own_metrics(self, was_alive_K: torch.Tensor) -> dict[str, torch.Tensor]:
        dtype = self._params_Kn.dtype
        return {name: v_K.to(dtype).masked_fill(~was_alive_K, math.nan) for name, v_K in self.own_metrics().items()}

    def _after_step(self, metrics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Read what rules read, count the step, roll back members that spiked; with ``rolled_back``, 0 or 1."""
        changed = self._control.after_step(self, metrics | self.signals()) if self._control.has_rules else []
        self.num_steps += 1
        self._changes.wake(changed, self.num_steps)
        if self._rollback is None:
            return metrics
        rows = self._rollback.after_step(metrics["loss"], self.optimizer.alive_K, self._live())
        for row in rows:
            self._skipped[row] += self.configs[row].rollback or 0
        if rows:
            self._set_cohorts()
        rolled_back_K = torch.zeros_like(metrics["loss"])
        rolled_back_K[rows] = 1
        return metrics | {"rolled_back": rolled_back_K}

    def _live(self) -> dict[str, torch.Tensor]:
        """The state from which members continue, (K, ...) each, read and written in place."""
        return {"params": self._params_Kn, **self.optimizer.live(), **self.memory}

    def cohorts(self) -> list[tuple[int, int]]:
        """(seed, data step) of each current cohort; ``cohort_of_member_K`` maps members to cohorts."""
        return [(seed, step + self.num_steps) for seed, step in self._cohorts]

    def arrange(self, rows: Sequence[RowSpec]) -> None:
        """Make a pack of ``rows``: members that continue, that fork in two, or that start fresh."""
        sources = [-1 if row.source is None else row.source for row in rows]
        ages = [0 if row < 0 else self._ages[row] + self.num_steps for row in sources]
        skipped = [0 if row < 0 else self._skipped[row] for row in sources]
        configs: list[Any] = [row.config for row in rows]  # all of one objective
        control = Controller(configs, ages, self.device, self._control, sources)
        self._set_members(configs, [row.seed for row in rows], ages, skipped, control)
        index = torch.tensor(sources, device=self.device)
        params_Kn = self._params_Kn[index.clamp(min=0)]
        fresh = [k for k, row in enumerate(sources) if row < 0]
        if fresh:
            params_Kn[fresh] = self._initial_rows([self.configs[k] for k in fresh], [self.seeds[k] for k in fresh])
        self._bind(params_Kn)
        self.optimizer.arrange(index, self._params_Kn, self.configs, self.seeds)
        self.memory = {
            name: value_K[index.clamp(min=0)].masked_fill(index < 0, 0.0) for name, value_K in self.memory.items()
        }
        if self._warm_Kn is not None:
            self._warm_Kn = self._warm_Kn[index.clamp(min=0)].masked_fill((index < 0)[:, None], 0.0)
        before, self._rollback = self._rollback, begin_rollback(self.configs, self._ages, self._live())
        if before is not None and self._rollback is not None:
            before.hand_over(self._rollback, sources)
        self.members_changed()

    def members_changed(self) -> None:
        """Called by ``__init__`` and when members are added or dropped; make a subclass's per-member tensors here.

        One that is made elsewhere would belong to members that are gone, and is refused at the first step.
        """

    def numbers_changed(self, acting: Mapping[int, Any]) -> None:
        """Called with what is in force, by row, before a step at which members change, and their first step here."""

    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Held-out loss of the members in ``rows``; NaN without held-out data."""
        return torch.full((len(rows),), math.nan)

    def describe(self) -> Mapping[str, str]:
        """Facts about the data that are not in the configuration."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer, ages and snapshots; data and noise are functions of seed, age and skipped batches."""
        return {
            "ages": torch.tensor(self._ages) + self.num_steps,
            "skipped": torch.tensor(self._skipped),
            "control": self._control.state_dict(),
            "params": self._params_Kn.clone(),
            "optimizer": self.optimizer.state_dict(),
            "memory": {name: value_K.clone() for name, value_K in self.memory.items()},
            **({} if self._warm_Kn is None else {"warm": self._warm_Kn.clone()}),
            **({} if self._rollback is None else {"rollback": self._rollback.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the ``state_dict`` of a pack with the same members."""
        ages = state["ages"].tolist()
        control = Controller(self.configs, ages, self.device)
        control.load_state_dict(state["control"])
        self._set_members(self.configs, self.seeds, ages, state["skipped"].tolist(), control)
        self._params_Kn.copy_(state["params"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory = {name: value_K.clone() for name, value_K in state["memory"].items()}
        self._warm_Kn = state["warm"].clone() if "warm" in state else None
        self._rollback = begin_rollback(self.configs, self._ages, self._live())
        if self._rollback is not None and "rollback" in state:
            self._rollback.load_state_dict(state["rollback"])
        self.members_changed()

    def close(self) -> None:
        """Nothing to release beyond memory."""

    def _set_members(
        self,
        configs: Sequence[Config],
        seeds: Sequence[int],
        ages: Sequence[int],
        skipped: Sequence[int],
        control: Controller,
    ) -> None:
        """``ages``: steps each member has completed, counted from now on; ``skipped``: its skipped batches."""
        self.configs, self.seeds, self._ages, self.num_steps = list(configs), list(seeds), list(ages), 0
        self._skipped, self._control = list(skipped), control
        self._changes = Changes(control.acting, self._ages)
        self._set_cohorts()

    def _set_cohorts(self) -> None:
        """Group members that see the same data, by seed and by data step minus ``num_steps``."""
        ages = [age + self.num_steps for age in self._ages]
        batches = batches_of(self._control.acting, self.seeds, ages, self._skipped)
        members = [(seed, step - self.num_steps) for seed, step in batches]
        self._cohorts = list(dict.fromkeys(members))
        number = {cohort: s for s, cohort in enumerate(self._cohorts)}
        self.cohort_of_member_K = torch.tensor([number[member] for member in members], device=self.device)

    def _initial_rows(self, configs: Sequence[Config], seeds: Sequence[int]) -> torch.Tensor:
        """Initial parameters of members with these configs and seeds, (K, n)."""
        drawn = {seed: self.initial_weights(seed) for seed in dict.fromkeys(seeds)}
        rows = [
            rows_of_blocks(weight[None] for weight in self.own_weights(drawn[seed], config).values())
            for config, seed in zip(configs, seeds, strict=True)
        ]
        return torch.cat(rows).to(self.device)

    def _bind(self, params_Kn: torch.Tensor) -> None:
        """Make ``weights`` differentiable leaves that share memory with the flat buffer."""
        self._params_Kn = params_Kn
        self.weights = {}
        offset = 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            view = params_Kn[:, offset : offset + size].view(-1, *shape)
            self.weights[name] = view.detach().requires_grad_()
            offset += size
