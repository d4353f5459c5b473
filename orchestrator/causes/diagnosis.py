"""Why a trial became unstable: the finding on each mechanism, and the cause; and the causes of all cells of a map."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.base import OBJECTIVES, data_seed, data_step
from objectives.control import acted
from objectives.interventions import in_force
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Cell, trial_name
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import COLLAPSED, CUSTOM_KINDS, DEGRADED, is_over_edge
from orchestrator.causes.evidence import BatchText, Evidence, gather
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Finding
from orchestrator.causes.mechanisms.routing import router_collapse
from orchestrator.causes.series import Series, known, series
from orchestrator.ledger.facts import PackedObjective, trainer_facts
from orchestrator.ledger.reader import LedgerReader, check_has_curves
from orchestrator.maps.cell_map import CellMap, cell_map
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.stability_map import map_of
from orchestrator.maps.surface_map import SurfaceMap
from orchestrator.maps.table import SweepTable, effective_values

UNEXPLAINED = "not enough evidence"
_BAD = ("diverged", "stalled", "spiked", COLLAPSED)  # the worst first, to break ties
_MAX_COMPARED = 8  # other trials whose losses are read
_MAX_DIAGNOSED = 3  # trials of a cell of a map
_MAX_IDS = 5  # in a message

Key = tuple[Any, Any]

# Takes a trial's row and the steps after which it was rolled back.
BatchTexts = Callable[[TrialResult, np.ndarray], BatchText]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings on one trial, one for each mechanism in their order.

    ``cause`` is the leading supported finding, or None if there is not enough evidence or nothing to explain. ``along``
    are the other supported findings, effects or companions of the cause. ``chosen`` says why this trial was chosen.
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

    @property
    def headline(self) -> str:
        """The sweep, the trial and its outcome in one line."""
        trial, onset = self.trial, self.evidence.ending_onset
        name = trial_name(Cell({**trial.cell, **effective_values(trial)}), trial.seed)
        ending = f"{trial.ending}" + ("" if onset is None else f", onset at step {onset}")
        return f"{self.sweep}: {name} ({trial.trial_id}): {ending}"

    def of(self, verdict: str) -> list[Finding]:
        """The findings with one verdict."""
        return [finding for finding in self.findings if finding.verdict == verdict]


def batch_texts_of_objectives(trial: TrialResult, rollback_step_N: np.ndarray) -> BatchText:
    """Where in the text a trial's batches are, as its objective knows; each rollback at (N,) skipped some batches."""
    objective = OBJECTIVES.get(trial.objective)
    if objective is None:
        return lambda step: None

    def text(step: int) -> str | None:
        try:
            config = objective.config_of(acted(trial.config, trial.fired))
            moved_on = data_step(config, step, int((rollback_step_N < step).sum()))
            return objective.batch_text(in_force(config, step), data_seed(config, trial.seed, step), moved_on)
        except (ValueError, OSError):  # a configuration of an older version, or a text that no longer exists
            return None

    return text


def diagnose(
    table: SweepTable,
    trial_id: str | None = None,
    cell: Mapping[str, Any] | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Diagnosis | None:
    """Diagnose one trial: ``trial_id`` (or a unique prefix), the most typical trial of ``cell``, or of the edge.

    The most typical trial is the one with the earliest onset of the most common unstable outcome. At the edge are the
    trials of ``cells_at_edge``, or all trials without any. Return None if all trials of the sweep are stable.
    ``batch_texts`` returns, for a trial's row, a function that names the origin of a step's batch. Raises InputError
    for an unknown trial or cell, or one without a result.
    """
    ledger, rows = table.ledger, table.trials
    if trial_id is not None and cell:
        raise InputError(Problem("--trial", trial_id, "already names the trial", "leave out --cell"))
    if trial_id is not None:
        return examine(ledger, trial_by_id(rows, trial_id), "given by its id", rows, batch_texts)
    candidates = table.where("--cell", cell or {}).trials
    finished = [row for row in candidates if row.outcome is not None]
    if not finished:
        raise InputError(Problem(ledger.path.parent.name, "", "no trial has finished yet", "`sweep run` trains it"))
    where, at_edge = ("of the cell", set[Cell]()) if cell else cells_at_edge(table)
    finished = [row for row in finished if row.cell in at_edge] or finished
    typical = most_typical(finished)
    if typical is None:
        return examine(ledger, finished[0], "all trials of the cell are stable", rows, batch_texts) if cell else None
    alike = sum(row.ending == typical.ending for row in finished)
    share = f"{alike} of {len(finished)} trials {where}"
    chosen = f"earliest onset of the most common unstable outcome ({typical.ending}, {share})"
    return examine(ledger, typical, chosen, rows, batch_texts)


def examine(
    ledger: LedgerReader,
    trial: TrialResult,
    chosen: str,
    rows: Sequence[TrialResult],
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Diagnosis:
    """Diagnose ``trial``, a finished trial among ``rows``."""
    check_has_curves(ledger.facts(), "a diagnosis reads them")
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
        trainer_facts(ledger.facts()),
    )
    return rank(evidence, ledger.facts().get("name", ledger.path.parent.name), chosen)


def rank(evidence: Evidence, sweep: str, chosen: str) -> Diagnosis:
    """Examine every mechanism; the cause is the first supported one in their order.

    A stable trial has findings but no cause: a risk without consequence is not a cause.
    """
    findings = tuple(mechanism.examine(evidence) for mechanism in MECHANISMS.values())
    supported = [finding for finding in findings if finding.verdict == "supported"]
    causes = [finding for finding in supported if not MECHANISMS[finding.mechanism].is_companion]
    if evidence.outcome == COLLAPSED:  # its loss is calm: whatever else is seen had no consequence
        causes = [finding for finding in causes if finding.mechanism == router_collapse.key]
    cause = causes[0] if causes and evidence.outcome != "stable" else None
    along = tuple(finding for finding in supported if finding is not cause)
    return Diagnosis(sweep, evidence, chosen, findings, cause, along)


def cells_at_edge(table: SweepTable) -> tuple[str, set[Cell]]:
    """The unstable neighbours of the recommended cell, or else the unstable cells nearest to the edge, or else none.

    First what they are in words.
    """
    unstable = [cell for cell, state in table.states().items() if is_over_edge(state)]
    if not unstable:
        return "of the sweep", set()
    try:
        stability = map_of(table)
        chosen = recommend(table).chosen if table.is_grid else None
    except InputError:  # without axes, or with too few scattered cells
        return "of the sweep", set()
    if isinstance(stability, SurfaceMap):
        shares = stability.p_stable(unstable)
        distances = {cell: abs(share.at - stability.level) for cell, share in zip(unstable, shares, strict=True)}
    else:
        beside = stability.over_edge_beside(chosen.setting) if chosen is not None else set()
        if beside:
            return "of the unstable neighbour of the recommended cell", beside
        distances = {cell: -distance for cell, distance in stability.distances_to_edge().items() if distance < 0}
    nearest = min(distances.values(), default=None)
    at_edge = {cell for cell, distance in distances.items() if distance == nearest}
    return ("of the unstable cells nearest to the edge", at_edge) if at_edge else ("of the sweep", at_edge)


def most_typical(rows: Sequence[TrialResult]) -> TrialResult | None:
    """The finished trial with the earliest onset of the most common unstable outcome; None if all are stable."""
    return next(iter(typical_trials(rows)), None)


def typical_trials(rows: Sequence[TrialResult]) -> list[TrialResult]:
    """The finished trials of the most common unstable outcome, by their onset; empty if all are stable."""
    rows = [row for row in rows if row.label != DEGRADED] or rows  # a trial that is only too slow is not typical
    counts = Counter(row.ending for row in rows if row.ending in _BAD)
    if not counts:
        return []
    commonest = max(_BAD, key=lambda outcome: counts[outcome])
    trials = [row for row in rows if row.ending == commonest]
    return sorted(trials, key=lambda row: math.inf if row.ending_step is None else row.ending_step)


def trial_by_id(rows: Sequence[TrialResult], beginning: str) -> TrialResult:
    """The finished trial with the id ``beginning``, or the only one whose id starts with it. Raises InputError."""
    matches = [row for row in rows if row.trial_id.startswith(beginning)] if beginning else []
    matches = [row for row in matches if row.trial_id == beginning] or matches
    if len(matches) != 1:
        what = f"{len(matches)} trial ids start with it" if matches else "the sweep has no such trial"
        ids = ", ".join(row.trial_id for row in (matches or rows)[:_MAX_IDS])
        remedy = f"give more of the id: {ids}" if matches else f"use an id such as {ids}"
        raise InputError(Problem("--trial", beginning, what, remedy))
    (trial,) = matches
    if trial.outcome is None:
        raise InputError(Problem("--trial", beginning, f"has no result: it is {trial.status}", "`sweep run` trains it"))
    return trial


def _same_data(
    ledger: LedgerReader, trial: TrialResult, rows: Sequence[TrialResult], packed: PackedObjective | None
) -> list[Series]:
    """Losses of other trials with the same batches: same seed and data, if the step determines the batch."""
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
    traces = [ledger.trace(other) for other in others[:_MAX_COMPARED]]
    return [series(trace["step"], trace["loss"]) for trace in traces if "loss" in trace]


# --- the causes of all cells of a map ---


@dataclass(frozen=True, slots=True)
class CellCause:
    """The mechanism that dominates a cell, or UNEXPLAINED, and whether measuring the curvature might help.

    Holds no evidence: the curves of every cell would be too large to keep.
    """

    mechanism: str
    lacks_curvature: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """A map, and the cause of each cell that is not stable, from its most typical trial.

    Of the finished trials, ``num_controlled`` have rules of control, and rules acted in ``num_acted``.
    """

    stability: CellMap
    causes: Mapping[Key, CellCause]
    num_controlled: int = 0
    num_acted: int = 0

    def mechanism(self, key: Key) -> str | None:
        """The mechanism that dominates the cell ``key``, UNEXPLAINED without evidence, None if the cell is stable."""
        return self.causes[key].mechanism if key in self.causes else None


def explain(
    table: SweepTable,
    x: str | None = None,
    y: str | None = None,
    batch_texts: BatchTexts = batch_texts_of_objectives,
) -> Explanation:
    """Explain the map over axes ``x`` and ``y`` (by default the first two): find the causes of its unstable cells.

    With more axes the map shows their worst cell, and the trials of all these cells are candidates: the most typical
    one is diagnosed, and up to two more while there is not enough evidence. Raises InputError like ``cell_map``.
    """
    stability, rows = cell_map(table, x, y), table.trials
    by_cell: dict[Key, list[TrialResult]] = {}
    for row in rows:
        key = (row.cell[stability.x.name], row.cell[stability.y.name] if stability.y else None)
        by_cell.setdefault(key, []).append(row)
    causes = {
        key: _cell_cause(table.ledger, typical[:_MAX_DIAGNOSED], rows, batch_texts)
        for key, trials in by_cell.items()
        if stability.is_over_edge(key) and (typical := typical_trials(trials))
    }
    controlled = [row for row in rows if row.outcome is not None and row.config.get("control")]
    return Explanation(stability, causes, len(controlled), sum(bool(row.fired) for row in controlled))


def _cell_cause(
    ledger: LedgerReader, typical: Sequence[TrialResult], rows: Sequence[TrialResult], batch_texts: BatchTexts
) -> CellCause:
    """The cause of the first of the ``typical`` trials with enough evidence, or else of the first trial."""
    first = None
    for trial in typical:
        diagnosis = examine(ledger, trial, "one of the most typical of its cell", rows, batch_texts)
        evidence = diagnosis.evidence
        lacks_curvature = not len(evidence.threshold_ratio) and not evidence.is_custom_trainer
        if diagnosis.cause is not None:
            return CellCause(diagnosis.cause.mechanism, lacks_curvature)
        first = first or CellCause(UNEXPLAINED, lacks_curvature)
    return known(first)
