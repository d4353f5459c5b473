from pathlib import Path

import pytest
from matplotlib.figure import Figure
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.maps.front import Front, front
from orchestrator.maps.table import read_table
from orchestrator.render.front import front_picture

ROW = "axes: {lr: {log: [1e-3, 10], num: 5}}\n"
LONG = "axes: {lr: {log: [1e-8, 10], num: 28}}\n"
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
CASES = {
    "an edge": (["stable", "degraded", "stable", "stable", "diverged"], [3.0, None, 2.0, 1.0, None]),
    "open": (["stable"] * 5, [5.0, 4.0, 3.0, 2.0, 1.0]),
    "one loss": (["stable"] * 4 + ["spiked"], [1.0] * 5),
    "nothing stable": (["diverged"] * 5, [None] * 5),
    "below zero": (["stable"] * 4 + ["planned"], [-1.0, -2.0, -3.0, -4.0, None]),
}


def found_in(folder: Path, labels, losses, body: str = ROW, **options) -> Front:
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep_of(body), labels, losses)
        return front(read_table(ledger), "final_loss", **options)


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


@pytest.mark.slow
@pytest.mark.parametrize("against", ["margin", "steps_done"])
@pytest.mark.parametrize("case", CASES)
def test_fronts_of_every_kind_are_drawn_alike_each_time(tmp_path: Path, case: str, against: str) -> None:
    found = found_in(tmp_path, *CASES[case], against=against)
    for file_format, magic in MAGIC.items():
        assert front_picture(file_format, found).startswith(magic)
    assert front_picture("png", found) == front_picture("png", found)
    with pytest.raises(ValueError, match="gif"):
        front_picture("gif", found)


def test_the_key_names_the_settings_of_the_front_and_the_states_of_the_others(tmp_path: Path) -> None:
    found = found_in(tmp_path, *CASES["an edge"])
    figure = front_picture.figure(found)
    assert figure.get_suptitle() == "case: final loss against margin; 5 of 5 cells"
    told = legend(figure)
    assert told[: len(found.members)] == [f"{i}: {cell.name}" for i, cell in enumerate(found.members, start=1)]
    assert any(line.startswith("degraded") for line in told)
    assert any(line.startswith("diverged") for line in told)
    ticks = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert "no\nmargin" in ticks
    assert "no loss" in [text.get_text() for text in figure.axes[0].get_yticklabels()]


def test_every_cell_is_a_point_and_each_lies_at_its_margin_and_loss(tmp_path: Path) -> None:
    found = found_in(tmp_path, ["stable", "stable", "stable", "stable", "diverged"], [3.0, 4.0, 2.5, 2.0, None])
    (axes,) = front_picture.figure(found).axes
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    places = {(float(x), float(y)) for line in marks for x, y in zip(*line.get_data(), strict=True)}
    assert len(places) == len(found.cells)
    for expected in ((0.0, 2.0), (1.0, 2.5), (2.0, 4.0), (3.0, 3.0)):
        assert any(place == pytest.approx(expected) for place in places), "of a margin, its logarithm"


def test_a_long_front_names_its_first_settings_and_says_how_many_more(tmp_path: Path) -> None:
    losses = [30.0 - i for i in range(27)]
    found = found_in(tmp_path, ["stable"] * 27 + ["diverged"], [*losses, None], LONG)
    assert "... and 15 more: see the table" in legend(front_picture.figure(found))
