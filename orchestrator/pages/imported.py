"""What the page of an imported sweep says of where its results come from, as HTML."""

from __future__ import annotations

import datetime
import html

from orchestrator.ledger.facts import Imported, long_note
from orchestrator.ledger.reader import LedgerReader
from orchestrator.pages.tables import table_html

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
