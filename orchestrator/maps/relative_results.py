"""Results of trials that depend on other trials of their sweep: blow-ups, learned shares, labels of learning rates."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.base.measure import FINAL_LOSS, Measure, score_of
from orchestrator.base.space import Cell, is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.relative import (
    Training,
    is_learning_rate,
    learned_shares,
    lr_axis,
    lr_health,
    unseen_blow_ups,
)
from orchestrator.ledger.facts import BY_WORDS, imported_of
from orchestrator.ledger.reader import is_grid
from orchestrator.maps.first_losses import TraceOf, without_partial_firsts


def with_relative_results(
    trials: Sequence[TrialResult],
    facts: Mapping[str, str],
    trace_of: TraceOf,
    noise_of: Callable[[TrialResult], float] | None = None,
) -> list[TrialResult]:
    """The trials of one sweep, each with its learned share, and with label and regret of its learning rate.

    A trial that blew up before its first loss, as first losses of others show, is diverged. Where all show that a first
    loss is a partial sum, it is left out; ``trace_of`` reads the curve of a trial. Without ``noise_of``,
    the noise of a trial's loss from step to step, curves have no say in labels of learning rates; all else is the same.
    """
    axes = json.loads(facts.get("axes", "[]"))
    zipped = {name for axis in axes for name in axis.get("zipped", ()) if is_learning_rate(axis["name"])}
    measure = score_of(facts) or FINAL_LOSS
    stopping = json.loads(facts.get("stopping", "{}"))
    rules = StoppingConfig(**{key: value for key, value in stopping.items() if key in StoppingConfig.model_fields})
    imported = imported_of(facts)
    if imported is None or imported.judged_by != BY_WORDS:  # a label that the user gave stands
        trials = _compared(trials, zipped, rules, trace_of, is_scattered=not is_grid(facts))
    # The noise of the loss says nothing about a score.
    return _with_lr_health(
        _with_learned_shares(trials, measure), zipped, noise_of if measure.is_loss else None, measure
    )


def _compared(
    trials: Sequence[TrialResult],
    zipped: Collection[str],
    rules: StoppingConfig,
    trace_of: TraceOf,
    *,
    is_scattered: bool,
) -> list[TrialResult]:
    """Judge trials by the first losses of others that differ in learning rate, ``zipped`` axes and seed alone.

    Scattered ones may differ in all axes that have numbers. A built-in objective records a loss before its first
    update, so that nothing happens unseen.
    """
    axis = lr_axis(trials[0].cell) if trials else None
    if axis is None or trials[0].objective not in CUSTOM_KINDS:
        return list(trials)
    numeric = {name for name in trials[0].cell if all(is_number(trial.cell[name]) for trial in trials)}
    led = (numeric & {*zipped}) - {axis}
    others = sorted(numeric - {axis, *zipped}) if is_scattered else []
    judged = list(trials)
    for row, trainings in _lr_rows(trials, [*others, *led], FINAL_LOSS):
        rates = [training.rate for training in trainings]
        again = without_partial_firsts([trials[i] for i in row], rates, rules, trace_of)
        for i, trial in zip(row, again, strict=True):
            judged[i] = trial
    for row, trainings in _lr_rows(judged, [*others, *led], FINAL_LOSS):
        places = [[float(trials[i].cell[name]) for name in others] for i in row] if others else None
        for place, start in unseen_blow_ups(trainings, rules, places, is_zipped=bool(led)).items():
            trial = judged[row[place]]
            reason = (
                f"it blew up before its first loss of {trial.initial_loss:.4g}: it ended at {trial.final_loss:.4g}, "
                f"and {start.num} trials at lower learning rates began at {start.loss:.4g} or less; by its own losses "
                f"{trial.reason}"
            )
            judged[row[place]] = replace(trial, outcome="diverged", onset_step=0, risen_share=None, reason=reason)
    return judged


def _lr_rows(
    trials: Sequence[TrialResult], free: Collection[str], measure: Measure
) -> list[tuple[list[int], list[Training]]]:
    """The places and trainings of each group of trials that differ in learning rate, ``free`` axes and seed alone."""
    axis = lr_axis(trials[0].cell) if trials else None
    if axis is None:
        return []
    rows: dict[Cell, list[int]] = {}
    for i, trial in enumerate(trials):
        if isinstance(trial.cell[axis], int | float):
            rows.setdefault(trial.cell.without({axis, *free}), []).append(i)
    return [
        (
            row,
            [
                Training(t.cell[axis], t.seed, t.outcome, measure.initial_cost(t), measure.final_cost(t), t.is_degraded)
                for t in map(trials.__getitem__, row)
            ],
        )
        for row in rows.values()
    ]


def _with_learned_shares(trials: Sequence[TrialResult], measure: Measure) -> list[TrialResult]:
    """Shares of the ``measure``, or of the loss if nothing has a start on it."""
    if not any(measure.initial_cost(trial) is not None for trial in trials):
        measure = FINAL_LOSS
    results = [(trial.outcome, measure.initial_cost(trial), measure.final_cost(trial)) for trial in trials]
    shares = learned_shares(results)
    known = [share if trial.is_judged else None for trial, share in zip(trials, shares, strict=True)]
    return [
        trial if trial.learned_share == share else replace(trial, learned_share=share)
        for trial, share in zip(trials, known, strict=True)
    ]


def _with_lr_health(
    trials: Sequence[TrialResult],
    zipped: Collection[str],
    noise_of: Callable[[TrialResult], float] | None,
    measure: Measure,
) -> list[TrialResult]:
    """Compare trials that differ in the learning rate, in axes ``zipped`` with it and in the seed alone."""
    labelled = list(trials)
    for row, trainings in _lr_rows(trials, zipped, measure):
        of_row = None if noise_of is None else lambda place, row=row: noise_of(trials[row[place]])
        for i, health in zip(row, lr_health(trainings, of_row), strict=True):
            labelled[i] = replace(trials[i], lr_health=health.label, lr_regret=health.regret)
    return labelled
