"""What the page says below its map: the words of the commands, and nothing that does not apply."""

import html
import itertools
import json
import re
from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.answers.explain import ExplainQuery
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.edge_line import edge_lines
from orchestrator.maps.table import read_table
from orchestrator.pages.answers import answers_html
from orchestrator.pages.edge import edge_data
from orchestrator.render.html import cards_html

WIDE = "axes: {lr: {values: [0.01, 0.1, 1.0, 10.0]}, beta1: {values: [0.0, 0.3, 0.5, 0.9]}}\n"
EDGE_AT = (1, 2, 3, 4)  # stable learning rates by momentum; the last row has no edge


def titles(text: str) -> list[str]:
    return [html.unescape(title) for title in re.findall("<h2>(.*?)</h2>", text)]


def of(folder: Path, body: str, labels: list[str]) -> tuple[LedgerReader, str]:
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep_of(body), labels)
    reader = LedgerReader(folder / "ledger.db")
    axes = json.loads(reader.facts()["axes"])
    return reader, answers_html(read_table(reader), cell_map(read_table(reader)) if axes else None, "name: case\n")


def wedge() -> list[str]:
    return ["stable" if i < EDGE_AT[j] else "diverged" for i in range(4) for j in range(4)]


def test_what_the_commands_say_of_a_map_with_an_edge_is_on_the_page(tmp_path: Path) -> None:
    reader, text = of(tmp_path, WIDE, wedge())
    with reader:
        assert titles(text)[:5] == [
            "Boundary", "Edge along lr against beta1", "Recommended setting", "Learning-rate sensitivity",
            "Which axis matters",
        ]  # fmt: skip
        assert "<th>stability: fANOVA</th>" in text


def test_what_does_not_apply_is_left_out(tmp_path: Path) -> None:
    reader, text = of(tmp_path, "axes: {eps: {values: [1.0e-8, 1.0e-6]}}\n", ["stable", "stable"])
    reader.close()
    assert titles(text) == [
        "Boundary", "Recommended setting", "Early stopping", "The map as a table", "Sweep file", "Environment",
    ]  # fmt: skip
    assert "none: " not in text


@pytest.mark.parametrize("label", ["stable", "diverged", "planned"])
def test_a_map_without_an_edge_has_no_picture_of_it(tmp_path: Path, label: str) -> None:
    reader, text = of(tmp_path, WIDE, [label] * 16)
    reader.close()
    assert 'id="edge"' not in text
    assert "Which axis matters" not in text


def test_a_cause_that_is_known_explains_the_map(tmp_path: Path, train) -> None:
    sweep = sweep_of("axes: {lr: {values: [0.1, 1.0, 3.0]}, beta1: {values: [0.0, 0.5]}}\nfixed: {optimizer: sgd}\n"
                     "telemetry: {curvature: 5}\n", "name: told\nobjective: quadratic\nsteps: 60\n")  # fmt: skip
    train(sweep)
    with LedgerReader(tmp_path / "told" / "ledger.db") as ledger:
        text = answers_html(read_table(ledger), cell_map(read_table(ledger)), "name: told\n")
        assert "<h2>Explanation</h2>" in text
        assert cards_html(ExplainQuery().ask(read_table(ledger)).blocks()) in text


def test_the_picture_of_the_edge_has_the_brackets_of_its_rows(tmp_path: Path) -> None:
    reader, _ = of(tmp_path, WIDE, wedge())
    with reader:
        drawn = edge_data(edge_lines(read_table(reader)))
    points = drawn["lines"][0]["points"]
    ticks = [place for place, _ in drawn["along"]["ticks"]]
    assert [(point["low"], point["high"]) for point in points[:3]] == list(itertools.pairwise(ticks))
    assert points[0]["words"] == "beta1 0: edge 0.0316 (0.01 to 0.1), stable below"
    assert points[3] == {"x": 0.9, "is_beyond_high": True, "words": "beta1 0.9: stable throughout"}
