"""The first lines of the page of a sweep that trains: how far it is, how fast, and which trials train."""

from __future__ import annotations

import datetime
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.base.files import is_locked
from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.words import format_seconds
from orchestrator.ledger.facts import Imported, long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.render.html import table_html
from orchestrator.render.labels import short_number

_RUNNING_SHOWN = 12
_TROUBLES_SHOWN = 5
_TROUBLES = ("lost", "errored")  # how an attempt ends that is tried again, or is not


def summary_html(folder: Path, ledger: LedgerReader, rows: Sequence[TrialResult]) -> str:
    """The summary of the sweep in ``folder``, whose trials are ``rows``."""
    running = [row for row in rows if row.status == "running"]
    done = sum(row.outcome is not None or row.status == "errored" for row in rows)
    packs = ledger.packs()
    if not is_locked(folder):
        words = f"{done} of {len(rows)} trials have ended. No run is under way."
        return f"{marked(ledger)}<p>{words}</p>\n{counts_table(rows)}{_troubles(rows, packs)}"
    at_work = {row.pack_id for row in running}
    working = [pack for pack in packs if pack.pack_id in at_work]
    newest = {row.trial_id: ledger.newest_piece(row.trial_id) for row in running}
    steps = {identity: int(piece["step"][-1]) + 1 for identity, piece in newest.items() if "step" in piece}
    rate = sum(pack.member_steps / pack.seconds for pack in working if pack.seconds)
    words = f"{done} of {len(rows)} trials have ended, {len(running)} train"
    if rate:
        missing = [row for row in rows if row.status in ("planned", "running", "interrupted", "lost")]
        left = sum(row.steps - steps.get(row.trial_id, 0) for row in missing)
        words += f" at {rate:,.0f} member-steps/s; at most {format_seconds(left / rate)} left"
    shown = [_running_line(row, newest[row.trial_id], steps, working) for row in running[:_RUNNING_SHOWN]]
    table = table_html(("in training", "step", "loss", "steps/s"), shown) if shown else ""
    more = f"<p>and {len(running) - _RUNNING_SHOWN} more</p>" if len(running) > _RUNNING_SHOWN else ""
    return f"<p>{html.escape(words)}.</p>\n{counts_table(rows)}\n{table}{more}{_troubles(rows, packs)}"


def _running_line(
    row: TrialResult, piece: dict[str, np.ndarray], steps: dict[str, int], packs: Sequence[PackRow]
) -> list[str]:
    """Name, step, newest loss and steps per second of a trial in training."""
    pack = next((pack for pack in packs if pack.pack_id == row.pack_id), None)
    loss = float(piece["loss"][-1]) if "loss" in piece else float("nan")
    rate = pack.member_steps / pack.seconds / len(pack.trial_ids) if pack and pack.seconds else None
    again = f" (attempt {row.num_attempts})" if row.num_attempts > 1 else ""
    return [
        cell_name(row.cell, row.seed) + again,
        f"{steps.get(row.trial_id, 0)} of {row.steps}",
        short_number(loss) if np.isfinite(loss) else "",
        f"{rate:,.1f}" if rate is not None else "",
    ]


def _troubles(rows: Sequence[TrialResult], packs: Sequence[PackRow]) -> str:
    """Attempts that ended by a fault, the newest trials first, with their reasons; an empty text without any."""
    ended = sum(pack.ended in _TROUBLES for pack in packs)
    if not ended:
        return ""
    failed = [row for row in rows if row.status in _TROUBLES]
    failed.sort(key=lambda row: -(row.started_at or 0.0))
    shown = [(cell_name(row.cell, row.seed), row.status, row.reason or "") for row in failed[:_TROUBLES_SHOWN]]
    table = table_html(("trial", "is", "why"), shown) if shown else ""
    return f"\n<p>{ended} attempts ended by a fault.</p>\n{table}"


def counts_table(rows: Sequence[TrialResult]) -> str:
    """How many trials there are of each outcome or status."""
    return table_html(("outcome or status", "trials"), Counter(row.label for row in rows).items())


def cell_name(cell: Mapping[str, Any], seed: int) -> str:
    """A trial in words: its values and its seed."""
    return " ".join([*(f"{key}={format_value(value)}" for key, value in cell.items()), f"seed={seed}"])


_LEFT_OUT_SHOWN = 50


def marked(ledger: LedgerReader) -> str:
    """The paragraph that marks imported results; empty for a sweep that was trained here."""
    note = long_note(ledger.facts())
    return "" if note is None else f"<p><strong>{html.escape(note[0].upper() + note[1:])}.</strong></p>\n"


def imported_html(imported: Imported) -> str:
    """Sources, columns and what was left out."""
    when = datetime.datetime.fromtimestamp(imported.imported_at, datetime.UTC).isoformat(" ", timespec="seconds")
    what = [
        ("sources", ", ".join(imported.sources)),
        ("columns", ", ".join(f"{name} = {column}" for name, column in imported.columns.items())),
        ("outcomes by", imported.judged_by),
        ("imported at", when),
        ("runs", imported.num_runs),
        ("left out", imported.num_left_out),
    ]
    shown = "\n".join(imported.left_out[:_LEFT_OUT_SHOWN])
    return table_html(("what", "value"), what) + (f"<pre>{html.escape(shown)}</pre>" if shown else "")
