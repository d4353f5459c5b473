"""A diagnosis as a page of text, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from objectives.control import firing_in_words, policy_in_words
from objectives.interventions import changes_in_words
from orchestrator.base.errors import InputError
from orchestrator.base.space import format_value
from orchestrator.causes.advice import Advice, advice_lines, advise, indented
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.mechanisms.catalogue import MECHANISMS, title_of
from orchestrator.causes.mechanisms.mechanism import Finding
from orchestrator.causes.not_finite import (
    Reason,
    broken_step,
    not_finite_lines,
    reasons_json,
    reasons_not_finite,
)
from orchestrator.causes.small_sweep import CURVATURE_EVERY, small_sweep
from orchestrator.maps.neighbours import Neighbour
from orchestrator.maps.related_cells import effective_values

_WIDTH = 110
_MAX_FIRINGS = 6  # of rules, in the text
_MAX_NAMED = 3  # possible mechanisms; more are only counted


def diagnosis_page(diagnosis: Diagnosis, folder: Path) -> list[str]:
    """The lines of ``sweep diagnose`` for a trial of the sweep in ``folder``."""
    advice, reasons = advised(diagnosis, folder)
    return list(diagnosis_lines(diagnosis, advice, folder, reasons))


def advised(diagnosis: Diagnosis, folder: Path) -> tuple[list[Advice], list[Reason]]:
    """The advice for a trial of the sweep in ``folder``, and the possible reasons for a loss that is not finite.

    Leaves out advice on a setting that one of the reasons advises on. A stable trial gets no advice.
    """
    advice = []
    if diagnosis.evidence.outcome != "stable":
        mechanism = diagnosis.cause.mechanism if diagnosis.cause is not None else None
        advice = advise(diagnosis.evidence, mechanism, folder)
    reasons = reasons_not_finite(diagnosis.evidence, folder)
    covered = {reason.advice.move.setting for reason in reasons if reason.advice is not None}
    return [item for item in advice if item.move.setting not in covered], reasons


def diagnosis_lines(
    diagnosis: Diagnosis, advice: Sequence[Advice], folder: Path, reasons: Sequence[Reason] = ()
) -> Iterator[str]:
    """The page: what happened, the cause with its numbers, its companions, the excluded causes, and the advice."""
    outcome = diagnosis.evidence.outcome
    for line in _lines(diagnosis):
        yield from _wrapped(line)
    yield from not_finite_lines(reasons, broken_step(diagnosis.evidence), outcome)
    if advice:
        yield "advice:"
        yield from (f"  {line}".rstrip() for line in advice_lines(advice, outcome))
    has_file = any(item.sweep_file for item in advice)
    if diagnosis.cause is None and outcome != "stable" and not reasons and not has_file:
        yield from _deciding_sweep(diagnosis, folder)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield headline(diagnosis)
    yield f"  chosen: {diagnosis.chosen}"
    if changes := diagnosis.trial.config.get("interventions"):
        yield f"  interventions: {changes_in_words(changes)}"
    if rules := diagnosis.trial.config.get("control"):
        yield f"  control: {policy_in_words(rules)}"
        firings = [firing_in_words(firing) for firing in diagnosis.trial.fired]
        more = f" and {len(firings) - _MAX_FIRINGS} more, see --json" if len(firings) > _MAX_FIRINGS else ""
        yield f"  its rules did: {', '.join(firings[:_MAX_FIRINGS]) or 'nothing'}{more}"
    yield f"  {_history(diagnosis)}"
    if diagnosis.cause is not None:
        yield f"cause: {_titled(diagnosis.cause)}"
        yield from _numbers(diagnosis.cause)
    elif diagnosis.evidence.outcome == "stable":
        yield "no cause: it stayed on its trend"
    else:
        yield f"not enough evidence: {_missing(diagnosis)}"
    if diagnosis.along:
        yield "also seen, but not taken for the cause:" if diagnosis.cause else "seen, but not a cause:"
    for finding in diagnosis.along:
        yield f"  {_titled(finding)}"
        yield from (f"  {line}" for line in _numbers(finding))
    for verdict, heading in (("unknown", "not known:"), ("excluded", "excluded:")):
        findings = diagnosis.of(verdict)
        yield from [heading] if findings else []
        for finding in findings:
            measured = f" ({'; '.join(finding.numbers)})" if finding.numbers else ""
            yield f"  {title_of(finding.mechanism)}: {finding.reason}{measured}"


def _wrapped(line: str) -> list[str]:
    """``line`` wrapped to a readable length, with a hanging indent."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def headline(diagnosis: Diagnosis) -> str:
    """The trial and its outcome in one line."""
    trial = diagnosis.trial
    values = {**trial.cell, **effective_values(trial)}
    setting = " ".join(f"{name}={format_value(value)}" for name, value in values.items())
    onset = "" if diagnosis.evidence.onset is None else f", onset at step {diagnosis.evidence.onset}"
    return f"{diagnosis.sweep}: {setting} seed={trial.seed} ({trial.trial_id}): {trial.outcome}{onset}"


def diagnosis_json(diagnosis: Diagnosis, advice: Sequence[Advice], reasons: Sequence[Reason] = ()) -> dict[str, Any]:
    """The diagnosis as plain data."""
    trial = diagnosis.trial
    return {
        "sweep": diagnosis.sweep,
        **{name: getattr(trial, name) for name in ("trial_id", "cell", "seed", "outcome", "onset_step", "final_loss")},
        "fired": list(trial.fired),
        "cause": diagnosis.cause.mechanism if diagnosis.cause is not None else None,
        "along": [finding.mechanism for finding in diagnosis.along],
        "findings": [_finding_json(finding) for finding in diagnosis.findings],
        "advice": [_advice_json(item) for item in advice],
        "not_finite": reasons_json(reasons),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    fields = ("mechanism", "verdict", "reason", "began_step")
    return {**{name: getattr(finding, name) for name in fields}, "numbers": list(finding.numbers)}


def _advice_json(advice: Advice) -> dict[str, Any]:
    def cell(neighbour: Neighbour | None) -> dict[str, Any] | None:
        fields = ("value", "num_finished", "num_stable", "loss")
        return None if neighbour is None else {name: getattr(neighbour, name) for name in fields}

    move = {name: getattr(advice.move, name) for name in ("setting", "direction", "reason")}
    cells = {name: cell(getattr(advice, name)) for name in ("here", "nearest", "stable")}
    return {**move, **cells, "sweep": advice.sweep_file}


def _titled(finding: Finding) -> str:
    return ", ".join(part for part in (title_of(finding.mechanism), finding.when) if part)


def _numbers(finding: Finding) -> Iterator[str]:
    yield f"  {finding.reason}"
    yield from (f"  - {number}" for number in finding.numbers)


def _history(diagnosis: Diagnosis) -> str:
    """What happened to the loss, in one line."""
    evidence, trial = diagnosis.evidence, diagnosis.trial
    parts = [trial.reason or ""]
    if evidence.onset != trial.onset_step:
        parts.append(f"it had blown up at step {evidence.onset}, which counts as the onset here")
        if trial.onset_step is not None:
            parts.append(f"the detector, which knows no trend that early, says {trial.onset_step}")
    elif len(evidence.episodes) > 1:
        parts.append(f"it left its trend {len(evidence.episodes)} times; this is about the first")
    if evidence.peak is not None:
        parts.append(f"loss up to {evidence.loss.at(evidence.peak):.4g} at step {evidence.peak}")
    if trial.final_loss is not None:
        parts.append(f"final loss {trial.final_loss:.4g} after {trial.steps_done} steps")
    return "; ".join(part for part in parts if part)


def _missing(diagnosis: Diagnosis) -> str:
    """What evidence is missing."""
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


def _deciding_sweep(diagnosis: Diagnosis, folder: Path) -> Iterator[str]:
    """The small sweep that would settle the open questions, without advice."""
    evidence = diagnosis.evidence
    probes = (MECHANISMS[finding.mechanism].probe(evidence) for finding in diagnosis.of("unknown"))
    probe = next(filter(None, probes), None)
    if probe is None and (evidence.is_custom_trainer or len(evidence.threshold_ratio)):
        return
    setting, values = probe or (None, [])
    try:
        text = small_sweep(folder, diagnosis.trial, "again" if setting is None else "try", setting, values)
    except InputError:
        return
    yield "this sweep would decide:"
    yield from indented(text)
