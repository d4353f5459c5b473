"""Causes and remedies as trackers show them: tags, metrics and a table of the trial, and the picture."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.files import FORKS_OF_EACH, LEDGER, REMEDIES_PICTURE
from orchestrator.causes.diagnosis import diagnose, examine, most_typical
from orchestrator.causes.mechanisms.catalogue import title_of
from orchestrator.causes.remedies.reading import forks_folder, read_remedies
from orchestrator.causes.remedies.results import Remedies
from orchestrator.causes.remedies.tally import Tally
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.tracker import DIAGNOSIS, NO_CAUSE, TrialAnswer

_COLUMNS = ("fork_step", "tried", "saved", "recovered", "final_loss", "spent_steps")
_WORDS = {True: "yes", False: "no", None: "not known"}


_MOST_CAUSES = 50  # cells of a sweep with a cause: each takes a look at a trial's curve


def trial_answers(folder: Path) -> list[TrialAnswer]:
    """What trackers show about trials in ``folder`` with trained forks, and about the typical one of unstable cells."""
    answers: dict[str, TrialAnswer] = {}
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        for forks in sorted(folder.glob(FORKS_OF_EACH)):
            try:
                diagnosis = diagnose(table, forks.parent.name)
            except InputError:
                continue  # the sweep was changed and no longer has the trial
            if diagnosis is not None and (results := read_remedies(ledger, diagnosis)).tallies:
                answers[diagnosis.trial.trial_id] = tags_of(folder, results)
        typical = filter(None, map(most_typical, table.by_cell().values()))
        for trial in itertools.islice(typical, _MOST_CAUSES):
            with contextlib.suppress(InputError):  # imported without curves
                cause = examine(ledger, trial, "", table.trials).cause
                tags = {DIAGNOSIS: _cause(cause.mechanism if cause is not None else None)}
                answers.setdefault(trial.trial_id, TrialAnswer(trial.trial_id, tags, {}, (), None))
    return list(answers.values())


def _cause(mechanism: str | None) -> str:
    return NO_CAUSE if mechanism is None else title_of(mechanism)


def tags_of(folder: Path, results: Remedies) -> TrialAnswer:
    """What trackers show about the remedies of one trial, with the picture if there is one."""
    picture = forks_folder(folder, results.trial.trial_id) / REMEDIES_PICTURE
    return TrialAnswer(
        trial_id=results.trial.trial_id,
        tags={
            DIAGNOSIS: _cause(results.cause),
            "remedy.cheapest": _remedy(results.cheapest),
            "remedy.best": _remedy(results.best),
            "remedy.agrees_with_diagnosis": _WORDS[results.agrees],
            "remedy.control_repeats": _WORDS[results.control_repeats],
        },
        metrics=dict(_metrics(results)),
        table=[_row(results, tally) for tally in (*results.unchanged, *results.tallies)],
        picture=picture if picture.is_file() else None,
    )


def _metrics(results: Remedies) -> Iterator[tuple[str, float]]:
    yield "remedies_tried", len(results.names)
    yield "remedies_helped", len({tally.name for tally in results.tallies if results.helped(tally)})
    for name, tally in (("cheapest", results.cheapest), ("best", results.best)):
        if tally is not None:
            yield f"remedy_{name}_step", tally.fork_step
            if (measured := results.measured(tally)) is not None and measured.final_loss is not None:
                yield f"remedy_{name}_loss", measured.final_loss
    if results.too_late_step is not None:
        yield "remedy_too_late_step", results.too_late_step


def _remedy(tally: Tally | None) -> str:
    return "none" if tally is None else f"{tally.name} from step {tally.fork_step}"


def _row(results: Remedies, tally: Tally) -> dict[str, Any]:
    numbers = {name: getattr(tally, name) for name in _COLUMNS}
    return {"remedy": tally.name, **numbers, "helped": tally in results.tallies and results.helped(tally)}
