"""What the page says first: the sentence, the outcomes as a bar, progress or age, and what trains or failed."""

from __future__ import annotations

import datetime
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import COLLAPSED, DEGRADED, MARKS, OUTCOMES, PRUNED, UNKNOWN
from orchestrator.base.words import format_seconds
from orchestrator.ledger.facts import long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.schema import PackRow
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.sentence import Sentence
from orchestrator.maps.table import SweepTable
from orchestrator.render.html import table_html, text_html
from orchestrator.render.labels import short_number

_RUNNING_SHOWN = 12
_TROUBLES_SHOWN = 5
_TROUBLES = ("lost", "errored")  # how an attempt ends that is tried again, or is not
# From left to right in the bar; other labels come last.
_ORDER = (
    "stable",
    DEGRADED,
    COLLAPSED,
    "spiked",
    "stalled",
    "diverged",
    PRUNED,
    UNKNOWN,
    "errored",
    "running",
    "planned",
)


def card_html(sentence: Sentence | None, rows: Sequence[TrialResult], note: str, moment: str) -> str:
    """Return the sentence with the next command, a ``note`` on the origin, the bar of outcomes, and the ``moment``."""
    said = "" if sentence is None else sentence_html(sentence)
    return f'{said}{note}<div class="progress">{bar_html(rows)}\n<p class="moment">{html.escape(moment)}</p></div>\n'


def sentence_html(sentence: Sentence) -> str:
    """Return the sentence as a paragraph, and the next command below it, which a button copies."""
    command = text_html(f"`{sentence.command}`")
    return (
        f'<p class="finding">{text_html(sentence.finding)}</p>\n'
        f'<p class="next"><span class="label">next</span> {command} {copy_html(sentence.command)} '
        f"{html.escape(sentence.purpose)}</p>\n"
    )


def copy_html(command: str) -> str:
    """Return a button that copies a command."""
    return f'<button type="button" class="copy" data-copy="{html.escape(command, quote=True)}">copy</button>'


def bar_html(rows: Sequence[TrialResult]) -> str:
    """Return the numbers of trials of each outcome or status as one bar, and as words below it."""
    counts = Counter(row.label for row in rows)
    names = [*(name for name in _ORDER if counts[name]), *sorted(counts.keys() - {*_ORDER})]
    known = {*OUTCOMES, *MARKS, PRUNED, "errored", "running"}
    kinds = {name: name if name in known else "waiting" for name in names}
    parts = "".join(f'<span class="part-{kinds[name]}" style="flex-grow: {counts[name]}"></span>' for name in names)
    items = "".join(
        f'<li><span class="dot part-{kinds[name]}"></span>{counts[name]:,} {html.escape(name)}</li>' for name in names
    )
    return f'<div class="bar" aria-hidden="true">{parts}</div>\n<ul class="counts">{items}</ul>'


def num_ended(rows: Sequence[TrialResult]) -> int:
    """How many trials have a result, or will have none."""
    return sum(row.outcome is not None or row.status == "errored" for row in rows)


def ended_text(rows: Sequence[TrialResult]) -> str:
    """Return how many trials have ended, and when the last one did."""
    last = max((row.finished_at or 0.0 for row in rows), default=0.0)
    when = datetime.datetime.fromtimestamp(last, datetime.UTC)
    date = f", the last on {when:%Y-%m-%d at %H:%M} UTC" if last else ""
    return f"{num_ended(rows)} of {len(rows)} trials have ended{date}"


def summary_html(
    ledger: LedgerReader, rows: Sequence[TrialResult], sentence: Sentence | None, *, is_running: bool
) -> str:
    """The summary of a sweep, whose trials are ``rows``."""
    running = [row for row in rows if row.status == "running"]
    packs, note = ledger.packs(), marked(ledger)
    if not is_running:
        return card_html(sentence, rows, note, f"{ended_text(rows)}. No run is under way.") + _troubles(rows, packs)
    words = f"{num_ended(rows)} of {len(rows)} trials have ended"
    at_work = {row.pack_id for row in running}
    working = [pack for pack in packs if pack.pack_id in at_work]
    newest = {row.trial_id: ledger.newest_piece(row.trial_id) for row in running}
    steps = {identity: int(piece["step"][-1]) + 1 for identity, piece in newest.items() if "step" in piece}
    rate = sum(pack.member_steps / pack.seconds for pack in working if pack.seconds)
    words += f", {len(running)} train"
    if rate:
        missing = [row for row in rows if row.status in ("planned", "running", "interrupted", "lost")]
        left = sum(row.steps - steps.get(row.trial_id, 0) for row in missing)
        words += f" at {rate:,.0f} member-steps/s; at most {format_seconds(left / rate)} left"
    shown = [_running_line(row, newest[row.trial_id], steps, working) for row in running[:_RUNNING_SHOWN]]
    table = table_html(("in training", "step", "loss", "steps/s"), shown) if shown else ""
    more = f"<p>and {len(running) - _RUNNING_SHOWN} more</p>" if len(running) > _RUNNING_SHOWN else ""
    part = f"<details><summary>what trains now</summary>{table}{more}</details>" if shown else ""
    return f"{card_html(sentence, rows, note, f'{words}.')}{part}{_troubles(rows, packs)}"


def _running_line(
    row: TrialResult, piece: dict[str, np.ndarray], steps: dict[str, int], packs: Sequence[PackRow]
) -> list[str]:
    """Name, step, newest loss and steps per second of a trial in training."""
    pack = next((pack for pack in packs if pack.pack_id == row.pack_id), None)
    loss = float(piece["loss"][-1]) if "loss" in piece else float("nan")
    rate = pack.member_steps / pack.seconds / len(pack.trial_ids) if pack and pack.seconds else None
    again = f" (attempt {row.num_attempts})" if row.num_attempts > 1 else ""
    return [
        row.name + again,
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
    shown = [(row.name, row.status, row.reason or "") for row in failed[:_TROUBLES_SHOWN]]
    table = table_html(("trial", "is", "why"), shown) if shown else ""
    return f"\n<details><summary>{ended} attempts ended by a fault.</summary>{table}</details>"


def marked(ledger: LedgerReader) -> str:
    """The paragraph that marks imported results; empty for a sweep that was trained here."""
    note = long_note(ledger.facts())
    return "" if note is None else f"<p><strong>{html.escape(note[0].upper() + note[1:])}.</strong></p>\n"


def highlights(table: SweepTable, data: Mapping[str, Any], sentence: Sentence | None) -> dict[str, int | None]:
    """The numbers of two cells of the page's ``data``: the recommended one, and the one that is shown at first.

    That is an unstable neighbour of the recommended one, if it has one.
    """
    setting = None if sentence is None else sentence.setting
    if setting is None:
        return {"recommended": None, "start": None}
    cells = [table.trials[members[0]].cell for members in data["cells"]["members"]]
    beside = GridMap(table).over_edge_beside(setting) if table.is_grid else set()
    start = next((c for c, cell in enumerate(cells) if cell in beside), None)
    recommended = next((c for c, cell in enumerate(cells) if cell == setting), None)
    return {"recommended": recommended, "start": recommended if start is None else start}
