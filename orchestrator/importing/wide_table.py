"""A chart's table with a column of losses for each run -> a table with a loss in each row.

Weights & Biases and others export a chart so: the first column holds the steps, and `NAME - train/loss` the losses of
the run NAME, beside columns of minima and maxima (`NAME - train/loss__MIN`), which are left out. The settings of a run
are in its name, as `lr: 0.01, warmup: 100` where the chart is grouped, or as a pattern says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.base.errors import InputError, Problem
from orchestrator.importing.outcomes import BLANK, cell_text
from orchestrator.importing.rows import LeftOut, Row, Rows

RUN = "run"
_BETWEEN = " - "
_SETTING = re.compile(r"([A-Za-z_][\w./]*)\s*[:=]\s*([^\s,;]+)")


def is_wide(table: Rows, loss: str) -> bool:
    """Whether ``table`` has columns of runs in place of a column ``loss``."""
    return loss not in table.columns and bool(_runs(table, loss))


def long_of_wide(table: Rows, step: str, loss: str, pattern: re.Pattern[str] | None) -> Rows:
    """``table`` with a loss in each row: its run, the settings in the run's name, step and loss.

    Settings are the named groups of ``pattern``, or else what stands as `NAME: VALUE` or `NAME=VALUE`. Raises
    InputError where the table has no column ``step``.
    """
    if step not in table.columns:
        raise InputError(Problem("--step", step, "is no column", f"the first column is {table.columns[0]!r}"))
    found = Rows(left_out=list(table.left_out))
    for column, run in _runs(table, loss).items():
        settings = _settings(run, pattern)
        if not settings:
            reason = "does not match --from-path" if pattern is not None else "names no setting (see --from-path)"
            found.left_out.append(LeftOut(column, f"the name of its run {reason}"))
            continue
        found.columns += [name for name in (RUN, *settings) if name not in found.columns]
        found.rows += [
            Row(row.where, {RUN: run, **settings, step: row.values.get(step), loss: row.values[column]})
            for row in table.rows
            if cell_text(row.values.get(column)) != BLANK
        ]
    found.columns += [step, loss]
    return found


def _runs(table: Rows, loss: str) -> Mapping[str, str]:
    """Each column of losses, and the name of its run."""
    end = f"{_BETWEEN}{loss}"
    return {name: name.removesuffix(end) for name in table.columns if name.endswith(end) and name != end}


def _settings(run: str, pattern: re.Pattern[str] | None) -> Mapping[str, str]:
    if pattern is None:
        return dict(_SETTING.findall(run))
    match = pattern.search(run)
    return {} if match is None else {name: text for name, text in match.groupdict().items() if text is not None}
