"""The page of knobs has every knob at the edge of the learning rate, with the numbers of its sweep."""

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy.stats import fisher_exact

from benchmarks import lr_knobs
from benchmarks.lr_knobs import (
    Effect,
    Span,
    best_losses,
    cells_of,
    edge_factor,
    factor_ends,
    factor_text,
    loss_factor,
    loss_text,
)
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.edges import Edge, Row
from orchestrator.sweepfile.spec import load_sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "knobs.md").read_text()
FRESH = ROOT / "results" / "reference" / "lr_fresh"
SWEEPS = sorted(lr_knobs.SWEEPS.glob("*.yaml"))
AT_MEMORY_EDGE = {path.stem for path in (ROOT / "sweeps" / "knobs").glob("*.yaml")}
TRAINED = sorted(path.stem for path in lr_knobs.TABLES.glob("*.csv"))
TABLE = PAGE.split("### At the learning-rate edge")[1].split("\n###")[0]
CELLS = re.compile(r"^\| \[(\w+)\]\(#[^)]*\)" + r" \| ([^|]*?)" * 4 + r" \| [^|]+ \|$", re.MULTILINE)
ROWS = {knob: cells for knob, *cells in CELLS.findall(TABLE)}
# What the edge is made of, where a file's question does not need another base.
EDGE = {"norm": None, "init": "fan_in", "beta2": 0.95, "eps": 1e-8, "warmup": 10, "batch_size": 8}
OTHER_BASE = {
    "second_moment_start": {"warmup"},
    "warmup_shape": {"warmup"},
    "init_deviation": {"init"},
    "beta2_half_life": {"batch_size"},
    "curriculum": {"batch_size"},
    "norm_place": {"norm"},
    "norm_lr": {"norm"},
    "parametrisation": {"init"},
    "preset": {"norm"},
}


def trial(lr: float, seed: int, loss: float | None, outcome: str = "stable") -> SimpleNamespace:
    return SimpleNamespace(cell={"lr": lr, "knob": 1}, seed=seed, outcome=outcome, validation_loss=loss)


def row_with(at: float | None, low: float | None, high: float | None) -> Row:
    return Row(Cell(), "crosses", (Edge(at, low, high, True, "fit"),), p_stable=0.5)


SURFACE = SimpleNamespace(along=Axis("lr", "log", (), (0.01, 1.0)), level=0.5)
# As written: a value, its edge and factor, its best learning rate, loss and factor, each with its interval.
EFFECT = Effect("a", 0.1, 0.09, 0.11, 2.0, 1.5, 2.5, 0.01, 2.0, 1.0, 0.99, 1.01, 40, is_base=False)


def test_every_knob_of_the_memory_edge_is_tried_at_that_of_the_learning_rate() -> None:
    assert {path.stem for path in SWEEPS} >= AT_MEMORY_EDGE


def test_the_section_of_the_learning_rate_edge_has_every_knob() -> None:
    assert set(ROWS) == {path.stem for path in SWEEPS}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_has_the_learning_rate_and_its_knob_at_that_edge(path: Path) -> None:
    sweep = load_sweep(path)
    assert path.read_text().startswith("# ")
    assert sweep.name == f"lr_knob_{path.stem}"
    lr, knob = sweep.axis_names
    assert (lr, knob) == ("lr", "optimizer" if path.stem in ("library_optimizers", "muon", "lcm_adam") else path.stem)
    for name in EDGE.keys() - {knob} - OTHER_BASE.get(path.stem, set()):
        values = {trial.config[name] for trial in sweep.trials if name in trial.config}  # SGD has no eps
        assert values == {EDGE[name]}, name
    assert sweep.steps == 300
    assert len(sweep.seeds) == 5


@pytest.mark.parametrize("knob", TRAINED)
def test_the_page_has_the_numbers_of_the_table(knob: str) -> None:
    assert tuple(ROWS[knob]) == cells_of(lr_knobs.read_table(lr_knobs.TABLES / f"{knob}.csv"))


def test_the_page_says_of_a_knob_without_a_table_that_it_is_not_trained() -> None:
    assert {knob for knob, cells in ROWS.items() if cells[1] == "not trained"} == set(ROWS) - set(TRAINED)


@pytest.mark.parametrize("knob", TRAINED)
def test_a_table_has_one_base_and_every_value_of_its_sweep(knob: str) -> None:
    rows, sweep = lr_knobs.read_table(lr_knobs.TABLES / f"{knob}.csv"), load_sweep(lr_knobs.SWEEPS / f"{knob}.yaml")
    assert [row.is_base for row in rows].count(True) == 1
    values = next(axis.values for axis in sweep.axes if axis.name != "lr")
    assert [row.value for row in rows] == [lr_knobs.format_value(value) for value in values]
    assert all(row.trials >= len(sweep.trials) / len(values) for row in rows)


def test_the_lowest_median_loss_is_taken_of_the_grid_alone_and_a_lost_trial_counts_as_infinite() -> None:
    trials = [trial(0.1, seed, 3.0) for seed in range(3)]
    trials += [trial(0.2, 0, 1.0), trial(0.2, 1, None, "diverged"), trial(0.2, 2, None, "diverged")]
    trials += [trial(0.15, seed, 0.5) for seed in range(3)]
    assert best_losses(trials, "knob", 1, {0.1, 0.2}) == (0.1, {0: 3.0, 1: 3.0, 2: 3.0})
    assert best_losses(trials, "knob", 1, {0.2}) is None


def test_a_knob_that_averages_weights_has_their_loss_and_its_base_that_of_the_last_weights() -> None:
    facts = {"seed": 0, "outcome": "stable", "validation_loss": 3.0}
    trials = [
        SimpleNamespace(**facts, cell={"lr": 0.1, "merge_last": value}, merged_loss=merged)
        for value, merged in ((None, None), (10, 2.5))
    ]
    assert best_losses(trials, "merge_last", None, {0.1}) == (0.1, {0: 3.0})
    assert best_losses(trials, "merge_last", 10, {0.1}) == (0.1, {0: 2.5})


def test_losses_that_are_all_larger_by_one_factor_have_it_without_an_interval() -> None:
    base = (0.1, {0: 1.0, 1: 2.0, 2: 4.0})
    found = loss_factor(base, (0.2, {seed: 1.5 * loss for seed, loss in base[1].items()}))
    assert found == pytest.approx((1.5, 1.5, 1.5))


def test_a_quotient_and_its_inverse_have_inverse_intervals() -> None:
    one, other = (0.1, {0: 1.0, 1: 2.0, 2: 4.0}), (0.1, {0: 1.1, 1: 2.5, 2: 3.9})
    there, back = loss_factor(one, other), loss_factor(other, one)
    assert (there.at, there.low, there.high) == pytest.approx((1 / back.at, 1 / back.high, 1 / back.low))


def test_a_seed_that_is_lost_on_either_side_is_left_out_of_the_quotient() -> None:
    base = (0.1, {0: 1.0, 1: 2.0, 2: math.inf})
    assert loss_factor(base, (0.1, {0: 2.0, 1: 4.0, 2: 1.0})).at == pytest.approx(2.0)


def test_the_factor_of_an_edge_is_that_of_two_edges_and_a_bound_where_one_is_not_reached() -> None:
    base = row_with(0.1, 0.09, 0.12)
    assert edge_factor(base, row_with(0.2, 0.18, 0.22), SURFACE).at == pytest.approx(2.0)
    throughout = Row(Cell(), "stable throughout", (), p_stable=0.9)
    assert edge_factor(base, throughout, SURFACE) == pytest.approx((None, 1.0 / 0.12, None))
    nowhere = Row(Cell(), "not stable throughout", (), p_stable=0.1)
    assert edge_factor(base, nowhere, SURFACE) == pytest.approx((None, None, 0.01 / 0.09))
    in_doubt = Row(Cell(), "crosses", (Edge(None, 0.02, 0.03, True, "fit"),), p_stable=0.1)
    assert edge_factor(base, in_doubt, SURFACE) == pytest.approx((None, None, 0.03 / 0.09))


def test_the_interval_of_a_factor_adds_the_squares_of_both_sides_and_has_no_end_where_an_edge_has_none() -> None:
    first, new = Edge(0.1, 0.1 / 2, 0.1 * 3, True, "fit"), Edge(0.4, 0.4 / 5, 0.4 * 7, True, "fit")
    low, high = 4 * math.exp(-math.hypot(math.log(5), math.log(3))), 4 * math.exp(math.hypot(math.log(7), math.log(2)))
    assert factor_ends(first, new) == pytest.approx((low, high))
    assert factor_ends(Edge(0.1, None, 0.3, True, "fit"), new) == (pytest.approx(low), None)


def test_a_factor_is_bold_where_its_interval_excludes_one() -> None:
    assert factor_text(Span(1.2, 1.1, 1.3)) == "**1.20 [1.10, 1.30]**"
    assert factor_text(Span(1.2, 0.9, 1.5)) == "1.20 [0.90, 1.50]"
    assert factor_text(Span(None, 4.0, None)) == "**> 4.00**"
    assert factor_text(Span(None, None, None)) == loss_text(Span(None, None, None)) == "not known"
    assert loss_text(Span(1.2, 1.1, 1.3)) == "**1.20**"
    assert loss_text(Span(1.2, 0.9, 1.5)) == "1.20"


def test_other_seeds_are_asked_of_an_edge_that_moved_and_not_of_one_that_did_not_or_is_beyond_doubt() -> None:
    base = replace(EFFECT, value="none", edge=0.04, edge_factor_low=None, edge_factor_high=None, is_base=True)
    moved = replace(EFFECT, value="0.1", edge=0.05, edge_factor_low=1.1)
    stayed = replace(moved, value="0.3", edge_factor_low=0.9)
    far = replace(moved, value="1", edge=0.4)
    (command,) = lr_knobs.repeating("clip", [base, moved, stayed, far])
    assert "--axis lr=values:0.045 --axis clip=values:none,0.1 " in command
    assert "--name lr_repeat_clip_0_1 " in command
    assert not set(lr_knobs.REPEAT_SEEDS) & set(load_sweep(lr_knobs.SWEEPS / "clip.yaml").seeds)


@pytest.mark.parametrize("knob", TRAINED)
def test_other_seeds_were_tried_of_every_value_that_asks_for_them(knob: str) -> None:
    rows = lr_knobs.read_table(lr_knobs.TABLES / f"{knob}.csv")
    asked = "\n".join(lr_knobs.repeating(knob, rows))
    assert not [row.value for row in rows if row.repeat_lr is None and f"{lr_knobs.repeat_name(knob, row)} " in asked]


def test_the_page_says_how_many_values_other_seeds_confirm() -> None:
    tables = [lr_knobs.read_table(lr_knobs.TABLES / f"{knob}.csv") for knob in TRAINED]
    rows = [row for table in tables for row in table if row.repeat_lr is not None]
    lean = [row for row in rows if (row.repeat_stable - row.repeat_base_stable) * math.log(row.edge_factor) > 0]
    apart = [row for row in rows if lr_knobs.repeat_text(row).startswith("**")]
    assert len(apart) == 10
    said = f"Of {len(rows)} values tried with other seeds {len(lean)} lean the same way; the test separates ten"
    assert said in PAGE


def test_the_page_counts_the_other_seeds_and_is_bold_where_a_test_tells_them_from_those_of_the_base() -> None:
    told_apart = replace(EFFECT, repeat_lr=0.045, repeat_stable=9, repeat_base_stable=2)
    alike = replace(told_apart, repeat_base_stable=6)
    assert cells_of([told_apart, alike, EFFECT])[2] == "**9, base 2, at 0.045**<br>9, base 6, at 0.045<br>-"


def test_the_page_has_the_counts_of_forty_other_seeds_and_the_p_value_of_their_difference() -> None:
    row = r"^\| (\w+) \| (\S+) \| (\S+) \| (\S+) \| (\d+) \| (\d+) \| (\S+) \|$"
    shown = re.findall(row, FRESH.with_suffix(".md").read_text(), re.MULTILINE)
    assert {knob for knob, *_ in shown} == {path.stem for path in FRESH.glob("*.csv")}
    counts = {}
    for path in FRESH.glob("*.csv"):
        for cell in csv.DictReader(path.read_text().splitlines()):
            assert cell["num_finished"] == "40"
            counts[path.stem, cell[path.stem], cell["lr"]] = int(cell["num_stable"])
    for knob, value, base, lr, stable, base_stable, p in shown:
        num = counts[knob, value, lr]
        of_base = counts.get((knob, base, lr), counts.get(("clip", base, lr)))  # the same runs for all ways of clipping
        assert (int(stable), int(base_stable)) == (num, of_base)
        assert float(p) == pytest.approx(fisher_exact([[num, 40 - num], [of_base, 40 - of_base]]).pvalue, rel=0.05)


def test_a_table_that_is_written_reads_back(tmp_path: Path) -> None:
    rows = [EFFECT, replace(EFFECT, value="b", edge=None, edge_high=None, is_base=True, repeat_lr=0.1, repeat_stable=3)]
    lr_knobs.write_table(tmp_path / "one.csv", rows)
    assert lr_knobs.read_table(tmp_path / "one.csv") == rows


def test_a_page_gets_the_cells_of_a_knob_and_keeps_its_claim() -> None:
    page = "| [one](#a) | w | x | y | z | a claim |\n| [two](#b) | w | x | y | z | another |\n"
    changed = lr_knobs.page_with(page, {"one": [EFFECT]})
    assert changed.splitlines()[0] == "| [one](#a) | a | **2.00 [1.50, 2.50]** | - | 1.00 | a claim |"
    assert changed.splitlines()[1] == page.splitlines()[1]


def test_the_picture_draws_every_value_that_is_not_a_base() -> None:
    figure = lr_knobs.draw({"knob": [EFFECT, replace(EFFECT, value="b", is_base=True)]})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["knob a"]


def test_a_knob_without_a_ledger_keeps_its_place_on_the_picture(tmp_path: Path, monkeypatch) -> None:
    drawn = []
    monkeypatch.setattr(lr_knobs, "draw", lambda found: drawn.append(found) or lr_knobs.Figure())
    for name, content in (("TABLES", None), ("PICTURE", None), ("PAGE", "no row")):
        monkeypatch.setattr(lr_knobs, name, tmp_path / name)
        if content is not None:
            (tmp_path / name).write_text(content)
    lr_knobs.TABLES.mkdir()
    lr_knobs.write_table(lr_knobs.TABLES / "clip.csv", [EFFECT])
    monkeypatch.setattr("sys.argv", ["lr_knobs.py", "--results", str(tmp_path)])
    lr_knobs.main()
    assert drawn == [{"clip": [EFFECT]}]
