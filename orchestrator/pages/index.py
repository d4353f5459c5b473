"""The front door: a card for each sweep of a folder, the running ones first, and two to compare."""

from __future__ import annotations

import base64
import html
import io
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from matplotlib.colors import to_rgba

from orchestrator.base.errors import SweepError
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, is_locked
from orchestrator.base.space import Axis
from orchestrator.base.words import age_text, outcomes_text
from orchestrator.maps.all_sweeps import ListedSweep, listed_sweep, sweep_folders
from orchestrator.maps.cell_map import CellMap, cell_map
from orchestrator.maps.table import SweepTable
from orchestrator.pages.page_html import content_policy, document, page_file
from orchestrator.render.html import text_html
from orchestrator.render.labels import axis_place, fraction_shown
from orchestrator.render.style import BLANK, fraction_colours

_DOTS, _DOT = (72, 48), 2  # columns and rows of the small map of scattered cells, and the size of a dot
_NONE = "None yet. `sweep init` writes a sweep file, `sweep run FILE` trains it, and this page shows it."
_TICK = "Tick two sweeps to compare them."


class SweepIndex:
    """The index of the sweeps in the folder ``results``, whose ledgers are read again only after a change."""

    def __init__(self, results: Path) -> None:
        """Read nothing yet."""
        self._results = results
        self._kept: dict[str, tuple[object, ListedSweep, str]] = {}  # by name: what the files were, and what was read

    def html(self) -> str:
        """The page with all cards, running ones first, then the newest."""
        found = [self._card(folder) for folder in sweep_folders(self._results)]
        found.sort(key=lambda each: (not each[0].is_running, -each[0].changed_at))
        cards = "\n".join(card_html(sweep, picture) for sweep, picture in found)
        num_running = sum(sweep.is_running for sweep, _ in found)
        words = f"{len(found)} in {self._results.name}" + (f", {num_running} running" if num_running else "")
        code = page_file("index.js")
        body = (
            f'<header class="top"><h1>Sweeps</h1><p class="question">{html.escape(words)}</p></header>\n'
            f'<p class="compare-bar" id="compare-bar" aria-live="polite">{_TICK if len(found) > 1 else ""}</p>\n'
            f'<div class="sweeps" id="sweeps">{cards or f"<p>{text_html(_NONE)}</p>"}</div>'
        )
        policy = content_policy(code, is_live=True)
        return document("Sweeps", policy, f'<main class="index">\n{body}\n</main>\n<script>{code}</script>\n')

    def _card(self, folder: Path) -> tuple[ListedSweep, str]:
        """What is listed of a sweep, and its small map."""
        stamp = tuple(_stamps(folder))
        kept = self._kept.get(folder.name)
        if kept is None or kept[0] != stamp:
            found, table = listed_sweep(folder)
            kept = self._kept[folder.name] = (stamp, found, "" if table is None else small_map(table))
        return replace(kept[1], is_running=is_locked(folder)), kept[2]


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """What changes when a sweep does."""
    for name in (LEDGER, f"{LEDGER}-wal", FROZEN_SWEEP):
        try:
            found = (folder / name).stat()
        except FileNotFoundError:
            continue
        yield name, found.st_mtime_ns, found.st_size


def card_html(sweep: ListedSweep, picture: str) -> str:
    """One sweep: its map, question, stable share, edge and age; of a ledger that cannot be read, the reason."""
    name = html.escape(sweep.sweep)
    age = "running" if sweep.is_running else f"{age_text(time.time() - sweep.changed_at)} ago"
    badge = f'<span class="badge{" is-running" if sweep.is_running else ""}">{age}</span>'
    tick = f'<label class="tick"><input type="checkbox" value="{name}" aria-label="compare {name}"> compare</label>'
    head = f'<h2><a href="{quote(sweep.sweep, safe="")}/">{name}</a></h2>{badge}'
    if sweep.problem:
        return f'<article class="sweep">{head}<p class="caution">{html.escape(sweep.problem)}</p></article>'
    stable = "" if sweep.stable_share is None else f"{sweep.stable_share:.0%}"
    rows = (
        ("stable", stable),
        ("edge", sweep.edge.text if sweep.edge else ""),
        ("axes", sweep.axes_text),
        ("trials", outcomes_text(sweep.outcomes, sweep.num_over, sweep.num_trials)),
    )
    facts = "".join(f"<dt>{word}</dt><dd>{html.escape(text)}</dd>" for word, text in rows if text)
    question = f"<p>{html.escape(sweep.question)}</p>" if sweep.question else ""
    shown = f'<div class="small-map">{picture}</div>'
    return f'<article class="sweep">{shown}{head}{question}<dl>{facts}</dl>{tick}</article>'


def small_map(table: SweepTable) -> str:
    """The map of a sweep as an image of one dot for each cell; empty without axes."""
    try:
        found = cell_map(table)
    except SweepError:
        return ""
    from PIL import Image

    picture = io.BytesIO()
    Image.fromarray(dots(found), "RGBA").save(picture, "PNG", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}"
    axes = found.x.name if found.y is None else f"{found.y.name} upwards, {found.x.name} to the right"
    return f'<img alt="map: {html.escape(axes, quote=True)}" src="{source}">'


def dots(found: CellMap) -> np.ndarray:
    """The cells in the colours of the map of stable fractions, in rows from the top; what is not known has none."""
    colours, grid = fraction_colours(), found.is_grid
    width, height = (len(found.x_values), len(found.y_values)) if grid else _DOTS
    columns = _places(found.x, found.x_values, width, grid)
    rows = _places(found.y, found.y_values, height, grid)
    size = 1 if grid else _DOT
    picture = np.zeros((height, width, 4), np.uint8)
    for (x, y), cell in found.cells.items():
        if cell.fraction_stable is None:
            continue
        fraction = fraction_shown(cell)
        colour = [round(255 * part) for part in to_rgba(BLANK if fraction is None else colours(fraction))]
        row, column = height - size - rows[y], columns[x]
        picture[row : row + size, column : column + size] = colour
    return picture


def _places(axis: Axis | None, values: tuple[Any, ...], size: int, is_grid: bool) -> dict[Any, int]:
    """The first dot of each value: one after the other on a grid, else between the lowest and the highest value."""
    if is_grid or axis is None:
        return {value: place for place, value in enumerate(values)}
    room = size - _DOT
    places = [axis_place(axis, value, values) for value in values]
    low, high = min(places), max(places)
    return {
        value: round(room * (place - low) / (high - low)) if high > low else room // 2
        for value, place in zip(values, places, strict=True)
    }
