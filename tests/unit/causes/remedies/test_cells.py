"""The cells of a map that are to be remedied, and what their answers come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from remedy_cases import answer, forked, three_cells
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.causes.remedies.reading import unstable_region
from orchestrator.causes.remedies.remedy import KINDS, Entry, Remedy
from orchestrator.causes.remedies.results import KindCount, Region
from orchestrator.ledger.reader import LedgerReader

ALL, SOME, NONE = ["stable"] * 3, ["stable", "diverged", "diverged"], ["diverged"] * 3
GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, beta1: {values: [0.0, 0.5]}}\n"


def region(tmp_path: Path, states: dict[tuple[float, float], tuple[str, str]], **where: Any) -> Region:
    """The unstable region of a grid whose cells are stable but for those of ``states``, seed by seed."""
    sweep = sweep_of(GRID)
    labels = [states.get((round(t.cell["lr"], 3), t.cell["beta1"]), ("stable", "stable"))[t.seed] for t in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, labels)
    with LedgerReader(tmp_path / LEDGER) as ledger:
        return unstable_region(ledger, where)


def cells_of(found: Region) -> list[tuple[float, float, int]]:
    return [(round(row.cell["lr"], 3), row.cell["beta1"], row.seed) for row in found.trials]


def test_a_cell_with_one_unstable_seed_is_taken_and_a_cell_that_is_not_known_is_not(tmp_path: Path) -> None:
    states = {
        (1.0, 0.0): ("diverged", "diverged"),
        (0.1, 0.5): ("stable", "spiked"),
        (1.0, 0.5): ("planned", "diverged"),
    }
    found = region(tmp_path, states)
    assert cells_of(found) == [(0.1, 0.5, 1), (1.0, 0.0, 0)]
    assert (found.num_known, found.num_unknown) == (7, 1)


def test_the_trial_of_a_cell_is_that_of_its_commonest_outcome(tmp_path: Path) -> None:
    found = region(tmp_path, {(1.0, 0.0): ("spiked", "diverged")})
    assert [row.outcome for row in found.trials] == ["diverged"], "the worse in a tie, as a diagnosis chooses"


def test_degraded_cells_are_not_over_the_edge(tmp_path: Path) -> None:
    assert region(tmp_path, {(0.001, 0.0): ("degraded", "degraded")}).trials == ()


def test_conditions_narrow_the_cells(tmp_path: Path) -> None:
    states = {(1.0, 0.0): ("diverged", "diverged"), (1.0, 0.5): ("diverged", "diverged")}
    assert cells_of(region(tmp_path, states, beta1="0.5")) == [(1.0, 0.5, 0)]
    with LedgerReader(tmp_path / LEDGER) as ledger, pytest.raises(InputError, match="is not an axis"):
        unstable_region(ledger, {"beta2": "0.5"})


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([{"at": 0, "set": {"lr": "x0.25"}}, {"at": 50, "set": {"lr": "x4"}, "over": 50}], "lr"),
        ([{"at": 0, "set": {"zclip": 2.5}}], "clip"),
        ([{"at": 0, "rescale": 4.0}], "reset"),
        ([{"at": 0, "reset": "moments"}], "reset"),
        ([{"at": 0, "set": {"weight_decay": 0.0}}], "other"),
        ([{"at": 0, "set": {"lr": "x0.5"}}, {"at": 0, "skip": 5}], "other"),
        ([{"at": 0, "skip": 5}], "skip"),
    ],
)
def test_a_remedy_is_of_the_kind_of_what_it_changes(entries: list[Entry], kind: str) -> None:
    assert Remedy(tuple(entries)).kind == kind
    assert kind in KINDS


def test_each_kind_is_counted_where_it_is_the_cheapest_and_where_it_saves() -> None:
    three = three_cells()
    assert three.by_kind == {"clip": KindCount(1, 1), "skip": KindCount(1, 1), "lr": KindCount(0, 1)}
    assert [one.kind for one in three.cells] == ["clip", "skip", None]
    assert [one.is_saved_by_lower_lr for one in three.cells] == [True, False, False]
    assert [one.is_lower_alone(one.cheapest) for one in three.cells] == [False, True, False], (
        "only a spiked one ends at all"
    )


def test_a_higher_learning_rate_is_no_lower_one() -> None:
    higher = Remedy(({"at": 0, "set": {"lr": "x3"}},))
    found = answer(forked(higher, 50, ALL))
    assert (found.kind, found.is_saved_by_lower_lr) == ("lr", False)
