"""A mechanism that is added to the table alone is in every page, picture and advice."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosis_cases import calm, diagnosed, planted_sweep

from orchestrator.answers.explain import ExplainAnswer
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import explain
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Finding, MakeFinding, Move, mechanism, scaled
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.kind_maps import draw_explanation


@mechanism(
    "a tired optimizer",
    label="zzz",
    colour="#123456",
    moves=(Move("lr", "lower", "it then has less to do", scaled("lr", 0.5)),),
)
def tiredness(evidence: Evidence, finding: MakeFinding) -> Finding:
    """Whatever the evidence is."""
    if evidence.outcome == "stable":
        return finding("excluded", "it is wide awake")
    return finding("supported", "it has trained all night", ["8 hours"], 7)


@pytest.fixture
def table(monkeypatch) -> None:
    """The table with one line more, the first one: it leads."""
    others = dict(MECHANISMS)
    for key in others:
        monkeypatch.delitem(MECHANISMS, key)
    monkeypatch.setitem(MECHANISMS, tiredness.key, tiredness)
    for key, other in others.items():
        monkeypatch.setitem(MECHANISMS, key, other)


@pytest.mark.usefixtures("table")
def test_the_page_of_a_diagnosis_names_it_with_its_numbers_and_its_advice() -> None:
    answer = diagnosed(calm("diverged", 300).evidence())
    lines = answer.lines()
    assert "cause: a tired optimizer, from step 7, 293 steps before the onset" in lines
    assert "  - 8 hours" in lines
    assert lines[lines.index("advice:") + 1] == "  lower lr: it then has less to do"
    assert answer.to_plain()["cause"] == "tiredness"


@pytest.mark.usefixtures("table")
def test_the_map_of_causes_shows_it_in_its_cells_and_its_legend(tmp_path: Path) -> None:
    with LedgerReader(planted_sweep(tmp_path / "planted") / LEDGER) as ledger:
        found = explain(read_table(ledger))
    assert "a tired optimizer: 2 cells" in str(ExplainAnswer.of(found, tmp_path))
    figure = draw_explanation(found)
    assert "zzz" in [text.get_text() for text in figure.axes[0].texts]
    assert "zzz: a tired optimizer" in [text.get_text() for text in figure.legends[0].get_texts()]
