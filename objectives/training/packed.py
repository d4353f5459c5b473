"""The training loop that the built-in objectives share: one stacked model in one flat buffer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch

from objectives.base import ExecutionPlan, RowSpec
from objectives.fields import third_of_depth
from objectives.instruments.curvature import GradientGraph, Hessian, weights_of
from objectives.instruments.telemetry import group_readings
from objectives.optimizers.foreign import make_optimizer
from objectives.optimizers.packed_optimizer import Rows
from objectives.stacking import (
    ALL,
    Layout,
    check_prefixes,
    continued,
    index_on,
    longest_prefix,
    rows_of_blocks,
    seeded_generator,
    sent,
)
from objectives.training.averages import Averages
from objectives.training.controller import Controller
from objectives.training.measuring import CurvatureReadings, estimate_hessian, step_values
from objectives.training.members import Changes, batches_of, check_members_renewed
from objectives.training.restarts import Restarts
from objectives.training.rollback import Rollback, begin_rollback
from objectives.training_config import TrainingConfig

# Shapes: K members, R observed ones, C observed ones with curvature; S cohorts; n parameters per member, zero-padded to
# whole blocks.

Config = TypeVar("Config", bound=TrainingConfig)
Weights = dict[str, torch.Tensor]
# Random streams of one seed that must not overlap.
WEIGHT_PURPOSE, DATA_PURPOSE = 0, 1


class PackedTrainer(ABC, Generic[Config]):
    """A pack of K members whose parameters are rows of one (K, n) buffer.

    A subclass provides the ``initial_weights`` of one member, and ``losses``, a differentiable function of
    ``self.weights`` (name -> tensor of shape (K, ...), views into the buffer) that does not mix members.
    ``of_each_member`` applies a function written for one member to all. Data and noise come from ``draw``. A cohort
    consists of members with equal seed and age, which see the same data and noise. A member with ``rollback`` returns
    to a snapshot on a spike and skips data (objectives/training/rollback.py), so its data step is ahead of its age.
    Interventions change numbers, states and data before given steps and may do the same (objectives/interventions.py).
    """

    weights: Weights
    # Layer groups of weights, by prefixes of their names. A weight without a matching prefix has no group.
    groups: Mapping[str, str] = MappingProxyType({})
    # Prefixes of the names of each block's weights, from the input to the output; empty for no parts by depth.
    blocks: Sequence[str] = ()
    stacks: Sequence[str] = ()  # endings of the names of weights that are stacks of matrices
    takes_interventions = takes_control = True
    takes_float64 = False  # whether ``losses`` accept weights in double precision, which an intervention may ask for

    def __init__(self, configs: Sequence[Config], seeds: Sequence[int], device: str, plan: ExecutionPlan) -> None:
        self.device, self.plan = torch.device(device), plan
        self.structure = configs[0]  # for its structural fields, which all members share
        self.weight_shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(weight.shape) for name, weight in self.initial_weights(seeds[0]).items()
        }
        zeros = [0] * len(seeds)
        self._set_members(configs, seeds, zeros, zeros, Controller(configs, zeros, self.device))
        self._bind(self._initial_rows(self.configs, self.seeds))
        check_prefixes(self.groups, self.blocks, self.weight_shapes)
        groups = {name: self.group_of(name) for name in self.weight_shapes}
        depths = {name: depth for name in self.weight_shapes if (depth := self.depth_of(name)) is not None}
        self.layout = Layout(self.weight_shapes, groups, depths, self.stacks)
        ways = {"compiled": plan.compiled, "native": plan.kernels == "native"}
        self.optimizer = make_optimizer(self._params_Kn, self.configs, self.layout, seeds=self.seeds, **ways)
        sizes = {name: (self.num_members, *shape) for name, shape in self.memory_shapes().items()}
        self.memory = {name: self._params_Kn.new_zeros(size) for name, size in sizes.items()}
        self.held_K: torch.Tensor | None = None  # members that the optimizer skips at this step, bool (K,)
        self._curvature = CurvatureReadings()
        self._rollback = self._begin_averages()
        self.members_changed()

    @property
    def num_members(self) -> int:
        """Number of members in the pack."""
        return len(self.seeds)

    @property
    def repeats_a_batch(self) -> bool:
        """Whether a member sees its last batch again."""
        return any(stands_still for _, _, stands_still in self._cohorts)

    @property
    def acting(self) -> Sequence[TrainingConfig]:
        """The configurations with what rules have done so far."""
        return self._control.acting

    @property
    def completed_steps(self) -> list[int]:
        """Completed steps of each member."""
        return [age + self.num_steps for age in self._ages]

    @abstractmethod
    def initial_weights(self, seed: int) -> Weights:
        """Return one member's weights, a function of the seed and ``self.structure`` alone."""

    def own_weights(self, drawn: Weights, config: Config) -> Weights:
        """Return a member's initial weights: the weights drawn for its seed, adjusted by its config."""
        return drawn

    @abstractmethod
    def losses(self) -> torch.Tensor:
        """Return each member's loss on this step's data, shape (K,)."""

    def group_of(self, name: str) -> str:
        """Return the layer group of the weight ``name`` in telemetry, by ``groups``, or ``all`` without an entry."""
        prefix = longest_prefix(name, self.groups)
        return ALL if prefix is None else self.groups[prefix]

    def depth_of(self, name: str) -> str | None:
        """Return the third of ``blocks`` with the weight ``name`` (shallow, middle or deep), or None outside blocks."""
        prefix = longest_prefix(name, self.blocks)
        return None if prefix is None else third_of_depth(list(self.blocks).index(prefix), len(self.blocks))

    def memory_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return a subclass's state in ``self.memory``, by name and shape; updated in place, zeros for a new member."""
        return {}

    def field(self, name: str) -> torch.Tensor:
        """Return the field ``name`` of each current member, (K,), in the precision of the weights."""
        return self._params_Kn.new_tensor([getattr(config, name) for config in self.configs])

    def draw(self, sample: Callable[[torch.Generator], torch.Tensor], purpose: int = DATA_PURPOSE) -> torch.Tensor:
        """Return ``sample(generator)`` with each member's generator for this step, (K, ...) on the device.

        A second draw in one step needs another ``purpose``; otherwise it gets the same numbers.
        """
        by_cohort = [sample(seeded_generator(seed, purpose, step)) for seed, step in self.cohorts()]
        drawn = sent(torch.stack(by_cohort), self.device)[self.cohort_of_member_K]
        return drawn.double() if self.plan.float64 and drawn.is_floating_point() else drawn

    def of_each_member(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        """Apply ``function(weights, *values)``, written for one member, to all members by ``torch.func.vmap``.

        The first axis of ``values`` is the members. Whether bits depend on the other members depends on the kernel: a
        product of two matrices per member keeps its bits if the matrices fill whole blocks of 16 bytes; ``conv2d`` does
        not.
        """
        if self.num_members > 1:
            return torch.func.vmap(function)(self.weights, *values)

        # A single member would use other kernels, so it is duplicated.
        def doubled(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.expand(2, *value_K.shape[1:])

        weights = {name: doubled(weight) for name, weight in self.weights.items()}
        return torch.func.vmap(function)(weights, *(doubled(value) for value in values))[:1]

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each member's loss, (K,), and gradient, (K, n), on this step's data."""
        loss_K = self.losses()
        # Members do not mix, so the gradient of the sum has each member's gradient.
        grads = torch.autograd.grad(loss_K.sum(), list(self.weights.values()))
        # A recorded CUDA graph overwrites this loss with the next step's.
        return loss_K.detach().clone(), rows_of_blocks(grads)

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """Return the gradient that the optimizer sees; override it to add noise."""
        return grad_Kn

    def step(self) -> dict[str, torch.Tensor]:
        """Train one step; return metrics of shape (K,), still on the device."""
        self._begin_step()
        estimate_hessian(self)
        loss_K, grad_Kn = self.losses_and_gradient()
        was_alive_K = self.optimizer.alive_K
        metrics = self.optimizer.step(loss_K, self.gradient_noise(grad_Kn), held_K=self.held_K)
        return self._after_step(metrics | self._own_metrics(was_alive_K))

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Do a ``step`` and also return readings of the members in ``rows``, shape (R,) each, on the device.

        Members of ``rows`` that are in ``curved`` get curvature from ``num_products`` Hessian-vector products, or from
        forward passes if that is 0; the others get NaN. Reading does not change training.
        """
        self._begin_step()
        index: Rows = slice(None) if list(rows) == list(range(self.num_members)) else index_on(self.device, tuple(rows))
        readings = self.own_readings(index)
        estimate_hessian(self)
        loss_K, grad_Kn = self.losses_and_gradient()
        was_alive_K = self.optimizer.alive_K
        grad_Kn = self.gradient_noise(grad_Kn)
        metrics, observed = self.optimizer.observed_step(loss_K, grad_Kn, index, held_K=self.held_K)
        values = step_values(self.optimizer, index, observed)
        readings |= group_readings(self.layout, values, native=self.plan.kernels == "native")
        readings["clip_factor"] = observed.clip_factor_R
        if curved:
            readings |= self._curvature.read(self, rows, curved, observed.params_Rn, num_products)
        return self._after_step(metrics | self._own_metrics(was_alive_K)), readings

    def _begin_step(self) -> None:
        """Apply the interventions that are due."""
        check_members_renewed(self)
        if changed := self._changes.before_step(self.num_steps, self.optimizer, self.seeds):
            self._set_cohorts()
            self.numbers_changed(changed)
        self._control.before_step(self.num_steps, self._params_Kn)
        self._restarts.before_step(self.num_steps, changed)

    def losses_of(self, weights: Weights, rows: torch.Tensor) -> torch.Tensor:
        """Return the loss on this step's data for the members in ``rows``, with ``weights`` of shape (R, ...).

        Eager and twice differentiable. The default computes the losses of all members; a subclass may do better.
        """
        own, replaced = self.weights, dict(self.weights)
        for name, weight in weights.items():
            replaced[name] = self.weights[name].detach().index_copy(0, rows, weight)
        self.weights = replaced
        try:
            return self.losses()[rows]
        finally:
            self.weights = own

    def hessian_of(self, params_Rn: torch.Tensor, rows: torch.Tensor) -> Hessian:
        """Return the Hessian of the loss on this step's data for the members in ``rows``, at these parameters."""
        return GradientGraph(lambda weights: self.losses_of(weights, rows), params_Rn, self.weight_shapes)

    def after_update(self) -> None:
        """Change the updated weights, as an objective may; nothing by default."""

    def own_readings(self, rows: Rows) -> dict[str, torch.Tensor]:
        """Return the objective's readings of ``rows`` before a step, (R,) each; none by default."""
        return {}

    def own_metrics(self) -> dict[str, torch.Tensor]:
        """Return the objective's additional metrics of a step, (K,) each; none by default."""
        return {}

    def signals(self) -> dict[str, torch.Tensor]:
        """Return the objective's signals for control rules besides its metrics, (K,) each; none by default."""
        return {}

    def fired(self, row: int) -> list[dict[str, Any]]:
        """Return what the rules of the member ``row`` have done so far, in order."""
        return list(self._control.fired[row])

    def _own_metrics(self, was_alive_K: torch.Tensor) -> dict[str, torch.Tensor]:
        dtype = self._params_Kn.dtype
        return {name: v_K.to(dtype).masked_fill(~was_alive_K, math.nan) for name, v_K in self.own_metrics().items()}

    def _after_step(self, metrics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Read the signals of rules, count the step and roll back members that spiked; adds ``rolled_back``, 0 or 1."""
        self.after_update()
        changed = self._control.after_step(self, metrics | self.signals()) if self._control.has_rules else []
        self.num_steps += 1
        self._averages.after_step(self.num_steps)
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
        """Return the state that members continue with, (K, ...) each, read and written in place."""
        return {"params": self._params_Kn, **self.optimizer.live(), **self.memory}

    def _begin_averages(self) -> Rollback | None:
        self._averages = Averages(self.configs, self._ages, self.memory, self._params_Kn)
        self._restarts = Restarts(self.configs, self.acting, self._ages, self.memory, self._params_Kn)
        return begin_rollback(self.configs, self._ages, self._live())

    def cohorts(self, ahead: int = 0) -> list[tuple[int, int]]:
        """Return (seed, data step) of each cohort ``ahead`` steps from now, as ``cohort_of_member_K`` counts them."""
        moved = self.num_steps + ahead
        return [(seed, step if stands_still else step + moved) for seed, step, stands_still in self._cohorts]

    def arrange(self, rows: Sequence[RowSpec]) -> None:
        """Rearrange the pack into ``rows``: members that continue, fork or start fresh."""
        sources = [-1 if row.source is None else row.source for row in rows]
        ages = [0 if row < 0 else self._ages[row] + self.num_steps for row in sources]
        skipped = [0 if row < 0 else self._skipped[row] for row in sources]
        configs: list[Any] = [row.config for row in rows]  # of one objective
        control = Controller(configs, ages, self.device, self._control, sources)
        self._set_members(configs, [row.seed for row in rows], ages, skipped, control)
        index = torch.tensor(sources, device=self.device)
        params_Kn = continued(self._params_Kn, index)
        if fresh := [k for k, row in enumerate(sources) if row < 0]:
            params_Kn[fresh] = self._initial_rows([self.configs[k] for k in fresh], [self.seeds[k] for k in fresh])
        self._bind(params_Kn)
        self.optimizer.arrange(index, self._params_Kn, self.configs, self.seeds)
        self.memory = {name: continued(value_K, index) for name, value_K in self.memory.items()}
        self._curvature.arrange(index)
        before, self._rollback = self._rollback, self._begin_averages()
        if before is not None and self._rollback is not None:
            before.hand_over(self._rollback, sources)
        self.members_changed()

    def members_changed(self) -> None:
        """Create a subclass's per-member tensors; called by ``__init__`` and when members are added or dropped.

        A tensor that is created elsewhere would belong to members that are gone, so the first step raises an error.
        """

    def numbers_changed(self, acting: Mapping[int, Any]) -> None:
        """Take the configurations in force, by row; called before a step that changes members, and at their first."""

    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Return the held-out loss of the members in ``rows``; NaN without held-out data."""
        return torch.full((len(rows),), math.nan)

    def averaged_losses(self, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return what ``validate`` says of the averages of the weights of ``rows``, by name; empty without averages."""
        return self._averages.losses(self.validate, rows)

    def describe(self) -> Mapping[str, str]:
        """Return facts about the data that the configuration lacks."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, optimizer, ages and snapshots. Data and noise follow from seed, age and skips."""
        return {
            "ages": torch.tensor(self._ages) + self.num_steps,
            "skipped": torch.tensor(self._skipped),
            "control": self._control.state_dict(),
            "params": self._params_Kn.clone(),
            "optimizer": self.optimizer.state_dict(),
            "memory": {name: value_K.clone() for name, value_K in self.memory.items()},
            **self._curvature.state_dict(),
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
        self._curvature.load_state_dict(state)
        self._rollback = self._begin_averages()
        if self._rollback is not None and "rollback" in state:
            self._rollback.load_state_dict(state["rollback"])
        self.members_changed()

    def close(self) -> None:
        """Do nothing: there is only memory to release."""

    def _set_members(
        self,
        configs: Sequence[Config],
        seeds: Sequence[int],
        ages: Sequence[int],
        skipped: Sequence[int],
        control: Controller,
    ) -> None:
        """Set the members, with their completed steps ``ages``, counted anew from here, and ``skipped`` batches."""
        self.configs, self.seeds, self._ages, self.num_steps = list(configs), list(seeds), list(ages), 0
        self._skipped, self._control = list(skipped), control
        self._changes = Changes(control.acting, self._ages)
        self._set_cohorts()

    def _set_cohorts(self) -> None:
        """Group the members that see the same data, by seed and by data step minus ``num_steps``."""
        batches = batches_of(self._control.acting, self.seeds, self.completed_steps, self._skipped)
        members = [(seed, step if still else step - self.num_steps, still) for seed, step, still in batches]
        self._cohorts = list(dict.fromkeys(members))
        number = {cohort: s for s, cohort in enumerate(self._cohorts)}
        self.cohort_of_member_K = torch.tensor([number[member] for member in members], device=self.device)

    def _initial_rows(self, configs: Sequence[Config], seeds: Sequence[int]) -> torch.Tensor:
        """Return the initial parameters of members with these configs and seeds, (K, n)."""
        drawn = {seed: self.initial_weights(seed) for seed in dict.fromkeys(seeds)}
        rows = [
            rows_of_blocks(weight[None] for weight in self.own_weights(drawn[seed], config).values())
            for config, seed in zip(configs, seeds, strict=True)
        ]
        return torch.cat(rows).to(self.device, torch.float64 if self.plan.float64 else None)

    def _bind(self, params_Kn: torch.Tensor) -> None:
        """Make ``weights`` differentiable leaves that share memory with the flat buffer."""
        self._params_Kn = params_Kn
        views = weights_of(params_Kn, self.weight_shapes)
        self.weights = {name: view.detach().requires_grad_() for name, view in views.items()}
