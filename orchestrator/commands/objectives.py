"""`sweep objectives`: the objectives and all their fields."""

from __future__ import annotations

from rich.constrain import Constrain
from rich.table import Table

from orchestrator.commands.printing import Answer
from orchestrator.errors import EXIT_OK
from orchestrator.sweepfile.starter import objectives_with_rows

_WIDTH = 120


def objectives() -> Answer:
    """A table for each objective: its fields with default, unit, domain and meaning."""
    for objective, rows in objectives_with_rows():
        title = f"{objective.name}: {objective.summary}"
        table = Table("field", "default", "unit", "domain", "meaning", title=title, title_justify="left", box=None)
        for row in rows:
            table.add_row(*(word.replace("[", r"\[") for word in row))
        yield Constrain(table, _WIDTH)
        yield ""
    return EXIT_OK
