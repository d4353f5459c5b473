"""`sweep objectives`: the objectives and all their fields."""

from __future__ import annotations

from collections.abc import Iterable

from rich.constrain import Constrain
from rich.table import Table

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.commands.printing import Answer
from orchestrator.sweepfile.starter import objectives_with_rows

_WIDTH = 120


def objectives(name: str | None = None, match: str | None = None) -> Answer:
    """A table for each objective, or that of ``name``: its fields with default, unit, domain and meaning.

    With ``match`` only fields whose name or meaning has these letters. Raises InputError where there is none.
    """
    names = [objective.name for objective, _ in objectives_with_rows()]
    if name is not None and name not in names:
        raise InputError(Problem("NAME", "", f"there is no objective {name}", f"choose {', '.join(names)}"))
    found = [
        (objective, _matching(rows, match))
        for objective, rows in objectives_with_rows()
        if name in (None, objective.name)
    ]
    if match is not None and not any(rows for _, rows in found):
        raise InputError(Problem("--match", "", f"no field has {match!r} in its name or meaning", "leave it out"))
    for objective, rows in found:
        if not rows:
            continue
        title = f"{objective.name}: {objective.summary}"
        table = Table("field", "default", "unit", "domain", "meaning", title=title, title_justify="left", box=None)
        for row in rows:
            table.add_row(*(word.replace("[", r"\[") for word in row))
        yield Constrain(table, _WIDTH)
        yield ""
    return EXIT_OK


def _matching(rows: Iterable[tuple[str, ...]], match: str | None) -> list[tuple[str, ...]]:
    """The rows whose first word, the name, or last, the meaning, has the letters."""
    return [row for row in rows if match is None or match.lower() in f"{row[0]} {row[-1]}".lower()]
