"""The objective protocol, and the configuration of every objective (free of torch).

An objective trains a *pack*: K members with the same structure that differ only in numbers. Each field of a
configuration is per member (a number that may differ inside a pack) or structural (it changes shapes or the graph, so
it splits packs).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pydantic import model_validator

from objectives.fields import is_per_member, per_member, structural, unless, when
from objectives.training_config import TrainingConfig

Kernels = Literal["default", "onednn"]
_IN_FLOAT16 = when("precision", "float16")


@dataclass(frozen=True, slots=True)
class Way:
    """How a pack is run: this decides the speed, and affects results only up to rounding.

    ``width`` members train at a time, as one stacked model; ``compiled`` by torch.compile or eager; matrix products by
    the library's default or, on a CPU, by oneDNN.
    """

    width: int
    compiled: bool = False
    kernels: Kernels = "default"


class GptConfig(TrainingConfig):
    """A byte-level decoder-only transformer on real text."""

    batch_size: int = structural(8, "sequences", "sequences of `context` bytes per step", ge=1, le=65_536)
    depth: int = structural(2, "layers", "number of transformer blocks", ge=1, le=256)
    width: int = structural(32, "channels", "width of the residual stream; a multiple of heads", ge=2, le=16_384)
    heads: int = structural(2, "heads", "attention heads", ge=1, le=256)
    context: int = structural(32, "bytes", "length of a training sequence", ge=2, le=65_536)
    precision: Literal["float32", "tf32", "bfloat16", "float16"] = structural(
        "float32", "kind", "precision of matrix products: tf32 acts on GPUs only; bfloat16, float16 are autocast"
    )
    loss_scale: float = per_member(
        65_536.0, "1", "initial loss scale in float16, preferably a power of two", acts=_IN_FLOAT16, ge=1, le=1e30
    )
    loss_scale_growth: int = per_member(
        2000, "steps", "steps without overflow after which the loss scale doubles", acts=_IN_FLOAT16, ge=1
    )
    qk_norm: bool = structural(
        False, "switch", "normalise queries and keys of each head (Wortsman et al. 2023)", off=True
    )
    norm: Literal["layer", "rms"] = structural("layer", "kind", "kind of every norm: layer norm or RMS norm")
    norm_place: Literal["pre", "post", "output"] = structural(
        "pre", "kind", "norm before each sublayer, after its residual sum, or on its output before the sum (OLMo 2)"
    )
    residual_scale: float = per_member(
        1.0, "1", "factor on each sublayer's addition to the residual stream", off=True, ge=0
    )
    init_deviation: float = per_member(
        0.02, "1", "standard deviation of initial weights; over sqrt(2 depth) for output projections of sublayers", gt=0
    )
    dropout: float = per_member(
        0.0, "1", "share of each sublayer's output that is dropped in training", off=True, ge=0, lt=1
    )
    z_loss: float = per_member(0.0, "1", "weight of mean(log^2 Z) of the logits in the loss", off=True, ge=0)
    embedding_grad: float = per_member(1.0, "1", "factor on the embeddings' gradient (GLM-130B)", off=True, ge=0)
    embedding_lr: float = per_member(1.0, "of lr", "learning rate of the embeddings", off=True, ge=0)
    attention_lr: float = per_member(1.0, "of lr", "learning rate of the attention matrices", off=True, ge=0)
    mlp_lr: float = per_member(1.0, "of lr", "learning rate of the MLP matrices", off=True, ge=0)
    norm_lr: float = per_member(1.0, "of lr", "learning rate of the norms' gains", off=True, ge=0)
    head_lr: float = per_member(1.0, "of lr", "learning rate of the output head", off=True, ge=0)
    accumulate: int = structural(
        1,
        "micro-batches",
        "gradient accumulation: micro-batches per batch, whose gradients are averaged",
        off=True,
        ge=1,
    )
    recompute: bool = structural(
        False, "switch", "recompute activations in the backward pass, to save memory", off=True
    )
    corrupted: float = per_member(
        0.0, "1", "share of the batches whose text is replaced by random bytes", off=True, ge=0, le=1
    )
    context_start: int | None = per_member(
        None, "bytes", "initial sequence length; null for the full context", off=True, ge=1
    )
    context_steps: int = per_member(
        0,
        "steps",
        "steps in which the sequence length grows from context_start to context",
        acts=unless("context_start", None),
        ge=0,
    )
    text: tuple[str, ...] = structural(
        (), "paths", "text files, folders or globs to train on; empty for the Python standard library"
    )
    validation_batches: int = structural(
        8, "batches", "held-out batches for the validation loss at the end", ge=1, le=10_000
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> GptConfig:
        if self.width % self.heads:
            raise ValueError(f"width = {self.width} is not a multiple of heads = {self.heads}")
        return self

    @model_validator(mode="after")
    def _micro_batches_divide_the_batch(self) -> GptConfig:
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size = {self.batch_size} is not a multiple of accumulate = {self.accumulate}")
        return self

    @model_validator(mode="after")
    def _curriculum_is_whole(self) -> GptConfig:
        if self.context_start is not None and self.context_start > self.context:
            raise ValueError(f"context_start = {self.context_start} is longer than context = {self.context}")
        if self.context_start is not None and not self.context_steps:
            raise ValueError(f"context_start = {self.context_start} needs context_steps to grow in: give some")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Bytes that one step trains on."""
        return self.batch_size * self.context


class FunctionFitConfig(TrainingConfig):
    """A small tanh network fitted to sin x + sin 4x, in double precision."""

    lr: float = per_member(1e-2, "1", "peak learning rate", gt=0)
    batch_size: int | None = structural(None, "points", "points per step; null for the full batch", ge=1, le=65_536)
    width: int = structural(64, "units", "hidden units", ge=1, le=65_536)
    num_points: int = structural(200, "points", "training points, evenly spaced on [-pi, pi]", ge=2, le=65_536)

    @property
    def tokens_per_step(self) -> int:
        """Points that one step trains on."""
        return self.batch_size or self.num_points


class QuadraticConfig(TrainingConfig):
    """The loss curvature * |x|^2 / 2, whose stability edge is known in closed form."""

    lr: float = per_member(1e-1, "1", "peak learning rate", gt=0)
    batch_size: int = structural(1, "samples", "samples that average the gradient noise", ge=1, le=65_536)
    dimension: int = structural(4, "coordinates", "number of coordinates", ge=1, le=1_000_000)
    curvature: float = per_member(1.0, "1", "second derivative of the loss", gt=0)
    noise: float = per_member(0.0, "gradient", "standard deviation of one sample's gradient noise", ge=0)


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of one member of a new pack: ``row`` of the present pack, or None for a fresh start."""

    config: TrainingConfig
    seed: int
    row: int | None


class Trainer(Protocol):
    """K members in training, K >= 1. What it reports per step is an array of shape (K,).

    A member's numbers are independent of the other members of its pack. A member whose loss or gradient is not finite
    is masked before that step's update and no longer changes. With ``rollback`` it may instead return to an earlier
    snapshot, at that step or at the step of a spike. A pack with any ``rollback`` also reports ``rolled_back``, 1 for
    members that rolled back at this step and 0 for the others.
    """

    num_members: int

    def step(self) -> Mapping[str, Any]:
        """Train one step; ``loss``, ``grad_norm``, ``update_norm``, ``lr`` of shape (K,) each.

        ``loss`` and ``grad_norm`` belong to the parameters before the update. The arrays may still be on a device: the
        reader decides when to wait for them.
        """

    def observed_step(
        self, rows: Sequence[int], curved: Sequence[int], num_products: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """A ``step`` plus readings of shape (len(rows),) of the members in ``rows``, without effect on training.

        For those in ``curved`` also ``lambda_grad`` and ``lambda_max``, from ``num_products`` Hessian-vector products,
        and ``curvature_threshold``. A trainer without this method trains without telemetry.
        """

    def arrange(self, places: Sequence[Place]) -> None:
        """Make a pack of ``places`` out of this one; each member counts its own steps.

        A row's tensors may go to several places with other numbers (a fork), to one, or to none. A new member trains
        exactly as it would in a pack of its own.
        """

    def validate(self, rows: Sequence[int]) -> Any:
        """The held-out loss of the members in ``rows``; NaN where an objective has no held-out data."""

    def describe(self) -> Mapping[str, str]:
        """Facts about the data that are not in the configuration, for the record."""

    def state_dict(self) -> dict[str, Any]:
        """The state for a bit-exact resume on the CPU: tensors, integers and strings only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a ``state_dict`` of a pack with the same members."""

    def close(self) -> None:
        """Release the trainer's resources; called once, also after an error."""


@dataclass(frozen=True, slots=True)
class Objective:
    """An entry of the closed table of objectives."""

    name: str
    config_class: type[TrainingConfig]
    module: str
    # The smallest rise of the loss that counts as a spike, as a fraction of its recent median. A cross-entropy varies
    # by fractions; a squared error falls over decades, and a rise by a factor of 3 is small.
    spike_rise: float
    can_compile: bool
    # Consecutive steps with a non-finite gradient after which a run is lost: once masked, no later step differs.
    gradient_patience: int = 1
    # For a custom objective: its reference as module:name, and the folder of that module.
    reference: str = ""
    folder: str = ""

    @property
    def summary(self) -> str:
        """One line on what is trained."""
        return (self.config_class.__doc__ or "").strip().splitlines()[0]

    @property
    def per_member_fields(self) -> frozenset[str]:
        """Names of the fields that may differ inside a pack."""
        return frozenset(name for name, field in self.config_class.model_fields.items() if is_per_member(field))

    def start(self, configs: Sequence[TrainingConfig], seeds: Sequence[int], device: str, way: Way) -> Trainer:
        """Start training one pack on ``device``; imports torch at this point, not earlier.

        ``configs`` agree in every structural field. All of them train at once, whatever the width.
        """
        return importlib.import_module(self.module).start(configs, seeds, device, way)

    def batch_text(self, config: TrainingConfig, seed: int, step: int) -> str | None:
        """The origin of the data of ``step`` in one line, for a diagnosis; None where the data are not text.

        ``step`` counts batches of data (``data_step``). Imports torch at this point, reads the text, and raises
        ValueError where the text is not (or no longer) there.
        """
        tell = getattr(importlib.import_module(self.module), "batch_text", None)
        return None if tell is None else tell(config, seed, step)


def data_step(config: TrainingConfig, step: int, num_rollbacks: int) -> int:
    """The data step that a member trained on at its own ``step``, after ``num_rollbacks`` rollbacks before it."""
    return step + num_rollbacks * (config.rollback or 0)


OBJECTIVES: Mapping[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective("gpt", GptConfig, "objectives.models.gpt", spike_rise=0.1, can_compile=True),
        Objective(
            "function_fit", FunctionFitConfig, "objectives.models.function_fit", spike_rise=2.0, can_compile=False
        ),
        Objective("quadratic", QuadraticConfig, "objectives.models.quadratic", spike_rise=2.0, can_compile=False),
    )
}


def load_objective(reference: str, folder: str = "") -> Objective:
    """The built-in objective of that name, or the custom one at ``module:name``, whose module is in ``folder``.

    Imports the module, which runs its code. Raises whatever that raises, and TypeError for anything but an objective.
    """
    if ":" not in reference:
        return OBJECTIVES[reference]
    module_name, _, name = reference.partition(":")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = getattr(importlib.import_module(module_name), name)
    if not isinstance(found, Objective):
        raise TypeError(f"{name} is {type(found).__name__}, not an Objective")
    return replace(found, reference=reference, folder=folder)
