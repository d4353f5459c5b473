"""Tables of the page in HTML, with every text escaped."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.base.space import format_value
from orchestrator.base.trial_result import TrialResult


def table_html(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in HTML of values that are escaped."""
    header = "".join(f"<th>{html.escape(word)}</th>" for word in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"


def frame_html(table: pd.DataFrame) -> str:
    """A data frame as a table; a missing value is empty."""
    shown = table.map(lambda value: "" if value is None or value != value else format_value(value))
    return table_html(shown.columns, shown.itertuples(index=False))


def counts_table(rows: Sequence[TrialResult]) -> str:
    """How many trials there are of each outcome or status."""
    return table_html(("outcome or status", "trials"), Counter(row.label for row in rows).items())


def cell_name(cell: Mapping[str, Any], seed: int) -> str:
    """A trial in words: its values and its seed."""
    return " ".join([*(f"{key}={format_value(value)}" for key, value in cell.items()), f"seed={seed}"])
