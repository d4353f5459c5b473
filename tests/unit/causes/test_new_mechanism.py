"""A mechanism that is added to the table alone is in every page, picture and advice."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosis_cases import calm, planted_sweep

from orchestrator.base.files import LEDGER
from orchestrator.causes.advice import advice_lines, advise
from orchestrator.causes.diagnosis import rank
from orchestrator.causes.diagnosis_text import diagnosis_json, diagnosis_lines
from orchestrator.causes.evidence import Evidence
from orchestrator.causes.explanation import explain
from orchestrator.causes.explanation_text import explanation_lines
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Finding, MakeFinding, Mechanism, Move, scaled
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.explanation import _draw


def tired(evidence: Evidence, found: MakeFinding) -> Finding:
    """Whatever the evidence is."""
    if evidence.outcome == "stable":
        return found("excluded", "it is wide awake")
    return found("supported", "it has trained all night", ["8 hours"], 7)


TIRED = Mechanism(
    key="tiredness",
    title="a tired optimizer",
    find=tired,
    label="zzz",
    colour="#123456",
    moves=(Move("lr", "lower", "it then has less to do", scaled("lr", 0.5)),),
)


@pytest.fixture
def table(monkeypatch) -> None:
    """The table with one line more, the first one: it leads."""
    others = dict(MECHANISMS)
    for key in others:
        monkeypatch.delitem(MECHANISMS, key)
    monkeypatch.setitem(MECHANISMS, TIRED.key, TIRED)
    for key, mechanism in others.items():
        monkeypatch.setitem(MECHANISMS, key, mechanism)


@pytest.mark.usefixtures("table")
def test_the_page_of_a_diagnosis_names_it_with_its_numbers_and_its_advice() -> None:
    found = rank(calm("diverged", 300).evidence(), "planted", "it was asked for")
    assert found.cause is not None
    assert found.cause.mechanism == "tiredness"
    advice = advise(found.evidence, "tiredness", Path("nowhere"))
    lines = list(diagnosis_lines(found, advice, Path("nowhere")))
    assert "cause: a tired optimizer, from step 7, 293 steps before the onset" in lines
    assert "  - 8 hours" in lines
    assert advice_lines(advice, "diverged")[0] == "lower lr: it then has less to do"
    assert diagnosis_json(found, advice)["cause"] == "tiredness"


@pytest.mark.usefixtures("table")
def test_the_map_of_causes_shows_it_in_its_cells_and_its_legend(tmp_path: Path) -> None:
    with LedgerReader(planted_sweep(tmp_path / "planted") / LEDGER) as ledger:
        found = explain(ledger)
    assert "a tired optimizer: 2 cells" in "\n".join(explanation_lines(found))
    figure = _draw(found)
    assert "zzz" in [text.get_text() for text in figure.axes[0].texts]
    assert "zzz: a tired optimizer" in [text.get_text() for text in figure.legends[0].get_texts()]
