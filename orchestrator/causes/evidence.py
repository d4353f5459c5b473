"""The evidence on one trial: its curves, telemetry, settings and neighbouring cells, as mechanisms need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.base import OBJECTIVES, Objective
from objectives.control import acted
from objectives.interventions import in_force
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import COLLAPSED, CUSTOM_KINDS
from orchestrator.causes.moments import (
    beta2_of,
    follows_from_norms,
    is_adam,
    number_of,
    second_moment_sums,
    sets,
    v_lags,
)
from orchestrator.causes.series import NOTHING, Series, joined, known, series
from orchestrator.ledger.facts import PackedObjective
from orchestrator.maps.neighbours import Neighbour, neighbours
from orchestrator.sweepfile.settings import settings_of

# Shapes: N steps.

ALL = "all"
BY_PRODUCTS, BY_FORWARDS = ("lambda_max", "lambda_grad"), "lambda_crit"  # readings of the curvature
_FULL_RATE = 0.9  # of the highest learning rate before the onset
# A blow-up at the start rises this share above the first loss within these steps. A run that has been back for _BACK
# times as long is judged by its later steps.
_BLOW_UP, _START, _BACK, _SMOOTHED = 0.5, 50, 3, 5
_ONSET_REACH = 50  # steps after the onset in which to look for its peak

BatchText = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A trial, its curves and telemetry, and the other trials of its sweep.

    ``curves`` and ``telemetry`` map a column to its readings. ``sisters`` are the trials of the sweep, with or without
    the trial itself. ``v_lag`` is |g|^2 / sum(vhat) over all parameters at as many steps as possible,
    ``effective_step`` the learning rate over the root of the second moment. ``threshold_ratio`` is the measured
    curvature over its threshold 2 / lr: above 1 a step overshoots. ``same_data`` are the losses of other trials with
    the same batches. ``batch_text`` describes where in the text a step's batch is. ``packed`` holds the facts of a
    custom packed objective, None for any other. ``facts`` are settings that all trials share, as the sweep file says.
    """

    trial: TrialResult
    sisters: tuple[TrialResult, ...]
    curves: Mapping[str, Series]
    telemetry: Mapping[str, Series]
    v_lag: Series
    effective_step: Series
    threshold_ratio: Series
    same_data: tuple[Series, ...]
    batch_text: BatchText
    has_every_step: bool
    packed: PackedObjective | None
    facts: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the trial, including features that are off."""
        settings = {**self.facts, **settings_of(self.trial.objective, self.trial.config)}
        return settings if self.packed is None else {**self.packed.features, **settings}

    @property
    def config_in_force(self) -> Mapping[str, Any]:
        """The settings at the last step before the onset, after interventions and rules.

        Judge training by these settings, and compare neighbouring cells by ``config``.
        """
        actual = acted(self.trial.config, self.trial.fired)
        entries = actual.get("interventions")
        if not entries or self.objective is None:
            return self.config
        config = self.objective.config_of(actual)
        now = in_force(config, max(self.until - 1, 0))
        return {**self.config, **{name: getattr(now, name) for entry in entries for name in entry.get("set", ())}}

    @property
    def bounds_curvature(self) -> bool:
        """Whether a low curvature excludes an overshoot: products see the steepest direction."""
        return any(len(self.column(name)) for name in BY_PRODUCTS)

    @property
    def sets_clipping(self) -> bool:
        """Whether clipping changes in mid-run, so that only readings show what was clipped."""
        return sets(acted(self.trial.config, self.trial.fired), "clip", "zclip", "adagc")

    @property
    def objective(self) -> Objective | None:
        """The objective; None for a custom one."""
        return OBJECTIVES.get(self.trial.objective)

    @property
    def layer_groups(self) -> tuple[str, ...]:
        """Layer groups of telemetry from the input to the output; empty if unknown.

        A custom packed objective without named groups has them in the order of its weights.
        """
        if self.objective is not None:
            return self.objective.layer_groups
        if self.packed is None:
            return ()
        return self.packed.layer_groups or tuple(self.groups("update_to_weight"))

    @property
    def has_logits(self) -> bool | None:
        """Whether the model has logits, which can grow; None if unknown."""
        objective = self.objective or self.packed
        return None if objective is None else objective.has_logits

    @property
    def is_full_batch(self) -> bool:
        """Whether every step is known to see the same data."""
        if self.objective is not None:
            return self.objective.is_full_batch(self.config)
        return self.packed is not None and self.packed.is_full_batch

    @property
    def is_custom_trainer(self) -> bool:
        """Whether a custom trainer made the trial, whose settings may mean anything."""
        return self.trial.objective in CUSTOM_KINDS

    @property
    def outcome(self) -> str:
        """stable, collapsed, spiked, diverged or stalled."""
        return known(self.trial.ending)

    @property
    def is_adam(self) -> bool | None:
        """Whether steps are divided by the root of a second moment; None if unknown."""
        return is_adam(self.config)

    @property
    def loss(self) -> Series:
        """The training loss."""
        return self.curves.get("loss", NOTHING)

    @property
    def grad_norm(self) -> Series:
        """The norm of the gradient before clipping."""
        return self.curves.get("grad_norm", NOTHING)

    @property
    def onset(self) -> int | None:
        """The first step off the trend, or of a blow-up at the start unless the run had long been back from it.

        The detector has no trend in the first steps, so its onset comes later. None if the run stayed on its trend, or
        stalled without a blow-up.
        """
        detected, start = self.trial.onset_step, self.blow_up
        if start is None or self.trial.outcome == "stable":
            return detected
        first, end = start
        return first if detected is None or detected - end < _BACK * (end - first) else detected

    @property
    def ending_onset(self) -> int | None:
        """The step before which a remedy must act: where its router collapsed if only that happened, else the onset."""
        return self.trial.collapsed_step if self.outcome == COLLAPSED else self.onset

    @property
    def blow_up(self) -> tuple[int, int] | None:
        """First and last step of a rise at the start far above the first loss; None without a blow-up."""
        initial, onset = self.trial.initial_loss, self.trial.onset_step
        if initial is None:
            return None
        first = self.loss.between(0, _START).first(lambda loss_N: loss_N > initial + _BLOW_UP * abs(initial))
        if first is None or (onset is not None and onset <= first):
            return None
        until = self.end if onset is None else onset
        high = self.loss.between(first, until).smoothed(_SMOOTHED)
        back = high.first(lambda loss_N: loss_N <= initial)
        return first, until if back is None else back

    @property
    def until(self) -> int:
        """The onset, or the end of a run without an onset."""
        return self.end if self.onset is None else self.onset

    @property
    def end(self) -> int:
        """One more than the last step."""
        steps = self.trial.steps_done
        return steps if steps is not None else int(self.loss.step_N[-1]) + 1 if len(self.loss) else 0

    @property
    def reach(self) -> int:
        """One more than the last step of the first rise after the onset."""
        recovery = next(
            (end for onset, end in self.trial.episodes if onset == self.onset and end is not None), self.end
        )
        return min(recovery + 1, self.until + _ONSET_REACH, self.end)

    @property
    def peak(self) -> int | None:
        """The step of the highest loss in the first rise after the onset."""
        rise = self.loss.between(self.until, self.reach)
        return None if self.onset is None or not len(rise) else int(rise.step_N[rise.value_N.argmax()])

    def rate_step(self, share: float) -> int | None:
        """The step when the learning rate first reached ``share`` of its maximum before the onset; None if unknown."""
        rate = self.curves.get("lr", NOTHING).between(0, self.until + 1)
        highest = rate.largest()
        if highest is None:
            warmup = self.number("warmup")
            return None if warmup is None else int(min(share * warmup, self.until))
        return rate.first(lambda rate_N: rate_N >= share * highest) or 0

    @property
    def full_rate_step(self) -> int | None:
        """The step when the learning rate first came near its maximum before the onset; None if unknown."""
        return self.rate_step(_FULL_RATE)

    def had_full_rate_for(self, steps: int) -> bool | None:
        """Whether it had trained at about its full learning rate for more than ``steps`` before the onset."""
        if self.until <= steps:
            return False
        return None if self.full_rate_step is None else self.until - self.full_rate_step > steps

    @property
    def memory(self) -> float | None:
        """Steps that the second moment averages over, 1 / (1 - beta2); None without one."""
        return None if self.beta2 is None else 1 / (1 - self.beta2)

    @property
    def beta1(self) -> float | None:
        """The decay of the first moment; None if unknown."""
        beta1 = number_of(self.config_in_force, "beta1")
        return beta1 if beta1 is not None and 0 <= beta1 < 1 else None

    @property
    def beta2(self) -> float | None:
        """The decay of the second moment; None without one or if unknown."""
        return None if is_adam(self.config) is False else beta2_of(self.objective, self.config_in_force)

    @property
    def memory_setting(self) -> str:
        """The setting that determines the memory of the second moment: beta2, or a half-life instead."""
        return "beta2" if self.config.get("beta2_half_life") is None else "beta2_half_life"

    @property
    def step_size(self) -> Series:
        """RMS of the update over the highest learning rate of a layer group: 1 is sign descent.

        Leaves out steps that were not taken, such as skipped updates in float16. Empty where a parametrisation gives
        weights rates of their own.
        """
        if self.config.get("parametrisation", "standard") != "standard":
            return NOTHING
        share = max([1.0, *(number_of(self.config, f"{group}_lr") or 0.0 for group in self.layer_groups)])
        updates, rate = self.column(f"update_rms/{ALL}"), self.curves.get("lr", NOTHING)
        sizes = joined(updates, rate, lambda update_N, rate_N: update_N / (share * rate_N))
        is_taken_N = sizes.value_N > 0
        return Series(sizes.step_N[is_taken_N], sizes.value_N[is_taken_N])

    def number(self, name: str) -> float | None:
        """The setting ``name`` if it is a finite number."""
        return number_of(self.config, name)

    def column(self, name: str) -> Series:
        """The readings of a telemetry column, empty if it was not read."""
        return self.telemetry.get(name, NOTHING)

    def groups(self, name: str) -> dict[str, Series]:
        """The column ``name`` by layer group, without the column of all parameters together."""
        columns = [column.partition("/") for column in self.telemetry]
        groups = [group for kind, _, group in columns if kind == name and group != ALL]
        return {group: self.column(f"{name}/{group}") for group in groups}

    def cells(self, setting: str) -> list[Neighbour]:
        """The cells that differ from the trial's only in ``setting``, without its own cell."""
        own = self.config.get(setting)
        return [cell for cell in neighbours(self.sisters, self.trial, setting) if cell.value != own]

    def own_cell(self, setting: str) -> Neighbour | None:
        """The trial's own cell; None if the trial lacks the setting or is not among the sweep's trials."""
        own = self.config.get(setting)
        return next((cell for cell in neighbours(self.sisters, self.trial, setting) if cell.value == own), None)


def gather(
    trial: TrialResult,
    trace: Mapping[str, np.ndarray],
    telemetry: Mapping[str, np.ndarray],
    sisters: Iterable[TrialResult] = (),
    same_data: Sequence[Series] = (),
    batch_text: BatchText = lambda step: None,
    packed: PackedObjective | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Evidence:
    """Gather the evidence on a finished trial from its row and its curves in the ledger.

    ``telemetry`` has a ``step`` and columns with NaN for missing readings, or is empty.
    """
    facts = facts or {}
    config = {**facts, **trial.config}
    steps_N = trace.get("step", np.zeros(0, dtype=np.int64))
    curves = {name: series(steps_N, values) for name, values in trace.items() if name != "step"}
    readings = {name: series(telemetry["step"], values) for name, values in telemetry.items() if name != "step"}
    readings = {name: values for name, values in readings.items() if len(values)}
    norm, rate = curves.get("grad_norm", NOTHING), curves.get("lr", NOTHING)
    has_every_step = len(steps_N) > 0 and bool((steps_N == np.arange(len(steps_N))).all())
    v_lag, total = readings.get(f"v_lag/{ALL}", NOTHING), NOTHING
    objective = OBJECTIVES.get(trial.objective)
    beta2, clip = beta2_of(objective, config), number_of(config, "clip")
    if has_every_step and len(norm) and beta2 is not None and follows_from_norms(objective, acted(config, trial.fired)):
        v_lag = series(steps_N, v_lags(trace["grad_norm"], beta2, clip))
        total = series(steps_N, second_moment_sums(trace["grad_norm"], beta2, clip))
    elif len(v_lag):
        # Telemetry reads the gradient before clipping, and v sees it after clipping.
        total = joined(norm, v_lag, lambda norm_N, lag_N: np.square(norm_N) / lag_N)
        factor = readings.get("clip_factor", NOTHING)
        v_lag = joined(v_lag, factor, lambda lag_N, factor_N: lag_N * np.square(factor_N)) if len(factor) else v_lag
    effective = rate if is_adam(config) is False else joined(rate, total, lambda a_N, b_N: a_N / np.sqrt(b_N))
    return Evidence(
        trial=trial,
        sisters=tuple(sisters),
        curves=curves,
        telemetry=readings,
        v_lag=v_lag,
        effective_step=effective,
        threshold_ratio=_threshold_ratio(readings),
        same_data=tuple(same_data),
        batch_text=batch_text,
        has_every_step=has_every_step,
        packed=packed,
        facts=facts,
    )


def _threshold_ratio(readings: Mapping[str, Series]) -> Series:
    """Curvature over its threshold: the largest of the readings at a step, all lower bounds."""
    threshold = readings.get("curvature_threshold", NOTHING)
    ratios = [
        joined(readings.get(name, NOTHING), threshold, lambda a_N, b_N: a_N / b_N)
        for name in (*BY_PRODUCTS, BY_FORWARDS)
    ]
    steps_N = np.unique(np.concatenate([ratio.step_N for ratio in ratios]))
    value_N = np.full(len(steps_N), -np.inf)
    for ratio in ratios:
        places = np.searchsorted(steps_N, ratio.step_N)
        value_N[places] = np.maximum(value_N[places], ratio.value_N)
    return Series(steps_N, value_N)
