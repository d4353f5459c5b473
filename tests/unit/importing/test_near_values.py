"""Values of an axis that were rounded in two ways are named, and are one value where the user says so."""

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.importing.collecting import Collected, collect
from orchestrator.importing.options import import_options
from orchestrator.importing.runs import near_values

TABLE = "lr,beta,loss\n0.001,0.9,3\n0.001,0.99,3\n0.00276,0.9,2\n0.002762,0.99,2\n0.01,0.9,9\n0.01,0.99,9\n"


def collected(tmp_path: Path, **options) -> Collected:
    (tmp_path / "table.csv").write_text(TABLE)
    wanted = import_options(axis=["lr", "beta"], outcome="loss", diverged_above=5.0, **options)
    return collect([str(tmp_path / "table.csv")], wanted, tmp_path)


def test_values_that_may_be_one_are_named(tmp_path: Path) -> None:
    found = collected(tmp_path)
    assert [axis.values for axis in found.axes if axis.name == "lr"] == [(0.001, 0.00276, 0.002762, 0.01)]
    assert any("0.00276 and 0.002762" in note and "--merge lr" in note for note in found.notes)


def test_values_are_one_where_the_user_says_so(tmp_path: Path) -> None:
    found = collected(tmp_path, merge=["lr"])
    assert [axis.values for axis in found.axes if axis.name == "lr"] == [(0.001, 0.00276, 0.01)]
    assert not any("--merge" in note for note in found.notes)


def test_only_an_axis_can_be_merged(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'width' is not an axis"):
        collected(tmp_path, merge=["width"])


def test_values_are_near_the_first_of_their_kind_and_not_each_other_in_a_chain() -> None:
    assert near_values([1.0, 1.004, 1.008, 2, -1.0, -1.001, 0]) == {1.004: 1.0}


def test_decays_near_one_are_apart_as_their_memories_are() -> None:
    assert near_values([0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.99990001]) == {0.99990001: 0.9999}
