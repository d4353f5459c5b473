"""The page of a sweep, and the files that are made from a ledger: map, picture, report."""

from __future__ import annotations

import contextlib
import html
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import InputError
from orchestrator.base.files import (
    EXPORTED,
    HEATMAP,
    LEDGER,
    atomic_write,
    check_no_links,
    frozen_text,
    storage_errors,
)
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import CellMap, cell_map, separate_maps
from orchestrator.maps.curve_metrics import Measured
from orchestrator.maps.sentence import sentence_of
from orchestrator.maps.stability_map import surface_mesh
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.maps.tables import as_csv, map_table, readings_and_printed, trial_table
from orchestrator.pages.answers import answers_html
from orchestrator.pages.card import card_html, copy_html, ended_text, highlights, marked
from orchestrator.pages.data import as_script, report_data
from orchestrator.pages.packed import split
from orchestrator.pages.page_html import content_policy, document, page_file
from orchestrator.render.html import text_html
from orchestrator.sweepfile.strict_yaml import question_of

# One script, in this order.
_SCRIPTS = (
    "tabs.js", "elements.js", "cells.js", "grid.js", "map.js", "zoom.js", "smooth.js", "marks.js", "chart.js",
    "readings.js", "diagnosis.js", "curves.js", "pictures.js", "edge.js", "views.js", "profiles.js", "keyboard.js",
    "hover.js", "downloads.js", "address.js", "controls.js",
)  # fmt: skip
_LIVE_SCRIPTS = ("changes.js", "compare.js", "live.js")  # of a page that is served, after those


def report_html(table: SweepTable, stability: CellMap | None, sweep_text: str) -> str:
    """The report as one HTML page that loads nothing; all text from a configuration is escaped."""
    data = None if stability is None else report_data(table)
    return _report(table, data, sweep_text, answers_html(table, stability, sweep_text))


def _report(table: SweepTable, data: Mapping[str, Any] | None, sweep_text: str, answers: str) -> str:
    """The report from the map's ``data`` and the HTML of its ``answers``."""
    sentence = sentence_of(table)
    if data is not None:
        data = {**data, **highlights(table, data, sentence)}
    sections = {
        "question": question_of(sweep_text),
        "summary": card_html(sentence, table.trials, marked(table.ledger), f"{ended_text(table.trials)}."),
        "answers": answers,
    }
    return page_html(table.name, data, sections)


def page_html(
    name: str, data: Mapping[str, Any] | None, sections: Mapping[str, str], *, version: str | None = None
) -> str:
    """The page of a sweep: its map, if it has ``data``, and the HTML ``sections`` summary and answers, in parts.

    A page with a ``version`` of its data is live: it asks its server every second what is new since then, and for the
    curves and diagnoses of a chosen cell.
    """
    is_live = version is not None
    script = ""
    code = "".join(map(page_file, _SCRIPTS if data is not None else _SCRIPTS[:1]))
    if data is not None:
        now, later = (data, "") if is_live else split(data)
        script = f'<script type="application/json" id="data">{as_script(now)}</script>\n'
        script += f'<script type="text/plain" id="later">{later}</script>\n' if later else ""
    if is_live:
        code += "".join(map(page_file, _LIVE_SCRIPTS if data is not None else _LIVE_SCRIPTS[-1:]))
    script += f"<script>{code}</script>\n"
    policy = content_policy(code, is_live=is_live)
    question = f'<p class="question">{html.escape(sections["question"])}</p>' if sections["question"] else ""
    body = "\n".join(
        [
            f'<header class="top">\n<h1>{html.escape(name)}</h1>{question}\n'
            f'<div id="summary">\n{sections["summary"]}\n</div>\n{_banner(name) if is_live else ""}</header>',
            _parts_html(),
            '<div class="parts">',
            _MAP if data is not None else "",
            f'<div id="answers">\n{sections["answers"]}\n</div>',
            _COMPARE if is_live and data is not None else _compare_elsewhere(name),
            "</div>",
        ]
    )
    kept = f' data-version="{html.escape(version)}"' if version is not None else ""
    return document(f"{name}: stability map", policy, f"<main{kept}>\n{body}\n</main>\n{script}")


# What the page is made of, each a click away; the script hides the others, and those without content.
PARTS: Mapping[str, str] = {
    "map": "Map",
    "edge": "Edge",
    "choose": "Choose",
    "why": "Why",
    "remedies": "Remedies",
    "trials": "Trials",
    "compare": "Compare",
    "machine": "File and machine",
}


def _parts_html() -> str:
    buttons = "".join(f'<button type="button" data-part="{part}">{title}</button>' for part, title in PARTS.items())
    return f'<nav class="outline" id="outline" aria-label="parts of this page" hidden>{buttons}</nav>'


def _banner(name: str) -> str:
    command = text_html(f"`sweep page {name}`")
    return f'<p class="banner">The server has ended, so nothing here is updated. {command} serves it.</p>\n'


def _compare_elsewhere(name: str) -> str:
    command = f"sweep compare {name} OTHER"
    return (
        f'<section data-tab="compare"><h2>Comparison</h2>\n<p>{text_html(f"`{command}`")} {copy_html(command)} says '
        "how another sweep differs, and draws both maps.</p></section>"
    )


_MAP = """<section data-tab="map">
<noscript><p>The map needs scripts; its numbers are in the table below.</p></noscript>
<div class="head"><div class="views" id="views" role="group" aria-label="views"></div>
<div class="controls" id="controls"></div></div>
<div class="beside">
<div><h3 id="map-title"></h3>
<div class="wide" id="map"></div>
<ul class="key" id="key" aria-label="what the marks mean"></ul>
<p id="downloads"></p></div>
<div><section id="cell" aria-live="polite" aria-label="the chosen cell">
<p>Choose a cell to see its seeds' curves.</p>
</section>
<section id="diagnoses" aria-label="diagnoses of the chosen cell's trials"></section></div>
</div>
</section>"""
_COMPARE = (
    '<section id="compare" data-tab="compare" aria-label="comparison with another sweep" aria-live="polite"></section>'
)


MAP_TABLE, TRIAL_TABLE, REPORT = "map.csv", "trials.csv", "report.html"


def are_current(folder: Path) -> bool:
    """Whether the exports match the ledger and the sweep file; independent of any clock."""
    marker = folder / EXPORTED
    if not (folder / REPORT).is_file() or not marker.is_file():
        return False
    with LedgerReader(folder / LEDGER) as ledger, storage_errors(marker):
        return marker.read_text() == ledger.state()


def existing_exports(folder: Path) -> list[Path]:
    """The exports that exist."""
    return [path for name in (HEATMAP, MAP_TABLE, TRIAL_TABLE, REPORT) if (path := folder / name).is_file()]


def export_all(folder: Path, *, in_parallel: bool = False) -> list[Path]:
    """Write heatmap, tables and report of the sweep in ``folder``; returns what was written.

    ``in_parallel`` makes half of them in a copy of this process, which must not have threads.
    """
    with contextlib.ExitStack() as stack:
        beside = None
        if in_parallel:  # before the ledger is open here: two processes must not share a connection
            pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("fork")))
            beside = pool.submit(_map_and_answers_of, folder)
        read = stack.enter_context(_read(folder))
        data = None if read.stability is None else report_data(read.table)
        written, answers = _map_and_answers(read) if beside is None else beside.result()
        written[REPORT] = _report(read.table, data, read.text, answers)
    check_no_links(folder)
    for name, content in written.items():
        atomic_write(folder / name, content)
    atomic_write(folder / EXPORTED, read.state)  # last, since it marks the others as complete
    return [folder / name for name in written]


@dataclass(frozen=True, slots=True)
class _Read:
    """What the exports are made of: the ledger's state, its table with readings, the map and the sweep file."""

    state: str
    table: SweepTable
    readings: Measured
    stability: CellMap | None
    text: str


@contextlib.contextmanager
def _read(folder: Path) -> Iterator[_Read]:
    with LedgerReader(folder / LEDGER) as ledger:
        state = ledger.state()  # first, since it sorts all rows in memory
        table = read_table(ledger)
        readings = readings_and_printed(table)
        try:
            stability = cell_map(table, measured=readings)
        except InputError:
            stability = None  # a sweep over seeds only has no axes and no map
        yield _Read(state, table, readings, stability, frozen_text(folder))


def _map_and_answers_of(folder: Path) -> tuple[dict[str, bytes | str], str]:
    with _read(folder) as read:
        return _map_and_answers(read)


def _map_and_answers(read: _Read) -> tuple[dict[str, bytes | str], str]:
    """Heatmap and tables by the names of their files, and the report's answers: both fit the same surfaces."""
    from orchestrator.render.maps import heatmap
    from orchestrator.render.small_maps import small_maps

    table, stability, readings = read.table, read.stability, read.readings
    written: dict[str, bytes | str] = {}
    if stability is not None:
        separate = separate_maps(table, stability, {}, measured=readings)
        mesh = surface_mesh(table, stability)
        written[HEATMAP] = small_maps("png", separate) if separate else heatmap("png", stability, [mesh])
        written[MAP_TABLE] = as_csv(map_table(stability))
    written[TRIAL_TABLE] = as_csv(trial_table(table, readings))
    return written, answers_html(table, stability, read.text)
