"""What to change in a diagnosed trial: the advice of its mechanism, and what to look at where it was not finite."""

from __future__ import annotations

from pathlib import Path

from orchestrator.causes.advice import Advice, advise
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.diagnosis_text import diagnosis_lines
from orchestrator.causes.not_finite import Branch, branches


def advised(found: Diagnosis, folder: Path) -> tuple[list[Advice], list[Branch]]:
    """The advice for a trial of the sweep in ``folder``, and the branches of a loss that is not finite.

    A setting that a branch tells to change is left out of the advice. There is none for a stable trial.
    """
    advice = []
    if found.evidence.outcome != "stable":
        advice = advise(found.evidence, found.cause.mechanism if found.cause is not None else None, folder)
    broken = branches(found.evidence, folder)
    told = {one.advice.move.setting for one in broken if one.advice is not None}
    return [one for one in advice if one.move.setting not in told], broken


def diagnosis_page(found: Diagnosis, folder: Path) -> list[str]:
    """All that ``sweep diagnose`` says of a trial of the sweep in ``folder``, as lines."""
    advice, broken = advised(found, folder)
    return list(diagnosis_lines(found, advice, folder, broken))
