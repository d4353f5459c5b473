"""The answers on remedies as trackers get them: a few tags and numbers of the trial, a table, and the picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.files import FORKS_OF_EACH, LEDGER, REMEDIES_PICTURE
from orchestrator.causes.diagnosis import diagnose
from orchestrator.causes.mechanisms.catalogue import title_of
from orchestrator.causes.remedies.reading import forks_folder, read_remedies
from orchestrator.causes.remedies.results import Remedies, Tally
from orchestrator.ledger.reader import LedgerReader
from orchestrator.mirrors.tracker import TrialAnswer

_COLUMNS = ("fork_step", "tried", "saved", "recovered", "final_loss", "spent_steps")
_SAID = {True: "yes", False: "no", None: "not known"}


def told_answers(folder: Path) -> list[TrialAnswer]:
    """The answer on each trial of the sweep in ``folder`` whose forks were trained."""
    found = []
    with LedgerReader(folder / LEDGER) as ledger:
        for forks in sorted(folder.glob(FORKS_OF_EACH)):
            try:
                diagnosis = diagnose(ledger, forks.parent.name)
            except InputError:
                continue  # the sweep was changed, and has the trial no more
            if diagnosis is not None and (answer := read_remedies(ledger, diagnosis)).tallies:
                found.append(told(folder, answer))
    return found


def told(folder: Path, answer: Remedies) -> TrialAnswer:
    """One answer, with its picture where there is one."""
    picture = forks_folder(folder, answer.trial.trial_id) / REMEDIES_PICTURE
    return TrialAnswer(
        trial_id=answer.trial.trial_id,
        tags={
            "diagnosis": "no cause" if answer.cause is None else title_of(answer.cause),
            "remedy.cheapest": _where(answer.cheapest),
            "remedy.best": _where(answer.best),
            "remedy.agrees_with_diagnosis": _SAID[answer.agrees],
            "remedy.control_repeats": _SAID[answer.control_repeats],
        },
        metrics=dict(_metrics(answer)),
        table=[_row(answer, tally) for tally in (*answer.unchanged, *answer.tallies)],
        picture=picture if picture.is_file() else None,
    )


def _metrics(answer: Remedies) -> Iterator[tuple[str, float]]:
    yield "remedies_tried", len(answer.names)
    yield "remedies_helped", len({one.remedy.name for one in answer.tallies if answer.helped(one)})
    for name, tally in (("cheapest", answer.cheapest), ("best", answer.best)):
        if tally is not None:
            yield f"remedy_{name}_step", tally.fork_step
            if tally.final_loss is not None:
                yield f"remedy_{name}_loss", tally.final_loss
    if answer.too_late_step is not None:
        yield "remedy_too_late_step", answer.too_late_step


def _where(tally: Tally | None) -> str:
    return "none" if tally is None else f"{tally.remedy.name} from step {tally.fork_step}"


def _row(answer: Remedies, tally: Tally) -> dict[str, Any]:
    numbers = {name: getattr(tally, name) for name in _COLUMNS}
    return {"remedy": tally.remedy.name, **numbers, "helped": tally in answer.tallies and answer.helped(tally)}
