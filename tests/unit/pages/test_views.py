"""Surface and shares of the page's other views, and the index of all sweeps."""

import json
import os
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.base.files import FROZEN_SWEEP, LEDGER, sweep_lock
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps import all_sweeps
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.importance import importance
from orchestrator.maps.surface_map import surface_map
from orchestrator.maps.table import read_table
from orchestrator.pages import index
from orchestrator.pages.index import SweepIndex, dots
from orchestrator.pages.views import shares_html, surface_html

WIDE = "axes: {lr: {values: [0.01, 0.1, 1.0, 10.0]}, beta1: {values: [0.0, 0.3, 0.5, 0.9]}}\n"
ROWS = (1, 2, 3, 4)  # stable learning rates by momentum


def sweep_at(folder: Path, body: str = WIDE, labels: list[str] | None = None) -> LedgerReader:
    folder.mkdir(exist_ok=True)
    sweep = sweep_of(body)
    wedge = ["stable" if i < ROWS[j] else "diverged" for i in range(4) for j in range(4)]
    with ledger_at(folder) as ledger:
        map_ledger(ledger, sweep, labels or wedge)
    (folder / FROZEN_SWEEP).write_text(f"# Does momentum move the edge?\n{sweep.text}")
    return LedgerReader(folder / LEDGER)


def test_the_surface_behind_the_trials_is_the_fitted_one(tmp_path: Path) -> None:
    with sweep_at(tmp_path / "case") as ledger:
        table = read_table(ledger)
        text = surface_html(table)
        surface = surface_map(table, fills_grids=True)
    found = json.loads(unescape(re.search('data-surface="(.*?)"', text)[1]))
    assert (found["x"], found["y"]) == ("lr", "beta1")
    cells = [{"lr": lr, "beta1": beta1} for beta1 in (0.0, 0.3, 0.5, 0.9) for lr in (0.01, 0.1, 1.0, 10.0)]
    assert np.ravel(found["stable"]) == pytest.approx(surface.probability(cells), abs=5e-4)
    assert len(found["xs"]) == len(found["ys"]) == 4


@pytest.mark.parametrize("axes", ["{lr: {values: [0.1, 1.0]}}", "{lr: {values: [0.1]}, eps: {values: [1e-8]}}"])
def test_without_two_axes_or_enough_trials_there_is_no_surface(tmp_path: Path, axes: str) -> None:
    sweep = sweep_of(f"axes: {axes}\n")
    with sweep_at(tmp_path / "case", f"axes: {axes}\n", ["stable"] * len(sweep.trials)) as ledger:
        assert surface_html(read_table(ledger)) == ""


def test_each_axis_has_a_bar_as_long_as_its_share(tmp_path: Path) -> None:
    with sweep_at(tmp_path / "case") as ledger:
        found = importance(read_table(ledger))
    text = shares_html(found)
    known = [shares for of_target in found.shares.values() for shares in of_target.values() if shares is not None]
    widths = sorted(map(float, re.findall(r"width: ([\d.]+)%", text)))
    assert widths == pytest.approx(sorted(100 * share for shares in known for share in shares.values()), abs=0.06)


def test_the_small_map_has_a_dot_for_each_cell_from_the_top_row_down(tmp_path: Path) -> None:
    with sweep_at(tmp_path / "case") as ledger:
        picture = dots(cell_map(read_table(ledger)))
    assert picture.shape == (4, 4, 4)
    is_blue = picture[..., 2] > picture[..., 0]
    assert is_blue.sum(axis=1).tolist() == [4, 3, 2, 1], "the highest momentum is on top and all stable"
    assert (picture[..., 3] == 255).all()


def test_cells_without_a_result_have_no_dot(tmp_path: Path) -> None:
    with sweep_at(tmp_path / "case", labels=["planned"] * 15 + ["stable"]) as ledger:
        picture = dots(cell_map(read_table(ledger)))
    assert (picture[..., 3] > 0).sum() == 1


def test_a_degraded_cell_is_white_as_on_the_map(tmp_path: Path) -> None:
    with sweep_at(tmp_path / "case", labels=["degraded"] + ["stable"] * 15) as ledger:
        picture = dots(cell_map(read_table(ledger)))
    assert (picture == 255).all(axis=2).sum() == 1


def test_scattered_cells_lie_at_their_places(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-3, 1]}, beta1: {linear: [0, 0.9]}}\nsample: {method: sobol, num: 8}\n"
    with sweep_at(tmp_path / "case", body, ["stable"] * 8) as ledger:
        picture = dots(cell_map(read_table(ledger)))
    rows, columns = np.nonzero(picture[..., 3])
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 47, 0, 71)


def test_what_runs_comes_first_and_the_others_by_age(tmp_path: Path) -> None:
    for n, name in enumerate(("old", "new", "running")):
        sweep_at(tmp_path / name).close()
        for path in (tmp_path / name).iterdir():
            os.utime(path, (1e9 + 1e6 * (n if name != "running" else -1),) * 2)
    with sweep_lock(tmp_path / "running"):
        text = SweepIndex(tmp_path).html()
    assert re.findall('<a href="(.*?)/">', text) == ["running", "new", "old"]
    assert "3 in" in text
    assert "1 running" in text


def test_a_ledger_is_read_again_only_after_a_change(tmp_path: Path, monkeypatch) -> None:
    read = []
    monkeypatch.setattr(index, "listed_sweep", lambda folder: read.append(folder) or all_sweeps.listed_sweep(folder))
    sweep_at(tmp_path / "case").close()
    found = SweepIndex(tmp_path)
    assert found.html() == found.html()
    assert len(read) == 1
    (tmp_path / "case" / FROZEN_SWEEP).write_text("# Is it another question?\nname: case\n")
    assert "Is it another question?" in found.html()
    assert len(read) == 2


def test_a_ledger_that_cannot_be_read_has_a_card_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / LEDGER).write_bytes(b"not a database" * 100)
    text = SweepIndex(tmp_path).html()
    assert 'class="caution"' in text
    assert "broken" in text


def test_a_folder_without_sweeps_says_how_to_get_one(tmp_path: Path) -> None:
    assert "<code>sweep run FILE</code>" in SweepIndex(tmp_path).html()
