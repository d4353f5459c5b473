"""The first lines of the page of a sweep that trains: how far it is, how fast, and which trials train."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from orchestrator.base.files import is_locked
from orchestrator.base.trial_result import TrialResult
from orchestrator.driver.words import format_seconds
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.pages.imported import marked
from orchestrator.pages.tables import cell_name, counts_table, table_html
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
    """Attempts that ended by a fault, the newest trials first, with what the ledger says of them; empty without."""
    ended = sum(pack.ended in _TROUBLES for pack in packs)
    if not ended:
        return ""
    failed = [row for row in rows if row.status in _TROUBLES]
    failed.sort(key=lambda row: -(row.started_at or 0.0))
    shown = [(cell_name(row.cell, row.seed), row.status, row.reason or "") for row in failed[:_TROUBLES_SHOWN]]
    table = table_html(("trial", "is", "why"), shown) if shown else ""
    return f"\n<p>{ended} attempts ended by a fault.</p>\n{table}"
