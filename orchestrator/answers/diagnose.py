"""Why a trial became unstable, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestrator.answers._options import cell_option, trial_option
from orchestrator.base.files import DIAGNOSES, FROZEN_SWEEP
from orchestrator.base.query import Query, Say, hidden, option, silent
from orchestrator.base.space import format_value
from orchestrator.base.words import count, listed, plural
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Figure, File, Line, picture_of

if TYPE_CHECKING:
    from orchestrator.answers.remedy import RemedyAnswer
    from orchestrator.causes.advice import Advice, Reason
    from orchestrator.causes.diagnosis import Diagnosis
    from orchestrator.causes.mechanisms.mechanism import Finding
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.neighbours import Neighbour
    from orchestrator.maps.table import SweepTable

_MAX_FIRINGS = 6  # of rules, in the text
_COUNTS = (("spiked", "tried"), ("control_spiked", "control_tried"))  # of forks without a mechanism, and with it
_MAX_NAMED = 3  # possible mechanisms; more are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseQuery(Query["SweepTable"]):
    """Show why a trial became unstable, with the numbers, the excluded causes, and what to change.

    Without --trial and --cell it diagnoses a trial of the unstable neighbour of the recommended cell, or else one
    nearest to the edge; of several the one with the earliest onset of the most common outcome. If no cell shows whether
    a change would help, a small sweep that tests it is written next to the picture. For example `sweep diagnose
    lr_warmup --cell lr=0.3,warmup=0`.
    """

    panel: ClassVar[str] = "explain"

    trial: str | None = trial_option()
    cell: Mapping[str, Any] | None = cell_option()
    full: bool = option(False, "also why each other mechanism is excluded")

    def ask(self, subject: SweepTable, say: Say = silent) -> DiagnoseAnswer:
        """Diagnose a trial."""
        from orchestrator.causes.diagnosis import diagnose

        diagnosis = diagnose(subject, self.trial, self.cell)
        if diagnosis is None:
            return DiagnoseAnswer(subject.ledger.path.parent.name)
        return answer_of(subject.ledger, diagnosis, in_full=self.full)


@dataclass(frozen=True, slots=True)
class DiagnoseAnswer(Answer):
    """The diagnosis of one trial; without a trial if all are stable."""

    sweep: str
    trial_id: str | None = None
    cell: Mapping[str, Any] | None = None
    seed: int | None = None
    outcome: str | None = None
    onset_step: int | None = None
    final_loss: float | None = None
    fired: tuple[Mapping[str, Any], ...] = ()
    cause: str | None = None
    along: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    advice: tuple[Advice, ...] = ()
    not_finite: tuple[Reason, ...] = ()
    result: Diagnosis | None = hidden(default=None)
    folder: Path | None = hidden(default=None)
    remedies: RemedyAnswer | None = hidden(default=None)
    can_be_forked: bool = hidden(default=False)
    in_full: bool = hidden(default=False)
    by_forks: Mapping[str, Any] | None = hidden(default=None)

    @classmethod
    def of(
        cls,
        diagnosis: Diagnosis,
        folder: Path,
        remedies: RemedyAnswer | None = None,
        *,
        can_be_forked: bool = False,
        in_full: bool = False,
    ) -> DiagnoseAnswer:
        """The answer with a diagnosis and its advice for a trial of the sweep in ``folder``."""
        from orchestrator.causes.advice import advised
        from orchestrator.causes.proofs.training import stored_proofs

        trial, (advice, reasons) = diagnosis.trial, advised(diagnosis, folder)
        return cls(
            sweep=diagnosis.sweep,
            trial_id=trial.trial_id,
            cell=trial.cell,
            seed=trial.seed,
            outcome=trial.ending,
            onset_step=trial.ending_step,
            final_loss=trial.final_loss,
            fired=tuple(trial.fired),
            cause=None if diagnosis.cause is None else diagnosis.cause.mechanism,
            along=tuple(finding.mechanism for finding in diagnosis.along),
            findings=diagnosis.findings,
            advice=tuple(advice),
            not_finite=tuple(reasons),
            result=diagnosis,
            folder=folder,
            remedies=remedies,
            can_be_forked=can_be_forked,
            in_full=in_full,
            by_forks=stored_proofs(folder, trial.trial_id),
        )

    @property
    def title(self) -> str:
        """The sweep and the trial."""
        return f"{self.sweep}: diagnosis" + ("" if self.trial_id is None else f" of {self.trial_id}")

    def blocks(self) -> Iterator[Block]:
        """Yield the trial, its cause and what to do next; then what happened, the evidence, and the advice."""
        if self.result is None or self.folder is None:
            yield Line(f"{self.sweep}: no trial is unstable, there is nothing to diagnose")
            yield Line("`--trial ID` diagnoses a stable trial anyway")
            return
        yield Line(self.result.headline)
        yield Line(_cause(self.result, self.by_forks))
        yield Line(self._next())
        yield from _history(self.result)
        yield from map(Line, _proved(self.by_forks))
        yield from _findings(self.result, self.in_full)
        pictures = self.folder / DIAGNOSES
        yield from self._not_finite(self.result, pictures)
        yield from self._advice(pictures)
        has_file = any(item.sweep_file for item in self.advice)
        if self.cause is None and self.outcome != "stable" and not self.not_finite and not has_file:
            yield from _deciding_sweep(self.result, self.folder, pictures)
        yield Figure(
            picture_of("diagnosis:diagnosis_figure", self.result),
            "the run up to its onset",
            pictures / f"{self.trial_id}.png",
        )
        if self.remedies is not None:
            yield Line("remedies, tried on forks of this trial:")
            yield from (block for block in self.remedies.blocks() if not isinstance(block, Figure))

    def _next(self) -> str:
        """Return what to do next: the remedy that saved it, a command that looks for one, or the first advice."""
        assert self.folder is not None, "there is a trial"
        if self.remedies is not None and (found := self.remedies.cheapest) is not None:
            return f"next: {found} from step {self.remedies.cheapest_step}, which saved forks (below)"
        if self.remedies is None and self.can_be_forked:
            return f"next: `sweep remedy {self.folder.name} --trial {self.trial_id}` finds what would have saved it"
        if shown := [advice.move for advice in self.advice if advice.standing != "refuted"]:
            return f"next: {shown[0].direction} {shown[0].setting}, which {shown[0].reason}"
        if self.outcome == "stable":
            return f"next: `sweep recommend {self.folder.name}` says which setting to take"
        return f"next: `sweep explain {self.folder.name}` says what the unstable cells have in common"

    def _not_finite(self, diagnosis: Diagnosis, pictures: Path) -> Iterator[Block]:
        from orchestrator.causes.advice import broken_step

        if not self.not_finite:
            return
        yield Line(f"not finite from step {broken_step(diagnosis.evidence)}; possible reasons, in this order:")
        for number, reason in enumerate(self.not_finite, 1):
            yield Line(f"{number}. {reason.title}: {reason.answer}", 1)
            yield from (Line(text, 2) for text in reason.evidence)
            if reason.answer == "no":
                continue
            advice = reason.advice
            if advice is not None and advice.nearest is not None:
                yield from (Line(text, 2) for text in _results(advice, advice.nearest, self.outcome))
            elif advice is not None and advice.refusal:
                yield Line(f"a small sweep is refused: {advice.refusal}", 2)
            if reason.sweep is not None:
                yield from _small_sweep(
                    "this sweep would decide:", pictures / f"{self.trial_id}_not_finite_{reason.key}.yaml", reason.sweep
                )

    def _advice(self, pictures: Path) -> Iterator[Block]:
        shown = [advice for advice in self.advice if advice.standing != "refuted"]
        yield from [Line("advice:")] if shown else []
        for advice in shown:
            move, missing = advice.move, "no cell of this sweep shows whether it helps"
            yield Line(f"{move.direction} {move.setting}: {move.reason}", 1)
            if advice.nearest is not None:
                yield from (Line(text, 2) for text in _results(advice, advice.nearest, self.outcome))
            elif advice.sweep_file is None:
                yield Line(f"{missing}; a small sweep is refused: {advice.refusal}", 2)
            else:
                path = pictures / f"{self.trial_id}_{move.direction}_{move.setting}.yaml"
                yield from _small_sweep(f"{missing}; this sweep would:", path, advice.sweep_file)


def answer_of(ledger: LedgerReader, diagnosis: Diagnosis, *, in_full: bool = False) -> DiagnoseAnswer:
    """The answer with a diagnosis and the remedies that were tried on forks."""
    from orchestrator.answers.remedy import RemedyAnswer
    from orchestrator.causes.remedies.forking import is_custom, why_unforkable
    from orchestrator.causes.remedies.reading import has_remedies, read_remedies

    trial, folder = diagnosis.trial, ledger.path.parent
    if trial.ending == "stable" or (is_custom(trial) and why_unforkable(folder, trial) is not None):
        return DiagnoseAnswer.of(diagnosis, folder, in_full=in_full)
    if has_remedies(folder, trial.trial_id):
        tried = RemedyAnswer.of(read_remedies(ledger, diagnosis))
        return DiagnoseAnswer.of(diagnosis, folder, tried, in_full=in_full)
    can_be_forked = (folder / FROZEN_SWEEP).is_file()
    return DiagnoseAnswer.of(diagnosis, folder, can_be_forked=can_be_forked, in_full=in_full)


def _proved(stored: Mapping[str, Any] | None) -> Iterator[str]:
    """What `sweep cause` found on forks of the trial."""
    from orchestrator.causes.mechanisms.catalogue import MECHANISMS, title_of

    if stored is None:
        return
    if stored.get("is_chance") and not stored.get("confirmed"):
        yield "by forks: a chance failure, with other data half of them or more survive (`sweep cause`)"
    for proof in stored["mechanisms"]:
        if proof["name"] in MECHANISMS:
            without, with_it = (f"{proof[a]} of {proof[b]}" for a, b in _COUNTS)
            fails = f"{without} fail, with it {with_it}"
            yield f"by forks: {title_of(proof['name'])} {proof['verdict']}; {proof['fork']}: {fails} (`sweep cause`)"


def _history(diagnosis: Diagnosis) -> Iterator[Line]:
    """What happened to the loss, why this trial was chosen, and what changed while it trained."""
    from orchestrator.base.space import entries_in_words

    evidence, trial = diagnosis.evidence, diagnosis.trial
    parts = [trial.reason or ""]
    if evidence.onset != trial.onset_step:
        parts.append(f"it had blown up at step {evidence.onset}, which counts as the onset here")
        if trial.onset_step is not None:
            parts.append(f"the detector, which knows no trend that early, says {trial.onset_step}")
    elif len(evidence.trial.episodes) > 1:
        parts.append(f"it left its trend {len(evidence.trial.episodes)} times; this is about the first")
    if evidence.peak is not None:
        parts.append(f"loss up to {evidence.loss.at(evidence.peak):.4g} at step {evidence.peak}")
    if trial.final_loss is not None:
        parts.append(
            f"final loss {trial.final_loss:.4g} after {trial.steps_done} {plural(trial.steps_done or 0, 'step')}"
        )
    yield Line("; ".join(part for part in parts if part), 1)
    yield Line(f"chosen: {diagnosis.chosen}", 1)
    if changes := trial.config.get("interventions"):
        yield Line(f"interventions: {entries_in_words(changes)}", 1)
    rules = trial.config.get("control")
    rules = () if isinstance(rules, str) else rules  # a value of a custom trainer may have this name
    if rules:
        yield Line(f"control: {entries_in_words(rules)}", 1)
    if rules or trial.fired:  # a training script may bring rules of its own
        yield Line(f"its rules did: {listed(trial.firings, _MAX_FIRINGS) or 'nothing'}", 1)


def _cause(diagnosis: Diagnosis, by_forks: Mapping[str, Any] | None) -> str:
    """Return the cause and what forks say about it, or why there is none."""
    from orchestrator.causes.mechanisms.catalogue import MECHANISMS, title_of

    confirmed = [name for name in (by_forks or {}).get("confirmed", ()) if name in MECHANISMS]
    titles = listed([title_of(name) for name in confirmed], _MAX_NAMED)
    if diagnosis.cause is not None:
        cause, own = _titled(diagnosis.cause), diagnosis.cause.mechanism
        if own in confirmed:
            return f"cause, confirmed by forks: {cause}"
        if confirmed:
            return f"cause, confirmed by forks: {titles}; by the evidence alone: {cause}"
        if by_forks is not None and by_forks.get("is_chance"):
            return f"cause: chance by forks; by the evidence alone: {cause}"
        if by_forks is not None and own in by_forks.get("refuted", ()):
            return f"cause: not known; the evidence says {cause}, which forks refute"
        return f"cause: {cause}"
    if confirmed:
        return f"cause, confirmed by forks: {titles}"
    if diagnosis.evidence.outcome == "stable":
        return "no cause: it stayed on its trend"
    return f"not enough evidence: {_missing(diagnosis)}"


def _findings(diagnosis: Diagnosis, in_full: bool) -> Iterator[Line]:
    """The numbers of the cause, its companions, and the unknown and excluded mechanisms.

    Unless ``in_full``, excluded ones are only counted.
    """
    from orchestrator.causes.mechanisms.catalogue import title_of

    if diagnosis.cause is not None:
        yield Line("evidence:")
        yield from _numbers(diagnosis.cause, 1)
    if diagnosis.along:
        yield Line("also seen, but not taken for the cause:" if diagnosis.cause else "seen, but not a cause:")
    for finding in diagnosis.along:
        yield Line(_titled(finding), 1)
        yield from _numbers(finding, 2)
    for verdict, heading in (("unknown", "not known:"), ("excluded", "excluded:")):
        findings = diagnosis.of(verdict)
        if verdict == "excluded" and findings and not in_full:
            yield Line(f"excluded: {count(len(findings), 'other mechanism')}; --full says why")
            continue
        yield from [Line(heading)] if findings else []
        for finding in findings:
            measured = f" ({'; '.join(finding.numbers)})" if finding.numbers else ""
            yield Line(f"{title_of(finding.mechanism)}: {finding.reason}{measured}", 1)


def _titled(finding: Finding) -> str:
    from orchestrator.causes.mechanisms.catalogue import title_of

    return ", ".join(part for part in (title_of(finding.mechanism), finding.when) if part)


def _numbers(finding: Finding, indent: int) -> Iterator[Line]:
    yield Line(finding.reason, indent)
    yield from (Line(f"- {number}", indent) for number in finding.numbers)


def _missing(diagnosis: Diagnosis) -> str:
    """What evidence is missing."""
    from orchestrator.causes.mechanisms.catalogue import title_of
    from orchestrator.causes.small_sweeps import CURVATURE_EVERY

    evidence = diagnosis.evidence
    unknown = [title_of(finding.mechanism) for finding in diagnosis.of("unknown")]
    text = "no mechanism is supported"
    if len(unknown) > _MAX_NAMED:
        text += f", and {len(unknown)} are neither supported nor excluded"
    elif unknown:
        text += f"; it may be {' or '.join(unknown)}"
    if evidence.is_custom_trainer:
        return f"{text}; a custom trainer reports only losses and gradient norms"
    if not len(evidence.threshold_ratio):
        return f"{text}; the curvature was not measured; measure it with telemetry: {{curvature: {CURVATURE_EVERY}}}"
    return text


def _deciding_sweep(diagnosis: Diagnosis, folder: Path, pictures: Path) -> Iterator[Block]:
    """The small sweep that would settle the open questions, without advice."""
    from orchestrator.base.errors import InputError
    from orchestrator.causes.mechanisms.catalogue import MECHANISMS
    from orchestrator.causes.small_sweeps import small_sweep

    evidence, trial = diagnosis.evidence, diagnosis.trial
    probes = (MECHANISMS[finding.mechanism].probe(evidence) for finding in diagnosis.of("unknown"))
    probe = next(filter(None, probes), None)
    if probe is None and (evidence.is_custom_trainer or len(evidence.threshold_ratio)):
        return
    setting, values = probe or (None, [])
    change = "again" if setting is None else "try"
    try:
        content = small_sweep(folder, trial, change, setting, values)
    except InputError:
        return
    name = "_".join(filter(None, (trial.trial_id, change, setting)))
    yield from _small_sweep("this sweep would decide:", pictures / f"{name}.yaml", content, 0)


def _small_sweep(text: str, path: Path, content: str, indent: int = 2) -> Iterator[Block]:
    yield Line(f"{text} {path}", indent)
    yield File(path, content)


def _results(advice: Advice, nearest: Neighbour, outcome: str | None) -> Iterator[str]:
    """What the cells in the direction of the advice show: the stable cell, then a nearer one that is not."""
    stable, here = advice.stable, advice.here.loss if advice.here is not None else None
    if stable is None:
        yield _comparison(advice, nearest)
    else:
        yield _comparison(advice, stable)
        if stable is not nearest:
            yield f"a smaller change does not do: {_comparison(advice, nearest)}"
        if advice.standing == "suggested":
            yield f"so few seeds may be chance (p = {advice.p_value:.2g})"
    if outcome == "spiked" and stable is not None and here is not None and here < (stable.loss or math.inf):
        yield "a spike is not a failure: the cell that spikes has the lower final loss"


def _comparison(advice: Advice, cell: Neighbour) -> str:
    """beta2 0.999 -> 0.99 at these settings: 3 of 3 seeds stable, final loss 2.41 -> 2.38."""
    own = advice.here.value if advice.here is not None else None
    change = f"{advice.move.setting} {format_value(own)} -> {format_value(cell.value)}"
    return f"{change} at these settings: {cell.seeds_text}, final loss {_loss(advice.here)} -> {_loss(cell)}"


def _loss(cell: Neighbour | None) -> str:
    return "not finite" if cell is None or cell.loss is None else f"{cell.loss:.4g}"
