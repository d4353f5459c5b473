"""`sweep locate`: where one run lies on the map of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import LEDGER, check_output
from orchestrator.commands.printing import Answer, written_json
from orchestrator.detection.config import StoppingConfig
from orchestrator.ledger.reader import LedgerReader
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import read_log
from orchestrator.maps.located import Located, Side
from orchestrator.maps.located import locate as located_on
from orchestrator.maps.located_text import located_json, located_lines
from orchestrator.maps.replay import Replayed, replay_logs
from orchestrator.sweepfile.settings import run_settings

_PREDICTED: dict[Side, str] = {
    "stable": "stable",
    "not stable": "not stable",
    "at the edge": "either, at the edge",
    "not known": "nothing, since what is around is not known",
    "outside": "nothing, outside its axes",
}


def locate(
    folder: Path,
    config: Path | None,
    sets: Sequence[str],
    log: Path | None,
    wanted: Columns,
    told: MetricsConfig | None,
    degraded: bool,
    json_file: Path | None = None,
) -> Answer:
    """Where the run with the settings of ``config`` and ``sets`` lies on the map of the sweep in ``folder``.

    The losses in ``log``, read as ``wanted`` and ``told`` say, are judged by the detector as `sweep replay` does. With
    ``degraded`` degraded cells are over the edge. Raises InputError.
    """
    check_output(json_file, "--json")
    run = run_settings(config, sets)
    judged = None if log is None else _judged(log, wanted, told)
    with LedgerReader(folder / LEDGER) as ledger:
        found = located_on(ledger, run, degraded)
    yield from located_lines(found, folder)
    if judged is not None:
        yield from _log_lines(judged, found)
    yield from written_json(json_file, {**located_json(found), "log": None if judged is None else judged.as_json()})
    return EXIT_OK


def _judged(log: Path, wanted: Columns, told: MetricsConfig | None) -> Replayed:
    if not log.is_file():
        raise InputError(
            Problem(f"--log {log}", "", "no such file", "give the log of one run; `sweep replay` judges more")
        )
    return replay_logs([read_log(log, wanted, told)], StoppingConfig())[0]


def _log_lines(judged: Replayed, found: Located) -> Iterator[str]:
    verdict, loss = judged.result, judged.record.recent_loss
    at = "" if verdict.onset_step is None else f" from step {verdict.onset_step:,}"
    last = "" if loss is None else f"; final loss {loss:.4g}"
    yield f"{judged.log.name}: {verdict.outcome}{at}: {verdict.reason}{last}"
    yield f"  the map predicts {_PREDICTED[found.side]}{_agreement(judged, found)}"
    yield from (f"  note: {note}" for note in judged.log.notes)


def _agreement(judged: Replayed, found: Located) -> str:
    if found.side not in ("stable", "not stable") or judged.result.outcome == "unknown":
        return ""
    if (judged.result.outcome == "stable") == (found.side == "stable"):
        return ": so it is"
    return ": it is not so" + (", and the cautions above may be why" if found.cautions else "")
