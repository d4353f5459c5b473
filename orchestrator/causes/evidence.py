"""The evidence on one trial, in the form that the mechanisms of an instability need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.base import OBJECTIVES, Objective
from objectives.control import acted
from objectives.interventions import in_force
from objectives.optimizers.facts import facts_of
from orchestrator.base.space import is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.causes.moments import second_moment_sums, v_lags
from orchestrator.causes.series import NOTHING, Series, known, series
from orchestrator.ledger.packed_objective import PackedObjective
from orchestrator.maps.neighbours import Neighbour, neighbours
from orchestrator.sweepfile.settings import settings_of

# Shapes: N steps.

ALL = "all"
# Settings that change what enters v, so that it does not follow from the norms.
_INTO_V = ("zclip", "adagc", "rollback")
_FULL_RATE = 0.9  # of the highest learning rate before the onset
# A blow-up at the start: how far above the first loss, and in how many steps; a run that has been back for this many
# times as long is judged by later steps.
_BLOW_UP, _START, _BACK, _SMOOTHED = 0.5, 50, 3, 5
_ONSET_REACH = 50  # steps after the onset in which to look for its peak

BatchText = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One trial's row of the ledger, its curves, its telemetry, and the sweep's other trials.

    ``curves`` and ``telemetry`` map a column to its readings. ``v_lag`` is |g|^2 / sum(vhat) of all parameters at as
    many steps as possible, ``effective_step`` the learning rate over the root of the second moment. ``edge`` is the
    measured curvature over its threshold: above 1 a step is over the edge of stability. ``same_data`` are the losses of
    other trials with the same batches. ``batch_text`` gives the position of a step's batch in the text. ``packed`` are
    the facts of a custom packed objective, None of any other.
    """

    trial: TrialResult
    sisters: tuple[TrialResult, ...]
    curves: Mapping[str, Series]
    telemetry: Mapping[str, Series]
    v_lag: Series
    effective_step: Series
    edge: Series
    same_data: tuple[Series, ...]
    batch_text: BatchText
    has_every_step: bool
    packed: PackedObjective | None

    @property
    def config(self) -> Mapping[str, Any]:
        """The trial's settings, including features that are off."""
        settings = settings_of(self.trial.objective, self.trial.config)
        return settings if self.packed is None else {**self.packed.features, **settings}

    @property
    def config_in_force(self) -> Mapping[str, Any]:
        """The settings with the numbers that interventions and rules gave them by the last step before the onset.

        Neighbouring cells are compared by ``config``, and what training did is judged by these.
        """
        entries = _acted(self.trial).get("interventions")
        if not entries or self.objective is None:
            return self.config
        config = self.objective.config_class.model_validate(_acted(self.trial), strict=False)
        now = in_force(config, max(self.until - 1, 0))
        return {**self.config, **{name: getattr(now, name) for entry in entries for name in entry.get("set", ())}}

    @property
    def sets_clipping(self) -> bool:
        """Whether a method of clipping changes in mid-run, so that only its readings tell what was clipped."""
        return _sets(_acted(self.trial), ("clip", "zclip", "adagc"))

    @property
    def objective(self) -> Objective | None:
        """The objective; None for a custom one."""
        return OBJECTIVES.get(self.trial.objective)

    @property
    def layer_groups(self) -> tuple[str, ...]:
        """Layer groups of telemetry from the input to the output, empty if unknown.

        Those of a custom packed objective that names none are in the order of its weights.
        """
        if self.objective is not None:
            return self.objective.layer_groups
        if self.packed is None:
            return ()
        return self.packed.layer_groups or tuple(self.groups("update_to_weight"))

    @property
    def has_logits(self) -> bool | None:
        """Whether the model has logits, which can grow; None if unknown."""
        known_objective = self.objective or self.packed
        return None if known_objective is None else known_objective.has_logits

    @property
    def is_custom_trainer(self) -> bool:
        """Whether a custom trainer made it, whose settings may mean anything."""
        return self.trial.objective in CUSTOM_KINDS

    @property
    def outcome(self) -> str:
        """stable, spiked, diverged or stalled."""
        return known(self.trial.outcome)

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
        """The first step off the trend, or of a blow-up at the start from which the run was not back for long.

        The detector has no trend in the first steps, so its onset comes later. None for a run that stayed on its trend,
        or stalled without a blow-up.
        """
        found, start = self.trial.onset_step, self.blow_up
        if start is None or self.outcome == "stable":
            return found
        first, end = start
        return first if found is None or found - end < _BACK * (end - first) else found

    @property
    def blow_up(self) -> tuple[int, int] | None:
        """First and last step at which the loss was far above its first one at the start; None without a blow-up."""
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
        """The end of the time that led to the onset: the onset, or the run's end."""
        return self.end if self.onset is None else self.onset

    @property
    def end(self) -> int:
        """One more than the last step."""
        steps = self.trial.steps_done
        return steps if steps is not None else int(self.loss.step_N[-1]) + 1 if len(self.loss) else 0

    @property
    def episodes(self) -> list[tuple[int, int | None]]:
        """Onset and recovery of each episode off the trend; recovery is None while it lasts."""
        return list(self.trial.episodes)

    @property
    def reach(self) -> int:
        """One more than the last step of the first rise after the onset."""
        recovery = next((end for onset, end in self.episodes if onset == self.onset and end is not None), self.end)
        return min(recovery + 1, self.until + _ONSET_REACH, self.end)

    @property
    def peak(self) -> int | None:
        """The step of the highest loss in the first rise after the onset."""
        rise = self.loss.between(self.until, self.reach)
        return None if self.onset is None or not len(rise) else int(rise.step_N[rise.value_N.argmax()])

    def rate_step(self, share: float) -> int:
        """The first step at which the learning rate reached ``share`` of the highest before the onset."""
        rate = self.curves.get("lr", NOTHING).between(0, self.until + 1)
        highest = rate.largest()
        if highest is None:
            return int(min(share * (self.number("warmup") or 0), self.until))
        return rate.first(lambda rate_N: rate_N >= share * highest) or 0

    @property
    def full_rate_step(self) -> int:
        """The first step at which the learning rate was about as high as it became before the onset."""
        return self.rate_step(_FULL_RATE)

    @property
    def num_full_rate_steps(self) -> int:
        """Steps at about the full learning rate before the onset."""
        return self.until - self.full_rate_step

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
        """The decay of the second moment; None if there is none or it is unknown."""
        return None if is_adam(self.config) is False else beta2_of(self.objective, self.config_in_force)

    @property
    def memory_setting(self) -> str:
        """The setting that determines the memory of the second moment: beta2, or a half-life in its place."""
        return "beta2" if self.config.get("beta2_half_life") is None else "beta2_half_life"

    @property
    def step_size(self) -> Series:
        """RMS of the update over the highest learning rate of a layer group, where read: 1 is sign descent.

        Without steps that were not taken, such as those skipped in float16.
        """
        share = max([1.0, *(number_of(self.config, f"{group}_lr") or 0.0 for group in self.layer_groups)])
        updates, rate = self.column(f"update_rms/{ALL}"), self.curves.get("lr", NOTHING)
        sizes = joined(updates, rate, lambda update_N, rate_N: update_N / (share * rate_N))
        is_taken_N = sizes.value_N > 0
        return Series(sizes.step_N[is_taken_N], sizes.value_N[is_taken_N])

    def number(self, name: str) -> float | None:
        """The setting ``name`` if it is a finite number."""
        return number_of(self.config, name)

    def column(self, name: str) -> Series:
        """The readings of a telemetry column; empty if it was not read."""
        return self.telemetry.get(name, NOTHING)

    def groups(self, name: str) -> dict[str, Series]:
        """The column ``name`` of each layer group, without that of all parameters together."""
        columns = [column.partition("/") for column in self.telemetry]
        groups = [group for kind, _, group in columns if kind == name and group != ALL]
        return {group: self.column(f"{name}/{group}") for group in groups}

    def cells(self, setting: str) -> list[Neighbour]:
        """The cells that differ from the trial's only in ``setting``, without its own."""
        own = self.config.get(setting)
        return [cell for cell in neighbours(self.sisters, self.trial, setting) if cell.value != own]

    def own_cell(self, setting: str) -> Neighbour | None:
        """The trial's own cell; None where the trial has no such setting, or is not among the sweep's trials."""
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
) -> Evidence:
    """The evidence on one finished trial: its row and curves as in the ledger.

    ``telemetry`` has a ``step`` and columns with NaN where not read, or is empty. ``sisters`` are rows of the sweep,
    with or without the trial's own. ``packed`` are the facts of a custom packed objective.
    """
    steps_N = trace.get("step", np.zeros(0, dtype=np.int64))
    curves = {name: series(steps_N, values) for name, values in trace.items() if name != "step"}
    readings = {name: series(telemetry["step"], values) for name, values in telemetry.items() if name != "step"}
    readings = {name: values for name, values in readings.items() if len(values)}
    norm, rate = curves.get("grad_norm", NOTHING), curves.get("lr", NOTHING)
    has_every_step = len(steps_N) > 0 and bool((steps_N == np.arange(len(steps_N))).all())
    v_lag, total = readings.get(f"v_lag/{ALL}", NOTHING), NOTHING
    objective = OBJECTIVES.get(trial.objective)
    beta2, clip = beta2_of(objective, trial.config), number_of(trial.config, "clip")
    if has_every_step and len(norm) and beta2 is not None and _is_plain_adam(objective, _acted(trial)):
        v_lag = series(steps_N, v_lags(trace["grad_norm"], beta2, clip))
        total = series(steps_N, second_moment_sums(trace["grad_norm"], beta2, clip))
    elif len(v_lag):
        # Readings are of the gradient before clipping, while v sees it after clipping.
        total = joined(norm, v_lag, lambda norm_N, lag_N: np.square(norm_N) / lag_N)
        factor = readings.get("clip_factor", NOTHING)
        v_lag = joined(v_lag, factor, lambda lag_N, factor_N: lag_N * np.square(factor_N)) if len(factor) else v_lag
    effective = rate if is_adam(trial.config) is False else joined(rate, total, lambda a_N, b_N: a_N / np.sqrt(b_N))
    return Evidence(
        trial=trial,
        sisters=tuple(sisters),
        curves=curves,
        telemetry=readings,
        v_lag=v_lag,
        effective_step=effective,
        edge=_edge(readings),
        same_data=tuple(same_data),
        batch_text=batch_text,
        has_every_step=has_every_step,
        packed=packed,
    )


def number_of(config: Mapping[str, Any], name: str) -> float | None:
    """The setting ``name`` if it is a finite number."""
    value = config.get(name)
    return float(value) if value is not None and is_number(value) and math.isfinite(value) else None


def is_adam(config: Mapping[str, Any]) -> bool | None:
    """Whether steps are divided by the root of a second moment; None for an optimizer that does not say."""
    optimizer = config.get("optimizer")
    return facts_of(optimizer).divides_by_root(config) if isinstance(optimizer, str) else None


def averages_squares(objective: Objective | None, config: Mapping[str, Any]) -> bool | None:
    """Whether steps are divided by the root of an average of g^2 with decay beta2; None if unknown."""
    optimizer = config.get("optimizer")
    if not isinstance(optimizer, str):
        return None
    return facts_of(optimizer).averages_squares({**config, "beta2": beta2_of(objective, config)})


def beta2_of(objective: Objective | None, config: Mapping[str, Any]) -> float | None:
    """The decay of the second moment, even if given as a half-life in tokens. None if unknown."""
    half_life = number_of(config, "beta2_half_life")
    if objective is not None and half_life is not None and half_life > 0:
        return 0.5 ** (objective.tokens_per_step(config) / half_life)
    beta2 = number_of(config, "beta2")
    return beta2 if beta2 is not None and 0 <= beta2 < 1 else None


def _is_plain_adam(objective: Objective | None, config: Mapping[str, Any]) -> bool:
    """Whether v follows from the norms: Adam from v = 0, with global clipping at most."""
    is_adam_of_norms = facts_of(str(config.get("optimizer"))).v_follows_from_norms
    if not is_adam_of_norms or beta2_of(objective, config) is None or any(config.get(name) for name in _INTO_V):
        return False
    if _changes_v(config):
        return False
    decays_gradient = config.get("weight_decay_kind") == "coupled" and config.get("weight_decay")
    return not decays_gradient and config.get("second_moment_start", "zero") == "zero"


def _acted(trial: TrialResult) -> dict[str, Any]:
    """The configuration of a trial with what its rules did as interventions."""
    return acted(trial.config, trial.fired)


def _sets(config: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether an intervention sets one of the fields ``names``."""
    return any(name in entry.get("set", ()) for entry in config.get("interventions") or () for name in names)


def _changes_v(config: Mapping[str, Any]) -> bool:
    """Whether interventions change the second moment otherwise than by the gradients."""
    entries = config.get("interventions") or ()
    return _sets(config, ("beta2", "beta2_half_life", "clip", *_INTO_V)) or any(
        entry.get("reset") in ("moments", "second_moment") or entry.get("rescale") for entry in entries
    )


def _edge(readings: Mapping[str, Series]) -> Series:
    """Curvature over threshold where measured: the larger of lambda_max and lambda_grad, both lower bounds."""
    threshold = readings.get("curvature_threshold", NOTHING)
    ratios = [
        joined(readings.get(name, NOTHING), threshold, lambda a_N, b_N: a_N / b_N)
        for name in ("lambda_max", "lambda_grad")
    ]
    steps_N = np.union1d(ratios[0].step_N, ratios[1].step_N)
    value_N = np.full(len(steps_N), -np.inf)
    for ratio in ratios:
        places = np.searchsorted(steps_N, ratio.step_N)
        value_N[places] = np.maximum(value_N[places], ratio.value_N)
    return Series(steps_N, value_N)


def joined(a: Series, b: Series, make: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Series:
    """``make`` applied where both were read."""
    steps_N, in_a, in_b = np.intersect1d(a.step_N, b.step_N, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return series(steps_N, make(a.value_N[in_a], b.value_N[in_b]))
