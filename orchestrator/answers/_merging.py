"""Merges the weights that the trials of a sweep kept, and measures them on held-out text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from objectives.base import OBJECTIVES, ExecutionPlan, GptConfig
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.states import kept_steps

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.base.trial_result import TrialResult

METHODS = ("linear", "slerp", "task_arithmetic", "greedy")
_SCALES = tuple(number / 10 for number in range(1, 16))  # of task arithmetic
_POINTS = 11  # of a path, with both ends


@dataclass(frozen=True, slots=True)
class Measured:
    """Weights with a name, and their losses on the half of the held-out text that chooses and on the other half."""

    name: str
    choosing_loss: float | None
    held_out_loss: float | None


@dataclass(frozen=True, slots=True)
class PathLoss:
    """The loss on held-out text along the straight line between two trials, at shares of the way.

    The ``barrier`` is the largest rise above the straight line between the losses of its ends (Frankle et al., arXiv
    1912.05671); null if a loss is not finite.
    """

    first: str
    second: str
    shares: tuple[float, ...]
    losses: tuple[float | None, ...]
    barrier: float | None


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge of trials gave: ``candidates`` of its method, where ``chosen`` had the lowest choosing loss."""

    trials: tuple[Measured, ...]
    candidates: tuple[Measured, ...]
    used: tuple[str, ...]
    common_start: str | None
    paths: tuple[PathLoss, ...]

    @property
    def best_single(self) -> Measured:
        """The single trial with the lowest choosing loss."""
        return _lowest(self.trials)

    @property
    def chosen(self) -> Measured:
        """The merge with the lowest choosing loss."""
        return _lowest(self.candidates)


def merged(folder: Path, trials: Sequence[TrialResult], method: str, anyway: bool) -> Merged:
    """Merge the last kept states of ``trials``. Raises InputError if that has no meaning, and says why."""
    from objectives.models import merging
    from orchestrator.worker.kept_states import kept_weights

    configs = [_config(trial) for trial in trials]
    models = [kept_weights(folder, trial.trial_id, _last(folder, trial)) for trial in trials]
    _check_alike(trials, configs, models)
    try:
        held_out = merging.HeldOut(configs[0])
    except ValueError as error:
        raise InputError(Problem("sweep merge", "text", str(error), "put the text where it was")) from None
    start, base = _common_start(folder, trials, configs)
    if start is None and not anyway:
        seeds = {trial.seed for trial in trials}
        why = f"their seeds are {', '.join(map(str, sorted(seeds)))}" if len(seeds) > 1 else "they began differently"
        message = f"{trials[0].name} and {trials[-1].name} have no common past: {why}, so their mean is not a model"
        raise InputError(Problem("sweep merge", "", message, "merge trials of one seed; --anyway shows the barrier"))
    if method == "slerp" and len(models) != 2:
        message = f"an arc joins two trials, and these are {len(models)}"
        raise InputError(Problem("--method", method, message, "name two with --cells, or take another method"))
    if method == "task_arithmetic" and base is None:
        message = "it adds changes since a common start, and these trials have none"
        raise InputError(Problem("--method", method, message, "merge trials of one seed"))

    def measured(name: str, weights: Any, config: GptConfig = configs[0]) -> Measured:
        choosing, other = held_out.losses(config, weights)
        return Measured(name, _finite(choosing), _finite(other))

    names = [trial.name for trial in trials]
    singles = [measured(*one) for one in zip(names, models, configs, strict=True)]
    used = names
    match method:
        case "linear":
            candidates = [measured(f"mean of {len(models)}", merging.mean(models))]
        case "slerp":
            arcs = {
                f"slerp {kind}": merging.slerp(models[0], models[1], 0.5, per_tensor=kind != "flat") for kind in _KINDS
            }
            candidates = [measured(*one) for one in arcs.items()]
        case "task_arithmetic":
            candidates = [
                measured(f"scale {scale:g}", merging.task_arithmetic(base or {}, models, scale)) for scale in _SCALES
            ]
        case _:
            alone = [_infinite(single.choosing_loss) for single in singles]
            taken = merging.greedy(models, alone, lambda weights: _infinite(held_out.losses(configs[0], weights)[0]))
            used = [names[index] for index in taken]
            candidates = [measured(f"greedy mean of {len(taken)}", merging.mean([models[index] for index in taken]))]

    def path(number: int) -> PathLoss:
        shares = tuple(point / (_POINTS - 1) for point in range(_POINTS))
        ends = models[number], models[number + 1]
        losses = [sum(held_out.losses(configs[number], merging.between(*ends, share))) / 2 for share in shares]
        rises = [loss - (1 - at) * losses[0] - at * losses[-1] for at, loss in zip(shares, losses, strict=True)]
        barrier = max(rises) if all(map(math.isfinite, rises)) else None
        return PathLoss(names[number], names[number + 1], shares, tuple(map(_finite, losses)), barrier)

    paths = tuple(path(number) for number in range(len(models) - 1))
    return Merged(tuple(singles), tuple(candidates), tuple(used), start, paths)


_KINDS = ("flat", "per tensor")


def _config(trial: TrialResult) -> GptConfig:
    config = OBJECTIVES[trial.objective].config_of(trial.config) if trial.objective in OBJECTIVES else None
    if not isinstance(config, GptConfig):
        message = f"{trial.objective} cannot be merged: it has no held-out text in two halves, one to choose by"
        raise InputError(Problem("sweep merge", "objective", message, "name a sweep of gpt"))
    # Experts of trials with a common past correspond by their numbers, as all other weights do.
    if config.experts and config.balance == "loss_free":
        message = "the biases that balance = loss_free gives to routers are not among the weights that are kept"
        raise InputError(Problem("sweep merge", "balance", message, "balance them by aux"))
    return config


def _last(folder: Path, trial: TrialResult) -> int:
    known = kept_steps(folder, trial.trial_id)
    return known[-1] if known else trial.steps  # reading it then says what to do


def _check_alike(trials: Sequence[TrialResult], configs: Sequence[GptConfig], models: Sequence[Any]) -> None:
    shapes = [{name: tuple(weight.shape) for name, weight in weights.items()} for weights in models]
    for trial, config, shape in zip(trials, configs, shapes, strict=True):
        if shape != shapes[0]:
            message = f"{trial.name} has weights of other shapes than {trials[0].name}"
            raise InputError(Problem("sweep merge", "", message, "merge trials of one model"))
        if (config.texts, config.recipe) != (configs[0].texts, configs[0].recipe):
            message = f"{trial.name} is validated on other text than {trials[0].name}"
            raise InputError(Problem("sweep merge", "text", message, "merge trials of one text"))


def _common_start(folder: Path, trials: Sequence[TrialResult], configs: Sequence[GptConfig]) -> tuple[str | None, Any]:
    """Return where all trials had equal weights, in words, and these weights; None without such a step.

    It is the last such step that all have kept, or else the start of their training.
    """
    from orchestrator.worker.kept_states import kept_weights

    common = set.intersection(*(set(kept_steps(folder, trial.trial_id)) for trial in trials))
    for step in sorted(common, reverse=True):
        if state := _common(kept_weights(folder, trial.trial_id, step) for trial in trials):
            return f"their common state of step {step:,}", state
    state = _common(_initial(config, trial) for config, trial in zip(configs, trials, strict=True))
    return (None, None) if state is None else ("their initial weights", state)


def _initial(config: GptConfig, trial: TrialResult) -> Any:
    from orchestrator.worker.kept_states import weights_of_row

    trainer = OBJECTIVES["gpt"].start([config], [trial.seed], "cpu", ExecutionPlan(1))
    try:
        return weights_of_row(trainer, 0)
    finally:
        trainer.close()


def _common(states: Iterator[Any]) -> Any:
    """The weights if all ``states`` are equal, else None; reads none after the first that differs."""
    import torch

    first = next(states)
    return first if all(torch.equal(state[name], first[name]) for state in states for name in first) else None


def _lowest(measured: Sequence[Measured]) -> Measured:
    return min(measured, key=lambda one: _infinite(one.choosing_loss))


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _infinite(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss
