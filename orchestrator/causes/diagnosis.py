"""Why a trial became unstable: which trial to examine, the finding of each mechanism, and which of them leads."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.base import OBJECTIVES, data_seed, data_step
from objectives.control import acted
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import CUSTOM_KINDS, Outcome
from orchestrator.causes.evidence import BatchText, Evidence, gather
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.finding import Finding
from orchestrator.causes.series import Series, series
from orchestrator.ledger.imported import refuse_without_curves
from orchestrator.ledger.packed_objective import PackedObjective
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.stability import sweep_axes, trials_where

# The worse outcome first, to break ties.
_BAD: tuple[Outcome, ...] = ("diverged", "stalled", "spiked")
_MOST_COMPARED = 8  # other trials whose losses are read
_SHOWN = 5

# Takes a trial's row and the steps after which it was rolled back.
BatchTexts = Callable[[TrialResult, np.ndarray], BatchText]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the evidence says about one trial.

    ``cause`` is the leading supported mechanism, None without one: not enough evidence, or nothing to explain.
    ``along`` are supported ones that it causes or that accompany it; ``others`` are the unknown and the excluded ones,
    in the order of the mechanisms. ``chosen`` says why this trial was chosen.
    """

    sweep: str
    evidence: Evidence
    chosen: str
    findings: tuple[Finding, ...]
    cause: Finding | None
    along: tuple[Finding, ...]

    @property
    def trial(self) -> TrialResult:
        """The row of the trial."""
        return self.evidence.trial

    def of(self, verdict: str) -> list[Finding]:
        """The findings with one verdict."""
        return [finding for finding in self.findings if finding.verdict == verdict]


def batch_texts_of_objectives(trial: TrialResult, rollback_step_N: np.ndarray) -> BatchText:
    """The text of a trial's batches as its objective knows it; each of the rollbacks at (N,) skipped some batches."""
    objective = OBJECTIVES.get(trial.objective)
    if objective is None:
        return lambda step: None

    def text(step: int) -> str | None:
        try:
            config = objective.config_class.model_validate_json(json.dumps(acted(trial.config, trial.fired)))
            moved_on = data_step(config, step, int((rollback_step_N < step).sum()))
            return objective.batch_text(config, data_seed(config, trial.seed, step), moved_on)
        except (ValueError, OSError):  # a configuration of an older version, or a text that no longer exists
            return None

    return text


def diagnose(
    ledger: LedgerReader,
    trial_id: str | None = None,
    cell: Mapping[str, Any] | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Diagnosis | None:
    """The diagnosis of one trial: of ``trial_id`` (or a unique prefix), or of the most typical one of ``cell``.

    Without either, of the most typical trial of the sweep: the earliest onset of the most common outcome that is not
    stable; None where all are stable. ``batch_texts`` returns, for a trial's row, a function that names the origin of a
    step's batch. Raises InputError where there is no such trial or cell, or it has no result.
    """
    rows = ledger.trials()
    if trial_id is not None and cell:
        raise InputError(Problem("--trial", trial_id, "names one trial already", "leave out --cell"))
    if trial_id is not None:
        return examine(ledger, trial_by_id(rows, trial_id), "it was asked for", rows, batch_texts)
    found: Sequence[TrialResult] = rows
    if cell:
        found, _ = trials_where("--cell", rows, {axis.name: axis for axis in sweep_axes(ledger)}, cell)
    finished = [row for row in found if row.outcome is not None]
    if not finished:
        raise InputError(Problem(ledger.path.parent.name, "", "no trial of it has finished", "`sweep run` trains it"))
    typical = most_typical(finished)
    if typical is None:
        return examine(ledger, finished[0], "all trials of the cell are stable", rows, batch_texts) if cell else None
    alike = sum(row.outcome == typical.outcome for row in finished)
    common = f"{typical.outcome}, as are {alike} of {len(finished)} trials of the {'cell' if cell else 'sweep'}"
    chosen = f"the earliest onset of the commonest outcome that is not stable ({common})"
    return examine(ledger, typical, chosen, rows, batch_texts)


def examine(
    ledger: LedgerReader,
    trial: TrialResult,
    chosen: str,
    rows: Sequence[TrialResult],
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Diagnosis:
    """The diagnosis of ``trial``, a finished one of ``rows``."""
    refuse_without_curves(ledger, "a diagnosis reads them")
    trace = ledger.trace(trial.trial_id)
    rollback_step_N = trace["step"][trace["rolled_back"] == 1] if "rolled_back" in trace else np.zeros(0)
    packed = ledger.packed_objective()
    evidence = gather(
        trial,
        trace,
        ledger.telemetry(trial.trial_id),
        rows,
        _same_data(ledger, trial, rows, packed),
        batch_texts(trial, rollback_step_N),
        packed,
    )
    return rank(evidence, ledger.facts().get("name", ledger.path.parent.name), chosen)


def rank(evidence: Evidence, sweep: str, chosen: str) -> Diagnosis:
    """The finding of every mechanism, and the cause: the first supported one in their order.

    A stable trial has findings but no cause: a risk without consequence is not a cause.
    """
    findings = tuple(mechanism.look(evidence) for mechanism in MECHANISMS.values())
    supported = [finding for finding in findings if finding.verdict == "supported"]
    causes = [finding for finding in supported if not MECHANISMS[finding.mechanism].is_companion]
    cause = causes[0] if causes and evidence.outcome != "stable" else None
    return Diagnosis(sweep, evidence, chosen, findings, cause, tuple(one for one in supported if one is not cause))


def most_typical(rows: Sequence[TrialResult]) -> TrialResult | None:
    """The finished trial that best represents those that are not stable; None where all are stable.

    Of the most common outcome that is not stable, the one with the earliest onset.
    """
    return next(iter(typical_trials(rows)), None)


def typical_trials(rows: Sequence[TrialResult]) -> list[TrialResult]:
    """The finished trials of the most common outcome that is not stable, by their onset; empty if all are stable."""
    rows = [row for row in rows if not row.is_degraded] or rows  # one that is only too slow is not typical of others
    counts = Counter(row.outcome for row in rows if row.outcome in _BAD)
    if not counts:
        return []
    commonest = max(_BAD, key=lambda outcome: counts[outcome])
    of_it = [row for row in rows if row.outcome == commonest]
    return sorted(of_it, key=lambda row: math.inf if row.onset_step is None else row.onset_step)


def trial_by_id(rows: Sequence[TrialResult], beginning: str) -> TrialResult:
    """The finished trial whose id equals ``beginning``, or is the only one with it as prefix. Raises InputError."""
    found = [row for row in rows if row.trial_id.startswith(beginning)] if beginning else []
    exact = [row for row in found if row.trial_id == beginning]
    if len(exact or found) != 1:
        what = f"{len(found)} trials begin with it" if found else "the sweep has no such trial"
        ids = ", ".join(row.trial_id for row in (found or rows)[:_SHOWN])
        remedy = f"give more of the id: {ids}" if found else f"ids are such as {ids}"
        raise InputError(Problem("--trial", beginning, what, remedy))
    (trial,) = exact or found
    if trial.outcome is None:
        raise InputError(Problem("--trial", beginning, f"has no result, it is {trial.status}", "`sweep run` trains it"))
    return trial


def _same_data(
    ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult], packed: PackedObjective | None
) -> list[Series]:
    """Losses of other trials with the same batches: same seed and data, where the step determines the batch."""
    has_moved_on = trial.config.get("rollback") is not None
    if trial.objective in CUSTOM_KINDS or trial.onset_step is None or has_moved_on:
        return []

    objective = OBJECTIVES.get(trial.objective) or packed
    fields = ("batch_size", "rollback") if objective is None else (*objective.data_fields, "rollback")

    def data(row: TrialResult) -> list[Any]:
        entries = acted(row.config, row.fired).get("interventions", ())
        moves = [(entry["at"], entry.get("skip"), entry.get("data")) for entry in entries]
        return [row.seed, *(row.config.get(name) for name in fields), [move for move in moves if any(move[1:])]]

    others = [
        row.trial_id
        for row in rows
        if row.outcome is not None and row.trial_id != trial.trial_id and data(row) == data(trial)
    ]
    traces = [ledger.trace(other) for other in others[:_MOST_COMPARED]]
    return [series(trace["step"], trace["loss"]) for trace in traces if "loss" in trace]
