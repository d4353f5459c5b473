from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict

import pytest

from orchestrator.base.cell import Cell, Trial


def test_a_cell_is_a_key_whatever_the_order_of_its_axes() -> None:
    cell = Cell(lr=0.1, clip=None, files=("a.txt", "b.txt"))
    assert {cell: "found"}[Cell(files=("a.txt", "b.txt"), lr=0.1, clip=None)] == "found"
    assert cell != cell.moved("lr", 0.2)
    assert cell.moved("lr", 0.2).moved("lr", 0.1) == cell


def test_a_cell_is_called_by_its_values() -> None:
    assert Cell(lr=1e-3, beta2=0.99999, clip=None).name == "lr=0.001 beta2=0.99999 clip=none"
    assert Trial("t", Cell(lr=0.5), 3, {"steps": 8}).name == "lr=0.5 seed=3"
    assert Trial("t", Cell(), 0, {}).name == "seed=0"


def test_a_cell_has_parts() -> None:
    cell = Cell(lr=0.1, beta1=0.9, beta2=0.99)
    assert list(cell.only(["beta2", "lr"]).items()) == [("beta2", 0.99), ("lr", 0.1)]
    assert cell.without({"lr"}) == Cell(beta1=0.9, beta2=0.99)


def test_a_cell_cannot_be_changed() -> None:
    cell = Cell(lr=0.1)
    for change in (
        lambda: cell.update(lr=1),
        lambda: cell.__setitem__("lr", 1),
        lambda: cell.pop("lr"),
        lambda: cell.setdefault("b", 2),
    ):
        with pytest.raises(TypeError, match="a Cell cannot be changed"):
            change()
    assert cell == {"lr": 0.1}


def test_a_cell_survives_copies_and_is_json_like_any_mapping() -> None:
    cell = Cell(lr=0.1, clip=None)
    for same in (pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell), asdict(Trial("t", cell, 0, {}))["cell"]):
        assert (type(same), same) == (Cell, cell)
    assert json.loads(json.dumps(cell)) == cell
