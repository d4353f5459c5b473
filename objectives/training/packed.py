"""The training loop that the built-in objectives share: one stacked model, one flat buffer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch

from objectives.base import Place, Way
from objectives.instruments.curvature import GradientGraph, measure_curvature, momentum_factor
from objectives.instruments.telemetry import group_readings
from objectives.optimizers.named import make_optimizer
from objectives.optimizers.packed_optimizer import Observed, Rows
from objectives.stacking.layout import ALL, Layout
from objectives.stacking.rounding import rows_of_blocks
from objectives.stacking.seeding import seeded_generator
from objectives.training.rollback import Rollback, rows_with_rollback
from objectives.training_config import TrainingConfig

# Shapes: K members, R of them that are read, C of those whose curvature is; S cohorts; n parameters of one member
# (and zeros that fill its last block).

Config = TypeVar("Config", bound=TrainingConfig)  # of the objective
Weights = dict[str, torch.Tensor]
# Streams of random numbers of one seed that must not overlap.
WEIGHT_PURPOSE, DATA_PURPOSE, _HESSIAN_PURPOSE = 0, 1, 12


class PackedTrainer(ABC, Generic[Config]):
    """A pack of K members whose parameters are rows of one (K, n) buffer.

    A subclass gives ``initial_weights`` of one member and ``losses``, a differentiable function of
    ``self.weights`` (name -> tensor of shape (K, ...), views into the buffer) that mixes no members. Where it
    is written for one member, ``of_each_member`` applies it to all. Data and noise come from ``draw``.
    Members of equal seed and age see the same data and noise: they are a cohort. A member with ``rollback`` goes
    back on a spike and skips data (objectives/training/rollback.py), after which its data are ahead of its age.
    """

    weights: Weights

    def __init__(self, configs: Sequence[Config], seeds: Sequence[int], device: str, way: Way) -> None:
        self.device, self.way = torch.device(device), way
        self.shape = configs[0]  # for its structural fields, which all members share
        self._shapes = {name: tuple(weight.shape) for name, weight in self.initial_weights(seeds[0]).items()}
        self._set_members(configs, seeds, [0] * len(seeds), [0] * len(seeds))
        self._bind(self._initial_rows(self.configs, self.seeds))
        groups = {name: self.group_of(name) for name in self._shapes}
        self.layout = Layout(self._shapes, groups)
        self.optimizer = make_optimizer(
            self._params_Kn, self.configs, self.layout, seeds=self.seeds, compiled=way.compiled
        )
        # What a subclass remembers of each member, (K,) each, to be changed in place; zeros for a fresh one.
        self.memory = {name: self._params_Kn.new_zeros(self.num_members) for name in self.memory_names()}
        # Members that the optimizer leaves as they are at this step, bool (K,); None for nobody.
        self.held_K: torch.Tensor | None = None
        # Where the next measurement of curvature starts, zeros for a member before its first; None before any.
        self._warm_Kn: torch.Tensor | None = None
        self._rollback = self._begin_rollback()
        self.members_changed()

    @property
    def num_members(self) -> int:
        """How many members are still in the pack."""
        return len(self.seeds)

    @abstractmethod
    def initial_weights(self, seed: int) -> Weights:
        """One member's weights, a function of the seed and of ``self.shape`` alone."""

    def own_weights(self, drawn: Weights, config: Config) -> Weights:
        """A member's initial weights: those drawn by its seed, and what the numbers of its config make of them."""
        return drawn

    @abstractmethod
    def losses(self) -> torch.Tensor:
        """Loss of each member on this step's data, shape (K,)."""

    def group_of(self, name: str) -> str:
        """The layer group that the weight ``name`` belongs to in telemetry; one for all by default."""
        return ALL

    def memory_names(self) -> Sequence[str]:
        """Of numbers that a subclass remembers of each member in ``self.memory``; none by default."""
        return ()

    def draw(self, sample: Callable[[torch.Generator], torch.Tensor], purpose: int = DATA_PURPOSE) -> torch.Tensor:
        """``sample(generator)`` with each member's own generator of this step, (K, ...) on the device.

        A second draw of a step needs another ``purpose``, or it gets the same numbers.
        """
        by_cohort = [sample(seeded_generator(seed, purpose, step)) for seed, step in self.cohorts()]
        return torch.stack(by_cohort).to(self.device)[self.cohort_of_member_K]

    def of_each_member(self, function: Callable[..., torch.Tensor], *values: torch.Tensor) -> torch.Tensor:
        """``function(weights, *values)``, written for one member, of all at once by ``torch.func.vmap``.

        ``values`` have the members as their first size. Bits depend on who shares the pack where the kernel
        does: a product of two matrices of each member keeps them if these fill whole blocks of 16 bytes,
        ``conv2d`` does not.
        """
        if self.num_members > 1:
            return torch.func.vmap(function)(self.weights, *values)

        # For a member alone there are other kernels: it gets a double.
        def doubled(value_K: torch.Tensor) -> torch.Tensor:
            return value_K.expand(2, *value_K.shape[1:])

        weights = {name: doubled(weight) for name, weight in self.weights.items()}
        return torch.func.vmap(function)(weights, *(doubled(value) for value in values))[:1]

    def losses_and_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss of each member, (K,), and its gradient, (K, n), on this step's data."""
        loss_K = self.losses()
        # Members do not mix, so the gradient of the sum holds each member's own gradient.
        grads = torch.autograd.grad(loss_K.sum(), list(self.weights.values()))
        # A recorded graph of a GPU writes the next step's loss over this one.
        return loss_K.detach().clone(), rows_of_blocks(grads)

    def gradient_noise(self, grad_Kn: torch.Tensor) -> torch.Tensor:
        """The gradient that the optimizer sees; a place for noise, nothing by default."""
        return grad_Kn

    def step(self) -> dict[str, torch.Tensor]:
        """Train one step; metrics of shape (K,), still on the device."""
        self._estimate_hessian()
        loss_K, grad_Kn = self.losses_and_gradient()
        was_alive_K = self.optimizer.alive_K
        metrics = self.optimizer.step(loss_K, self.gradient_noise(grad_Kn), held_K=self.held_K)
        return self._after_step(metrics | self._own_metrics(was_alive_K))

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """A ``step``, and what was read meanwhile of the members in ``rows``, shape (R,) each, on the device.

        Curvature, from ``num_products`` products with the Hessian, of those of ``rows`` that are in ``curved``; NaN
        for the others. Reading changes nothing.
        """
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
            readings |= self._curvature(rows, curved, observed, num_products)
        return self._after_step(metrics | self._own_metrics(was_alive_K)), readings

    def _curvature(
        self, rows: Sequence[int], curved: Sequence[int], observed: Observed, num_products: int
    ) -> dict[str, torch.Tensor]:
        """Curvature at the parameters before this step's update, by the preconditioner of the update."""
        is_curved_R = torch.tensor([row in curved for row in rows], device=self.device)
        chosen = torch.tensor(rows, device=self.device)[is_curved_R]
        _, numbers, age_C = self.optimizer.of_rows(chosen)
        divisor_Cn = self.optimizer.divisor(chosen)
        if divisor_Cn is None:
            return {}
        graph = GradientGraph(
            lambda weights: self.losses_of(weights, chosen), observed.params_Rn[is_curved_R], self._shapes
        )
        debiased = self.optimizer.rule.is_debiased
        beta1_C = numbers.get("beta1", torch.zeros_like(age_C))
        factor_C = momentum_factor(beta1_C, age_C, debiased=debiased)
        if self._warm_Kn is None:
            self._warm_Kn = torch.zeros_like(self._params_Kn)
        found = measure_curvature(graph, divisor_Cn, factor_C, self._warm_Kn[chosen], num_products)
        self._warm_Kn[chosen] = found.warm_Rn
        lr_C = self.optimizer.lr_K[chosen]
        values = {
            "lambda_grad": found.lambda_grad_R,
            "lambda_max": found.lambda_max_R,
            "curvature_threshold": 2 / lr_C,
        }
        nan_R = torch.full((len(rows),), math.nan, dtype=torch.float64, device=self.device)
        return {name: nan_R.masked_scatter(is_curved_R, value.to(torch.float64)) for name, value in values.items()}

    def _estimate_hessian(self) -> None:
        """For an optimizer that asks for it (Sophia): the Hessian's diagonal of the members whose turn it is."""
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
        """Loss on this step's data of the members in ``rows``, whose weights are ``weights`` of shape (R, ...).

        Eager and differentiable twice. By default the losses of all members are computed: a subclass may do better.
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
        """What an objective reads before a step of the members in ``rows``, an index, (R,) each; nothing by default."""
        return {}

    def own_metrics(self) -> dict[str, torch.Tensor]:
        """Metrics that an objective adds to those of every step, (K,) each; none by default."""
        return {}

    def _own_metrics(self, was_alive_K: torch.Tensor) -> dict[str, torch.Tensor]:
        dtype = self._params_Kn.dtype
        return {name: v_K.to(dtype).masked_fill(~was_alive_K, math.nan) for name, v_K in self.own_metrics().items()}

    def _after_step(self, metrics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Count the step, and take back members that spiked: ``rolled_back``, 0 or 1, in a pack with rollback."""
        self.num_steps += 1
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

    def _begin_rollback(self) -> Rollback | None:
        """Snapshots of the members as they are now; None in a pack in which nobody goes back."""
        if not rows_with_rollback(self.configs):
            return None
        return Rollback(self.configs, self._ages, self._live())

    def _live(self) -> dict[str, torch.Tensor]:
        """What members go on from, (K, ...) each, to be read and written in place."""
        return {"params": self._params_Kn, **self.optimizer.live(), **self.memory}

    def cohorts(self) -> list[tuple[int, int]]:
        """(seed, step of the data) of each cohort now; ``cohort_of_member_K`` says who belongs to which."""
        return [(seed, step + self.num_steps) for seed, step in self._cohorts]

    def arrange(self, places: Sequence[Place]) -> None:
        """Make a pack of ``places``: members that go on, part in two, or start afresh."""
        rows = [-1 if place.row is None else place.row for place in places]
        ages = [0 if row < 0 else self._ages[row] + self.num_steps for row in rows]
        skipped = [0 if row < 0 else self._skipped[row] for row in rows]
        self._set_members([place.config for place in places], [place.seed for place in places], ages, skipped)
        index = torch.tensor(rows, device=self.device)
        params_Kn = self._params_Kn[index.clamp(min=0)]
        fresh = [k for k, row in enumerate(rows) if row < 0]
        if fresh:
            params_Kn[fresh] = self._initial_rows([self.configs[k] for k in fresh], [self.seeds[k] for k in fresh])
        self._bind(params_Kn)
        self.optimizer.arrange(index, self._params_Kn, self.configs, self.seeds)
        self.memory = {
            name: value_K[index.clamp(min=0)].masked_fill(index < 0, 0.0) for name, value_K in self.memory.items()
        }
        if self._warm_Kn is not None:
            self._warm_Kn = self._warm_Kn[index.clamp(min=0)].masked_fill((index < 0)[:, None], 0.0)
        before, self._rollback = self._rollback, self._begin_rollback()
        if before is not None and self._rollback is not None:
            before.hand_over(self._rollback, rows)
        self.members_changed()

    def members_changed(self) -> None:
        """Called by ``__init__`` and when members come or go, for tensors of one's own along the members."""

    def validate(self, rows: Sequence[int]) -> torch.Tensor:
        """Held-out loss of the members in ``rows``; NaN without held-out data."""
        return torch.full((len(rows),), math.nan)

    def describe(self) -> Mapping[str, str]:
        """Facts about the data that the configuration does not hold."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer, ages and snapshots; data and noise are functions of seed, age and batches skipped."""
        return {
            "ages": torch.tensor(self._ages) + self.num_steps,
            "skipped": torch.tensor(self._skipped),
            "params": self._params_Kn.clone(),
            "optimizer": self.optimizer.state_dict(),
            "memory": {name: value_K.clone() for name, value_K in self.memory.items()},
            **({} if self._warm_Kn is None else {"warm": self._warm_Kn.clone()}),
            **({} if self._rollback is None else {"rollback": self._rollback.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of a pack with the same members."""
        self._set_members(self.configs, self.seeds, state["ages"].tolist(), state["skipped"].tolist())
        self._params_Kn.copy_(state["params"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory = {name: value_K.clone() for name, value_K in state["memory"].items()}
        self._warm_Kn = state["warm"].clone() if "warm" in state else None
        self._rollback = self._begin_rollback()
        if self._rollback is not None and "rollback" in state:
            self._rollback.load_state_dict(state["rollback"])
        self.members_changed()

    def close(self) -> None:
        """Nothing to release beyond memory."""

    def _set_members(
        self, configs: Sequence[Config], seeds: Sequence[int], ages: Sequence[int], skipped: Sequence[int]
    ) -> None:
        """``ages`` are the steps that each member has behind it, counted from here on; ``skipped`` its batches."""
        self.configs, self.seeds, self._ages, self.num_steps = list(configs), list(seeds), list(ages), 0
        self._skipped = list(skipped)
        self._set_cohorts()

    def _set_cohorts(self) -> None:
        """Who sees the same data, by seed and step of the data less ``num_steps``."""
        steps = [age + skipped for age, skipped in zip(self._ages, self._skipped, strict=True)]
        members = list(zip(self.seeds, steps, strict=True))
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


def hyperparameter(
    configs: Sequence[TrainingConfig], name: str, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """The field ``name`` of every config as a tensor of shape (K,)."""
    return torch.tensor([getattr(config, name) for config in configs], dtype=dtype, device=device)
