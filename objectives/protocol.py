"""The objective protocol, free of torch.

An objective trains a *pack*: K members with the same structure that differ only in numbers. Each field of a
configuration is per member (a number that may differ inside a pack) or structural (it changes shapes or the graph, so
it splits packs).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, Self, cast, get_args

from objectives.fields import Settings, is_per_member
from objectives.held import ever_holds, moved_on
from objectives.native.library import compiler
from objectives.training_config import TrainingConfig

Kernels = Literal["default", "onednn", "native"]
_TWO_PRECISIONS = "objectives.training.precision"  # a pack whose members may change to float64
_ALONE = "alone"  # a third value besides true and false


class RankLost(RuntimeError):
    """Another process of a trial has ended, or cannot be reached."""


def sees_parts_of_the_data(settings: Settings) -> bool:
    """Return False: a step sees a part of the data, whatever the settings."""
    return False


@dataclass(frozen=True, slots=True)
class Rounding:
    """The part of a plan that fixes results bit for bit: not the width, except width 1 when compiled."""

    compiled: bool = False
    kernels: Kernels = "default"
    is_alone: bool = False  # compiled for a single row

    @classmethod
    def of_new_results(cls, compiled: bool, kernels: Literal["auto", "default"], gpus: float) -> Self:
        """Return the rounding of a new sweep: compiled if asked for, else native on a CPU with a C++ compiler."""
        if compiled or gpus or kernels == "default" or not compiler():
            return cls(compiled)
        return cls(kernels="native")

    @property
    def measured(self) -> Kernels:
        """The kernels whose packs are measured to choose a width: eager ones, but for native kernels."""
        return "native" if self.kernels == "native" else "default"

    @property
    def is_measured(self) -> bool:
        """Whether such packs also show its speed."""
        return self == Rounding(kernels=self.measured)

    @property
    def facts(self) -> dict[str, str]:
        """The rounding as recorded with a pack."""
        return {"kernels": self.kernels, "compiled": _ALONE if self.is_alone else str(self.compiled).lower()}

    @classmethod
    def of_facts(cls, facts: Mapping[str, str]) -> Self | None:
        """Return the rounding that was recorded with a pack, or None if the record lacks it."""
        kernels, compiled = facts.get("kernels"), facts.get("compiled")
        if kernels not in get_args(Kernels) or compiled not in ("true", "false", _ALONE):
            return None
        return cls(compiled != "false", cast(Kernels, kernels), compiled == _ALONE)

    def plan(self, width: int) -> ExecutionPlan:
        """Return the plan for a pack of ``width`` members with this rounding."""
        if self.compiled:
            width = 1 if self.is_alone else max(2, width)
        return ExecutionPlan(width, self.compiled, self.kernels)


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """How a pack is run. It decides the speed, and affects results only up to rounding.

    ``width`` members train at a time, as one stacked model, either ``compiled`` by torch.compile or eager. Matrix
    products use the library's default kernels or, on a CPU, oneDNN's. With ``native`` kernels the objective's own C++
    code computes losses and gradients; only for a configuration that ``has_native_kernels``. ``float64`` is for members
    that have changed to double precision.
    """

    width: int
    compiled: bool = False
    kernels: Kernels = "default"
    float64: bool = False

    @property
    def rounding(self) -> Rounding:
        """What two plans must share for bitwise equal results."""
        return Rounding(self.compiled, self.kernels, is_alone=self.compiled and self.width == 1)


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of a rearranged pack: the current row that it continues, or None for a fresh start."""

    config: TrainingConfig
    seed: int
    source: int | None


class Trainer(Protocol):
    """K members in training, K >= 1. What it reports per step is an array of shape (K,).

    A member's numbers are independent of the other members of its pack. A member with a non-finite loss or gradient is
    masked before that step's update and no longer changes. With ``rollback`` it may instead return to an earlier
    snapshot, at that step or at the step of a spike. A pack with any ``rollback`` also reports ``rolled_back``, 1 for
    members that rolled back at this step and 0 for the others.

    A trainer that acts on ``interventions`` has ``takes_interventions = True``; one that acts on ``control`` has
    ``takes_control = True`` and ``fired``; one that acts on ``ema`` and ``merge_last`` has ``averaged_losses``.
    Otherwise sweeps with these fields are rejected.
    """

    num_members: int

    def step(self) -> Mapping[str, Any]:
        """Train one step; return ``loss``, ``grad_norm``, ``update_norm`` and ``lr`` of shape (K,) each.

        ``loss`` and ``grad_norm`` belong to the parameters before the update. The arrays may still be on a device, so
        that the reader decides when to wait for them.
        """

    def steps_ahead(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Do ``count`` times a ``step``, and return what each returns; optional, for a trainer with a faster way."""

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Do a ``step`` and also return readings of shape (len(rows),) for ``rows``; readings do not affect training.

        For the rows in ``curved`` the readings include ``lambda_grad`` and ``lambda_max``, from ``num_products``
        Hessian-vector products, and ``curvature_threshold``. With 0 products they include ``lambda_crit``, from forward
        passes, instead. A trainer without this method trains without telemetry.
        """

    def arrange(self, rows: Sequence[RowSpec]) -> None:
        """Rearrange this pack into ``rows``; each member counts its own steps.

        A current row may continue as several rows with other numbers (a fork), as one, or not at all. A new member
        trains exactly as it would in a pack of its own.
        """

    def fired(self, row: int) -> Sequence[Mapping[str, Any]]:
        """Return what the ``control`` rules of the member ``row`` have done so far, as plain data in order.

        Each entry has the ``step`` of the reading, the number of the ``rule``, its signal ``on``, the ``value`` that
        exceeded ``above``, and the intervention that it ``did``. Optional without ``takes_control``.
        """

    def validate(self, rows: Sequence[int]) -> Any:
        """Return the held-out loss of the members in ``rows``; NaN without held-out data."""

    def describe(self) -> Mapping[str, str]:
        """Return facts about the data that the configuration lacks, to be recorded."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume on the CPU: tensors, integers and strings only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of a pack with the same members."""

    def close(self) -> None:
        """Release the trainer's resources. Called once, even after an error."""


@cache
def _per_member_fields(config_class: type[TrainingConfig]) -> frozenset[str]:
    return frozenset(name for name, field in config_class.model_fields.items() if is_per_member(field))


@dataclass(frozen=True, slots=True)
class Objective:
    """An entry in the table of objectives: what is trained, and facts that are known without loading torch."""

    name: str
    config_class: type[TrainingConfig]
    module: str
    # The smallest rise of the loss that counts as a spike, as a fraction of its recent median. A cross-entropy varies
    # by fractions; a squared error falls over decades, and a rise by a factor of 3 is small.
    spike_rise: float
    can_compile: bool
    # Number of consecutive non-finite gradients that ends a run: a masked member never recovers.
    gradient_patience: int = 1
    # Layer groups of telemetry from the input to the output, without groups that have no depth, e.g. gains of norms.
    layer_groups: tuple[str, ...] = ()
    # Whether the model has attention or output logits, which can grow.
    has_logits: bool = False
    # Whether there are held-out data to validate on.
    has_held_out: bool = True
    # Settings that determine a trial's batches together with the seed; and whether every step sees all data.
    data_fields: tuple[str, ...] = ("batch_size",)
    is_full_batch: Callable[[Settings], bool] = sees_parts_of_the_data
    # Raises ValueError if several workers cannot share the batches of a configuration; None if one process trains.
    check_workers: Callable[[Any, int], None] | None = None
    # Number of weights of a member with a configuration; a custom objective without it keeps no states.
    num_weights: Callable[[Any], int] | None = None
    # Module with `batch_text`, where that needs no torch; by default `module`.
    origins: str = ""
    # Steps of a run in the sweep file that `sweep init` writes.
    starter_steps: int = 200
    # For a custom objective: its reference as module:name, and the folder of that module.
    reference: str = ""
    folder: str = ""

    @property
    def summary(self) -> str:
        """One line that says what is trained."""
        return (self.config_class.__doc__ or "").strip().splitlines()[0]

    @property
    def per_member_fields(self) -> frozenset[str]:
        """Names of the fields that may differ inside a pack."""
        return _per_member_fields(self.config_class)  # asked for each trial

    def config_of(self, settings: Settings) -> TrainingConfig:
        """Return the configuration with these resolved settings; they may come from JSON, with lists for tuples."""
        return self.config_class.model_validate(settings, strict=False)

    def tokens_per_step(self, settings: Settings) -> int:
        """Return the examples per step of a trial with these settings; tokens if the examples are text."""
        config = cast(TrainingConfig, self.config_class.model_construct(**settings))
        return config.tokens_per_step

    def start(
        self,
        configs: Sequence[TrainingConfig],
        seeds: Sequence[int],
        device: str,
        plan: ExecutionPlan,
        later: Sequence[TrainingConfig] = (),
    ) -> Trainer:
        """Start training a pack on ``device``. Torch is imported here, not earlier.

        ``configs`` agree in every structural field. All of them train at once, whatever the width. ``later`` are of
        members that may join in ``arrange``.
        """
        start = importlib.import_module(self.module).start
        if any(ever_holds(config, "precision") for config in (*configs, *later)):
            return importlib.import_module(_TWO_PRECISIONS).start(start, configs, seeds, device, plan)
        return start(configs, seeds, device, plan)

    def batch_text(self, config: TrainingConfig, seed: int, step: int) -> str | None:
        """Return one line on the origin of the data of ``step``, for a diagnosis, or None if the data are not text.

        ``step`` counts batches of data (see ``data_step``); ``config`` is in force at the member's own step. Reads
        the text, and imports ``origins`` here. Raises ValueError if the text is missing.
        """
        batch_text = getattr(importlib.import_module(self.origins or self.module), "batch_text", None)
        return None if batch_text is None else batch_text(config, seed, step)


def data_step(config: TrainingConfig, step: int, num_rollbacks: int) -> int:
    """Return the data step that a member trained on at its own ``step``, after ``num_rollbacks`` rollbacks.

    The batch's seed is ``data_seed``, since an intervention may have switched to another stream.
    """
    return moved_on(config, step) + num_rollbacks * (config.rollback or 0)
