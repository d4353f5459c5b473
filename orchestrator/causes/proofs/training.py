"""Train the forks about the causes of a trial, and read what they prove."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import CAUSE_ANSWER, CAUSES, LEDGER, atomic_write
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import IMPORTED
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.evidence import Evidence, gather
from orchestrator.causes.mechanisms.limits import JUMP_REACH
from orchestrator.causes.mechanisms.removal import BATCH_LEAD, Removal
from orchestrator.causes.proofs.plan import Experiment, Plan, ProofFork, key_of, keys_of, plan_of
from orchestrator.causes.proofs.results import Proof, Proofs, judged
from orchestrator.causes.remedies.forking import check_forkable, fork_sweep, is_custom, objective_of
from orchestrator.causes.remedies.reading import curves_of, same_curve
from orchestrator.causes.remedies.remedy import own_interventions
from orchestrator.driver.planning import check_runnable
from orchestrator.driver.progress import Observer, Summary
from orchestrator.driver.runner import run_sweep
from orchestrator.executors import Executor
from orchestrator.ledger.reader import LedgerReader

AFTERMATH = 100  # fewest steps after the last failure with a mechanism in which forks without it must not fail


def proofs_folder(folder: Path, trial_id: str) -> Path:
    """The folder of the forks about the causes of a trial of the sweep in ``folder``."""
    return folder / CAUSES / trial_id


def has_proofs(folder: Path, trial_id: str) -> bool:
    """Whether forks about the causes of a trial were trained."""
    return (proofs_folder(folder, trial_id) / LEDGER).is_file()


def stored_proofs(folder: Path, trial_id: str) -> Mapping[str, Any] | None:
    """What `sweep cause` last wrote about a trial; None without an answer."""
    try:
        found = json.loads((proofs_folder(folder, trial_id) / CAUSE_ANSWER).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("mechanisms"), list) else None


def store_proofs(folder: Path, proofs: Proofs, content: str) -> bool:
    """Write ``content``, what forks prove, unless more of the same forks had proved it; return whether it did."""
    trial_id = proofs.trial.trial_id
    before = {
        (each["name"], each["fork"]): each["tried"]
        for each in (stored_proofs(folder, trial_id) or {}).get("mechanisms", ())
    }
    now = {(proof.name, proof.fork): proof.tried for proof in proofs.mechanisms}
    if before.keys() == now.keys() and sum(before.values()) > sum(now.values()):
        return False
    atomic_write(proofs_folder(folder, trial_id) / CAUSE_ANSWER, content.encode())
    return True


def check_provable(folder: Path, trial: TrialResult) -> None:
    """Raise InputError for a custom trainer's trial: its forks can only be given other values, or there are none."""
    if trial.objective == IMPORTED:
        check_forkable(folder, trial)
    if is_custom(trial):
        message = "a fork of a training script changes only the values that are passed to it, not one mechanism alone"
        raise InputError(Problem(folder.name, trial.trial_id, message, "`sweep remedy` tries what a script accepts"))


def plan_for(folder: Path, diagnosis: Diagnosis, replicates: int, *, allow_import: bool = False) -> Plan:
    """The forks about the mechanisms that are open. Raises InputError as ``fork_sweep`` does."""
    check_provable(folder, diagnosis.trial)
    return plan_of(diagnosis, objective_of(folder, diagnosis.trial, allow_import=allow_import), replicates)


def train_proofs(
    folder: Path,
    diagnosis: Diagnosis,
    plan: Plan,
    make_executor: Callable[[], Executor],
    observers: Sequence[Observer],
    *,
    allow_import: bool = False,
) -> Summary | None:
    """Train the missing forks of ``plan`` and the control, and return how it ended; None if there are none."""
    if not plan.forks:
        return None
    trial = diagnosis.trial
    target = proofs_folder(folder, trial.trial_id)
    sweep = fork_sweep(folder, trial, plan.forks, allow_import=allow_import, target=target)
    check_runnable(sweep, target)
    return run_sweep(sweep, target, make_executor, observers, retry_errored=True)


def read_proofs(ledger: LedgerReader, diagnosis: Diagnosis, plan: Plan) -> Proofs:
    """Read what the forks of ``plan`` about the diagnosed trial of ``ledger`` prove so far."""
    trial, folder = diagnosis.trial, ledger.path.parent
    proofs = Proofs(
        sweep=diagnosis.sweep,
        trial=trial,
        onset=diagnosis.evidence.ending_onset,
        named=None if diagnosis.cause is None else diagnosis.cause.mechanism,
        untried=tuple(finding.mechanism for finding in plan.untried),
        replicates_nudged=any("set" in fork.entries[0] for each in plan.experiments for fork in each.controls),
    )
    if not has_proofs(folder, trial.trial_id):
        return proofs
    with LedgerReader(proofs_folder(folder, trial.trial_id) / LEDGER) as trained:
        rows = {key_of(own_interventions(row)): row for row in trained.trials()}
        fails = Failures(trained, diagnosis.evidence)
        alike = any(_are_alike(each, diagnosis, rows, trained) for each in plan.experiments)
        most = 1 if alike else None
        mechanisms = judged([_proof(each, diagnosis, rows, fails, most) for each in plan.experiments])
        keys = list(keys_of(plan.forks, diagnosis))
        done = [rows[key] for key in keys if key in rows and rows[key].outcome is not None]
        control = rows.get(key_of(own_interventions(trial)))
        repeats = None
        if control is not None and control.outcome is not None:
            repeats = same_curve(*curves_of(ledger, trial, trained, control))
    first = {key: fork.step for key, fork in zip(keys, plan.forks, strict=True)}
    return replace(
        proofs,
        mechanisms=mechanisms,
        num_forks=len(done),
        num_missing=len(keys) - len(done),
        spent_steps=sum(max(0, (row.steps_done or 0) - first[key_of(own_interventions(row))]) for row in done),
        control_repeats=repeats,
        replicates_alike=alike,
    )


def _are_alike(
    experiment: Experiment, diagnosis: Diagnosis, rows: Mapping[str, TrialResult], trained: LedgerReader
) -> bool:
    """Whether other data change nothing in the forks with the mechanism: then they are all one run."""
    found = [rows[key] for key in keys_of(experiment.controls, diagnosis) if key in rows and rows[key].is_judged]
    return len(found) > 1 and same_curve(*curves_of(trained, found[0], trained, found[1]))


def outlasting(onsets: Sequence[int | None], step: int) -> float:
    """The step that forks must outlast after others left their trend at ``onsets``, all forked at ``step``.

    A run that goes on for as long again may fail later for another reason. The exact test holds for each time from the
    last onset on. Without end if one of the others kept to its trend.
    """
    known = [onset for onset in onsets if onset is not None]
    if not known or len(known) < len(onsets):
        return math.inf
    return max(known) + max(max(known) - step, AFTERMATH)


class Failures:
    """Whether forks failed as the trial did: left their trend, or stalled.

    A fork of a trial without an onset, such as one whose router collapsed, fails if it is not stable. If the text
    changes at the onset, every fork leaves its trend there, and one of a trial that was lost fails if it is lost, too.
    """

    def __init__(self, trained: LedgerReader, evidence: Evidence) -> None:
        self._trained, self._onset = trained, evidence.onset
        shift = evidence.number("shift_at")
        is_shifted = shift is not None and self._onset is not None and abs(shift - self._onset) <= JUMP_REACH
        self._may_come_back = is_shifted and evidence.outcome == "diverged"

    def failed(self, row: TrialResult, removal: Removal, until: float = math.inf) -> bool:
        """Whether a fork failed by the step ``until``; if a batch is the mechanism, at that batch."""
        if self._onset is None:
            return row.ending != "stable"
        if row.outcome in ("stable", "stalled"):
            return row.outcome == "stalled"
        if self._may_come_back:
            return row.outcome != "spiked"
        first, last = removal.step, until
        if removal.keeps is not None:
            first, last = removal.keeps - BATCH_LEAD, removal.keeps + BATCH_LEAD
        return any(first <= onset <= last for onset in self._onsets(row))

    def until(self, controls: Sequence[TrialResult], removal: Removal) -> float:
        """The last step at which a fork without the mechanism fails by it, given forks with it."""
        onsets = [[onset for onset in self._onsets(row) if onset >= removal.step] for row in controls]
        return outlasting([min(each, default=None) for each in onsets], removal.step)

    def _onsets(self, row: TrialResult) -> list[int]:
        own = gather(row, self._trained.trace(row.trial_id), {}).onset
        return [onset for onset in (*(first for first, _ in row.episodes), own) if onset is not None]


def _proof(
    experiment: Experiment,
    diagnosis: Diagnosis,
    rows: Mapping[str, TrialResult],
    fails: Failures,
    most: int | None,
) -> Proof:
    """The proof about one mechanism, by at most so many forks of each kind."""

    def judged_forks(forks: Sequence[ProofFork]) -> list[TrialResult]:
        return [rows[key] for key in keys_of(forks, diagnosis) if key in rows and rows[key].is_judged][:most]

    without, controls, removal = judged_forks(experiment.without), judged_forks(experiment.controls), experiment.removal
    until = fails.until(controls, removal)
    return Proof(
        name=experiment.mechanism,
        fork=experiment.name,
        step=removal.step,
        evidence=experiment.finding.verdict,
        tried=len(without),
        spiked=sum(fails.failed(row, removal, until) for row in without),
        control_tried=len(controls),
        control_spiked=sum(fails.failed(row, removal) for row in controls),
        changes_rate=removal.changes_rate,
        keeps_batch=removal.keeps is not None,
        may_remain=removal.may_remain,
    )
