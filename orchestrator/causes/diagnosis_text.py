"""A diagnosis as a page of text, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from objectives.control import firing_in_words, policy_in_words
from objectives.interventions import changes_in_words
from orchestrator.base.space import format_value
from orchestrator.causes.advice import Advice, advice_lines, indented
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.mechanisms.catalogue import MECHANISMS, title_of
from orchestrator.causes.mechanisms.finding import Finding
from orchestrator.causes.not_finite import Branch, branches_json, broken_step, not_finite_lines
from orchestrator.causes.small_sweep import CURVATURE_EVERY, small_sweep
from orchestrator.maps.related_cells import effective_values

_WIDTH = 110
_FIRINGS = 6  # of rules, that are told
_NAMED = 3  # possible mechanisms to name; more are only counted


def diagnosis_lines(
    found: Diagnosis, advice: Sequence[Advice], folder: Path, broken: Sequence[Branch] = ()
) -> Iterator[str]:
    """The page: what happened, the cause with its numbers, its companions, the excluded causes, and the advice."""
    for line in _lines(found):
        yield from _wrapped(line)
    yield from not_finite_lines(broken, broken_step(found.evidence), found.evidence.outcome)
    if advice:
        yield "advice:"
        yield from (f"  {line}".rstrip() for line in advice_lines(advice, found.evidence.outcome))
    if (
        found.cause is None
        and found.evidence.outcome != "stable"
        and not broken
        and not any(one.sweep_file for one in advice)
    ):
        yield from _what_would_tell(found, folder)


def _lines(found: Diagnosis) -> Iterator[str]:
    yield headline(found)
    yield f"  chosen: {found.chosen}"
    if changes := found.trial.config.get("interventions"):
        yield f"  interventions: {changes_in_words(changes)}"
    if rules := found.trial.config.get("control"):
        yield f"  control: {policy_in_words(rules)}"
        fired = [firing_in_words(one) for one in found.trial.fired]
        more = f" and {len(fired) - _FIRINGS} more, which --json has" if len(fired) > _FIRINGS else ""
        yield f"  its rules did: {', '.join(fired[:_FIRINGS]) or 'nothing'}{more}"
    yield f"  {_what_happened(found)}"
    if found.cause is not None:
        yield f"cause: {_titled(found.cause)}"
        yield from _numbers(found.cause)
    elif found.evidence.outcome == "stable":
        yield "no cause: it stayed on its trend"
    else:
        yield f"not enough evidence: {_missing(found)}"
    if found.along:
        yield "seen along with it, and not taken for the cause:" if found.cause else "seen, without being a cause:"
    for finding in found.along:
        yield f"  {_titled(finding)}"
        yield from (f"  {line}" for line in _numbers(finding))
    for verdict, heading in (("unknown", "not known:"), ("excluded", "excluded:")):
        findings = found.of(verdict)
        yield from [heading] if findings else []
        for finding in findings:
            measured = f" ({'; '.join(finding.numbers)})" if finding.numbers else ""
            yield f"  {title_of(finding.mechanism)}: {finding.reason}{measured}"


def _wrapped(line: str) -> list[str]:
    """``line`` wrapped to a readable length, with a hanging indent."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def headline(found: Diagnosis) -> str:
    """The trial and its outcome in one line."""
    trial = found.trial
    values = {**trial.cell, **effective_values(trial)}
    setting = " ".join(f"{name}={format_value(value)}" for name, value in values.items())
    onset = "" if found.evidence.onset is None else f", onset at step {found.evidence.onset}"
    return f"{found.sweep}: {setting} seed={trial.seed} ({trial.trial_id}): {trial.outcome}{onset}"


def diagnosis_json(found: Diagnosis, advice: Sequence[Advice], broken: Sequence[Branch] = ()) -> dict[str, Any]:
    """The diagnosis as plain data."""
    trial = found.trial
    return {
        "sweep": found.sweep,
        **{name: getattr(trial, name) for name in ("trial_id", "cell", "seed", "outcome", "onset_step", "final_loss")},
        "fired": list(trial.fired),
        "cause": found.cause.mechanism if found.cause is not None else None,
        "along": [finding.mechanism for finding in found.along],
        "findings": [_finding_json(finding) for finding in found.findings],
        "advice": [_advice_json(one) for one in advice],
        "not_finite": branches_json(broken),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    fields = ("mechanism", "verdict", "reason", "began_step")
    return {**{name: getattr(finding, name) for name in fields}, "numbers": list(finding.numbers)}


def _advice_json(one: Advice) -> dict[str, Any]:
    def cell(neighbour: Any) -> dict[str, Any] | None:
        fields = ("value", "num_finished", "num_stable", "loss")
        return None if neighbour is None else {name: getattr(neighbour, name) for name in fields}

    move = {name: getattr(one.move, name) for name in ("setting", "direction", "reason")}
    cells = {name: cell(getattr(one, name)) for name in ("here", "nearest", "stable")}
    return {**move, **cells, "sweep": one.sweep_file}


def _titled(finding: Finding) -> str:
    return ", ".join(part for part in (title_of(finding.mechanism), finding.when) if part)


def _numbers(finding: Finding) -> Iterator[str]:
    yield f"  {finding.reason}"
    yield from (f"  - {number}" for number in finding.numbers)


def _what_happened(found: Diagnosis) -> str:
    evidence, trial = found.evidence, found.trial
    parts = [trial.reason or ""]
    if evidence.onset != trial.onset_step:
        told = "" if trial.onset_step is None else f"; the detector, which knows no trend yet, tells {trial.onset_step}"
        parts.append(f"it had blown up at step {evidence.onset} already, which is taken for the onset here{told}")
    elif len(evidence.episodes) > 1:
        parts.append(f"{len(evidence.episodes)} times off its trend, and this is about the first")
    if evidence.peak is not None:
        parts.append(f"loss up to {evidence.loss.at(evidence.peak):.4g} at step {evidence.peak}")
    if trial.final_loss is not None:
        parts.append(f"final loss {trial.final_loss:.4g} after {trial.steps_done} steps")
    return "; ".join(part for part in parts if part)


def _missing(found: Diagnosis) -> str:
    evidence = found.evidence
    unknown = [title_of(finding.mechanism) for finding in found.of("unknown")]
    says = "no mechanism is supported"
    if unknown:
        several = f"{len(unknown)} are neither supported nor excluded"
        says += f", and {several}" if len(unknown) > _NAMED else f"; it may be {' or '.join(unknown)}"
    if evidence.is_custom_trainer:
        return f"{says}; of a custom trainer only losses and gradient norms are known"
    if not len(evidence.edge):
        return f"{says}; the curvature was not measured, run with telemetry: {{curvature: {CURVATURE_EVERY}}}"
    return says


def _what_would_tell(found: Diagnosis, folder: Path) -> Iterator[str]:
    """The small sweep that would settle what is unknown, in place of advice."""
    evidence = found.evidence
    probes = (MECHANISMS[finding.mechanism].probe(evidence) for finding in found.of("unknown"))
    probe = next(filter(None, probes), None)
    if probe is None and (evidence.is_custom_trainer or len(evidence.edge)):
        return
    setting, values = probe or (None, [])
    text = small_sweep(folder, found.trial, "again" if setting is None else "try", setting, values)
    if text is not None:
        yield "this sweep would tell:"
        yield from indented(text)
