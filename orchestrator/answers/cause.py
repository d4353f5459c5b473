"""Which cause of an instability forks prove: each takes one mechanism away and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import (
    allow_import_option,
    cell_option,
    executor_option,
    replicates_option,
    trial_option,
)
from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import CAUSES, check_no_links
from orchestrator.base.query import Query, Say, flat, hidden, option, silent
from orchestrator.base.words import count, listed
from orchestrator.render.answer import Answer, to_json
from orchestrator.render.blocks import Block, Caution, Line, Table

if TYPE_CHECKING:
    from orchestrator.causes.diagnosis import Diagnosis
    from orchestrator.causes.proofs.results import Proof, Proofs
    from orchestrator.driver.progress import Summary
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.table import SweepTable

_HEAD = ("mechanism", "fork without it", "from step", "fails without", "fails with", "p", "verdict")
_NUMBERS = (2, 3, 4, 5)  # columns
_MAX_NAMED = 6
_STANDINGS = {  # of a cell, and its words in the total
    "confirmed": "where forks confirm the cause by the evidence",
    "another": "where they confirm a cause that the evidence does not name",
    "chance": "by chance",
    "refuted": "where they refute the cause by the evidence",
    "open": "open",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseQuery(Query["SweepTable"]):
    """Prove why a run became unstable: fork it without each mechanism that the evidence leaves open.

    Without --trial and --cell it takes the unstable trial that a diagnosis takes; with --each-cell the most typical
    trial of each unstable cell, which --cell may limit. A mechanism is confirmed if forks without it fail more
    seldom than chance explains, and refuted if most fail all the same. A fork with a lower learning rate helps against
    most mechanisms: it confirms only what the evidence supports, if no other fork helps. The same command trains
    nothing twice. For example `sweep cause lr_beta2 --cell lr=0.003,beta2=0.999`.
    """

    panel: ClassVar[str] = "explain"

    trial: str | None = trial_option()
    cell: Mapping[str, Any] | None = cell_option()
    each_cell: bool = option(False, "the most typical trial of each unstable cell")
    replicates: int = replicates_option(default=8, help="forks with and without each mechanism, with other batches")
    executor: str = executor_option()
    allow_import: bool = allow_import_option()

    def ask(self, subject: SweepTable, say: Say = silent) -> CauseAnswer:
        """Train the missing forks of each trial, and read what they prove."""
        from orchestrator.base.environment import check_installed
        from orchestrator.causes.proofs.training import check_provable
        from orchestrator.causes.remedies.reading import unstable_region
        from orchestrator.causes.remedies.training import diagnose_unstable

        folder = subject.ledger.path.parent
        check_no_links(folder, folder / CAUSES)
        if self.each_cell and self.trial is not None:
            raise InputError(Problem("--each-cell", self.trial, "already names the trial", "leave out --trial"))
        for trial in subject.trials[:1]:  # what the others are, too
            check_provable(folder, trial)
        if self.each_cell:
            trials = unstable_region(subject.ledger, self.cell or {}).trials
            if not trials:
                message = "none of its known cells is unstable: there is nothing to prove"
                raise InputError(Problem(folder.name, "", message, "`sweep status` lists outcomes"))
            diagnoses: Iterable[Diagnosis] = (diagnose_unstable(folder, trial.trial_id, {}) for trial in trials)
        else:
            diagnoses = [diagnose_unstable(folder, self.trial, self.cell or {})]
        check_installed("training forks", "torch")
        found, code, is_stopped = [], EXIT_OK, False
        for diagnosis in diagnoses:
            proofs, summary = self._proofs(subject.ledger, diagnosis, say)
            found.append(proofs)
            code = max(code, EXIT_OK if summary is None else summary.exit_code)
            if is_stopped := summary is not None and summary.stopped_by is not None:
                break
        cells = tuple(map(CellCauses.of, found)) if self.each_cell else ()
        own = None if self.each_cell else CellCauses.of(found[0])
        return CauseAnswer(sweep=found[0].sweep, result=own, cells=cells, code=code, is_stopped=is_stopped)

    def _proofs(self, ledger: LedgerReader, diagnosis: Diagnosis, say: Say) -> tuple[Proofs, Summary | None]:
        from orchestrator.answers._forks import ProgressLines, resources_of
        from orchestrator.causes.proofs.results import least_replicates
        from orchestrator.causes.proofs.training import plan_for, proofs_folder, read_proofs, store_proofs, train_proofs
        from orchestrator.executors.catalogue import ExecutorOptions, executor_loader

        folder = ledger.path.parent
        target = proofs_folder(folder, diagnosis.trial.trial_id)
        check_no_links(target)
        say(diagnosis.headline)
        make_executor = executor_loader(self.executor, ExecutorOptions(target, resources_of(folder)))()
        plan = plan_for(folder, diagnosis, self.replicates, allow_import=self.allow_import)
        if plan.experiments and self.replicates < (least := least_replicates(len(plan.experiments))):
            say(f"--replicates {self.replicates} cannot confirm anything; {least} or more can")
        summary = train_proofs(
            folder, diagnosis, plan, make_executor, [ProgressLines(say)], allow_import=self.allow_import
        )
        proofs = read_proofs(ledger, diagnosis, plan)
        if target.is_dir() and not store_proofs(folder, proofs, to_json(proofs)):
            say("`sweep diagnose` still cites the stored answer, with more forks")
        return proofs, summary


@dataclass(frozen=True, slots=True)
class CellCauses:
    """What forks prove about one trial; each field is explained in docs/json.md."""

    trial_id: str
    cell: Mapping[str, Any]
    seed: int
    outcome: str | None
    onset_step: int | None
    proofs: Proofs = flat()

    @classmethod
    def of(cls, proofs: Proofs) -> CellCauses:
        """The proofs with the facts about their trial."""
        trial = proofs.trial
        return cls(trial.trial_id, trial.cell, trial.seed, trial.ending, proofs.onset, proofs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseAnswer(Answer):
    """What forks prove about one trial, or about one trial of each unstable cell."""

    sweep: str
    result: CellCauses | None = flat()
    cells: tuple[CellCauses, ...] = ()
    code: int = hidden(default=EXIT_OK)
    is_stopped: bool = hidden(default=False)

    @property
    def title(self) -> str:
        """The sweep and the trial."""
        return f"{self.sweep}: causes" + ("" if self.result is None else f" of {self.result.trial_id}")

    @property
    def exit_code(self) -> int:
        """The exit code of the training."""
        return self.code

    def blocks(self) -> Iterator[Block]:
        """Yield the table of mechanisms and what it means, or a line for each cell."""
        if self.result is not None:
            yield from _proof_blocks(self.result.proofs)
        else:
            yield from self._by_cell()
        if self.is_stopped:
            yield Line("stopped; the same command continues")

    def _by_cell(self) -> Iterator[Block]:
        rows = []
        standings = [_standing(cell.proofs) for cell in self.cells]
        for cell, standing in zip(self.cells, standings, strict=True):
            proofs = cell.proofs
            verdict = _titles(proofs.confirmed) or standing
            evidence = _titles([proofs.named] if proofs.named else []) or "-"
            rows.append((proofs.trial.cell.name, evidence, verdict, _titles(proofs.refuted) or "-"))
        yield Table(("cell", "by the evidence", "by forks", "refuted"), tuple(rows), ())
        parts = (f"{standings.count(name)} {text}" for name, text in _STANDINGS.items() if name in standings)
        yield Line(f"{count(len(self.cells), 'cell')}: {', '.join(parts)}")


def _standing(proofs: Proofs) -> str:
    """What forks say about a cell, one of _STANDINGS."""
    if proofs.confirmed:
        return "confirmed" if proofs.named in proofs.confirmed else "another"
    if proofs.is_chance:
        return "chance"
    return "refuted" if proofs.named in proofs.refuted else "open"


def _proof_blocks(proofs: Proofs) -> Iterator[Block]:
    """Yield the table of mechanisms, what it means, and how far to trust it."""
    from orchestrator.causes.proofs.results import least_replicates

    if proofs.mechanisms:
        rows = tuple(_row(proof) for proof in proofs.mechanisms)
        yield Table(_HEAD, rows, _NUMBERS, title="forks that fail, with and without each mechanism that is open:")
        yield from map(Line, _meaning(proofs))
    else:
        yield Line("no mechanism is open that a fork can take away")
        command = f"sweep remedy {proofs.sweep} --trial {proofs.trial.trial_id}"
        yield Line(f"next: `{command}` finds what would have saved it")
    if proofs.untried:
        yield Line(f"open, but no fork takes it away alone: {_titles(proofs.untried)}")
    if proofs.control_repeats is False:
        text = "an unchanged fork does NOT repeat the trial's curve bit for bit; forks are compared with each other"
        yield Caution(text, "control")
    if proofs.replicates_alike:
        text = "other data change nothing, so all forks of a kind are one run; if every step of the objective sees the "
        text += "same data, give it is_full_batch=lambda settings: True, and forks will differ by a step"
        yield Caution(text, "forks alike")
    tried = max((proof.tried for proof in proofs.mechanisms), default=0)
    least = least_replicates(len(proofs.mechanisms))
    if 0 < tried < least and not proofs.num_missing and not proofs.replicates_alike:
        text = f"{tried} of each kind cannot confirm anything; --replicates {least} or more can"
        yield Caution(text, "too few forks")
    if proofs.num_missing:
        yield Caution(
            f"{count(proofs.num_missing, 'fork has', 'forks have')} no result yet; the same command trains them",
            "incomplete",
        )


def _row(proof: Proof) -> tuple[str, ...]:
    with_it = f"{proof.control_spiked} of {proof.control_tried}"
    p_value = "-" if proof.p_value is None else f"{proof.p_value:.2g}"
    verdict = f"{proof.verdict}: {proof.reason}" if proof.reason else proof.verdict
    return proof.title, proof.fork, str(proof.step), f"{proof.spiked} of {proof.tried}", with_it, p_value, verdict


def _meaning(proofs: Proofs) -> Iterator[str]:
    other = "a step of another length" if proofs.replicates_nudged else "other data"
    if proofs.confirmed:
        yield f"confirmed: {_titles(proofs.confirmed)}"
    elif proofs.is_chance:
        yield f"a chance failure: with {other} alone half of the forks or more survive, so no cause is confirmed"
    else:
        yield "no cause is confirmed"
    if proofs.named in proofs.refuted:
        yield f"the forks refute the diagnosis, {_titles([proofs.named])}"
    yield (
        f"{count(proofs.num_forks, 'fork')}, which differ by {other}; exact test, p corrected for "
        f"{count(len(proofs.mechanisms), 'mechanism')} (Holm); steps trained after the forks: {proofs.spent_steps:,}"
    )


def _titles(names: Any) -> str:
    from orchestrator.causes.mechanisms.catalogue import title_of

    return listed([title_of(name) for name in names], _MAX_NAMED) if names else ""
