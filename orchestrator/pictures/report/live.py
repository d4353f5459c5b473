"""The page of a sweep while it runs, from its ledger: what has changed is read again, the rest is kept."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.driver.words import format_seconds
from orchestrator.files import LEDGER, frozen_text, is_locked
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.lr_curves import judged_trials
from orchestrator.maps.stability import stability_map, sweep_axes
from orchestrator.maps.tables import readings_and_printed
from orchestrator.messages import PackRow, TrialRow
from orchestrator.pictures.labels import short_number
from orchestrator.pictures.report.data import (
    CURVES,
    VALIDATION,
    curves_and_readings,
    curves_so_far,
    table_data,
)
from orchestrator.pictures.report.report import answers_html, cell_name, counts_table, marked, page_html, table_html

_POINTS = 600  # of one curve
_RUNNING_SHOWN = 12
_REST = 4  # what is computed anew rests so many times as long as it took: the trials need the processor
_SHORTEST_REST_S = 1.0


class LivePage:
    """The page of the sweep in ``folder``, and the curves that it asks for. Not for several threads at a time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read nothing yet; ``clock`` measures how long to rest, in seconds."""
        self._folder, self._clock = folder, clock
        self._readings: dict[tuple[str, str | None], dict[str, float]] = {}  # of a trial's attempt with a result
        self._answers, self._answered_state = "", ""
        self._page, self._page_due, self._answers_due = "", 0.0, 0.0

    def page(self) -> str:
        """The page as of now, or of the moment before. Raises StorageError, InputError."""
        if not self._page or self._clock() >= self._page_due:
            began = self._clock()
            with LedgerReader(self._folder / LEDGER) as ledger:
                self._page = self._made(ledger)
            self._page_due = self._next(began)
        return self._page

    def curves(self, trial_ids: Sequence[str]) -> list[dict[str, Any]]:
        """The curves of these trials so far; a trial that the sweep does not have has none."""
        with LedgerReader(self._folder / LEDGER) as ledger:
            known = ledger.statuses()
            return [curves_so_far(ledger, identity, _POINTS) if identity in known else {} for identity in trial_ids]

    def _next(self, began: float) -> float:
        now = self._clock()
        return now + max(_SHORTEST_REST_S, _REST * (now - began))

    def _made(self, ledger: LedgerReader) -> str:
        rows, facts, axes = judged_trials(ledger), ledger.facts(), sweep_axes(ledger)
        data = None
        if axes and rows:
            data = table_data(facts, rows, axes, [self._readings_of(ledger, row) for row in rows])
            data |= {"curves": None, "curve_titles": CURVES | VALIDATION, "num_points": _POINTS}
        state = ledger.state()
        if state != self._answered_state and (not self._answers or self._clock() >= self._answers_due):
            began = self._clock()
            stability = stability_map(ledger, measured=readings_and_printed(ledger)) if axes else None
            self._answers = answers_html(ledger, stability, frozen_text(self._folder))
            self._answered_state, self._answers_due = state, self._next(began)
        sections = {"summary": self._summary(ledger, rows), "answers": self._answers}
        return page_html(facts.get("name", self._folder.name), data, sections, is_live=True)

    def _readings_of(self, ledger: LedgerReader, row: TrialRow) -> dict[str, float]:
        """The metrics from a trial's curves, which are read once."""
        if row.outcome is None:
            return {}
        attempt = (row.trial_id, row.pack_id)
        if attempt not in self._readings:
            _, self._readings[attempt] = curves_and_readings(ledger, row, _POINTS)
        return self._readings[attempt]

    def _summary(self, ledger: LedgerReader, rows: Sequence[TrialRow]) -> str:
        running = [row for row in rows if row.status == "running"]
        done = sum(row.outcome is not None or row.status == "errored" for row in rows)
        if not is_locked(self._folder):
            words = f"{done} of {len(rows)} trials have ended. No run is under way."
            return f"{marked(ledger)}<p>{words}</p>\n{counts_table(rows)}"
        at_work = {row.pack_id for row in running}
        packs = [pack for pack in ledger.packs() if pack.pack_id in at_work]
        newest = {row.trial_id: ledger.newest_piece(row.trial_id) for row in running}
        steps = {identity: int(piece["step"][-1]) + 1 for identity, piece in newest.items() if "step" in piece}
        rate = sum(pack.member_steps / pack.seconds for pack in packs if pack.seconds)
        words = f"{done} of {len(rows)} trials have ended, {len(running)} train"
        if rate:
            missing = [row for row in rows if row.status in ("planned", "running", "interrupted", "lost")]
            left = sum(row.steps - steps.get(row.trial_id, 0) for row in missing)
            words += f" at {rate:,.0f} member-steps/s; at most {format_seconds(left / rate)} left"
        shown = [_running_line(row, newest[row.trial_id], steps, packs) for row in running[:_RUNNING_SHOWN]]
        table = table_html(("in training", "step", "loss", "steps/s"), shown) if shown else ""
        more = f"<p>and {len(running) - _RUNNING_SHOWN} more</p>" if len(running) > _RUNNING_SHOWN else ""
        return f"<p>{html.escape(words)}.</p>\n{counts_table(rows)}\n{table}{more}"


def _running_line(
    row: TrialRow, piece: dict[str, np.ndarray], steps: dict[str, int], packs: Sequence[PackRow]
) -> list[str]:
    """Name, step, newest loss and steps per second of a trial in training."""
    pack = next((pack for pack in packs if pack.pack_id == row.pack_id), None)
    loss = float(piece["loss"][-1]) if "loss" in piece else float("nan")
    rate = pack.member_steps / pack.seconds / len(pack.trial_ids) if pack and pack.seconds else None
    return [
        cell_name(row.cell, row.seed),
        f"{steps.get(row.trial_id, 0)} of {row.steps}",
        short_number(loss) if np.isfinite(loss) else "",
        f"{rate:,.1f}" if rate is not None else "",
    ]
