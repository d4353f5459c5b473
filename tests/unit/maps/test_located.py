import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, record, sweep_of
from tiers import examples

from orchestrator.answers.locate import LocateAnswer
from orchestrator.base.errors import InputError
from orchestrator.maps import located as module
from orchestrator.maps.edges import StableRule
from orchestrator.maps.located import Located, locate
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import read_table
from orchestrator.sweepfile.settings import RunSettings

GRID = """
axes:
  lr: {log: [1e-3, 1], num: 4}
  beta2: {log1m: [0.9, 0.999], num: 3}
  clip: {values: [1.0, null]}
"""
RELATED = """
axes:
  lr: {log: [1e-3, 1e-1], num: 3}
  warmup: {values: [0, 5, 10]}
  optimizer: {values: [adamw, sgd]}
  beta2: {values: [0.9, 0.99], when: {optimizer: [adamw]}}
zip: [[lr, warmup]]
"""
SMALL = "axes: {lr: {log: [1e-3, 1], num: 4}, beta2: {log1m: [0.9, 0.999], num: 3}}\n"
SCATTERED = "axes: {lr: {log: [1e-3, 1]}, beta2: {log1m: [0.9, 0.999]}}\nsample: {method: sobol, num: 48}\n"
LABELS = st.sampled_from(["stable"] * 4 + ["diverged", "spiked", "degraded", "planned"])


def run_with(**values) -> RunSettings:
    return RunSettings(values, {name: f"mine.yaml:{i}" for i, name in enumerate(values, 1)})


def located(folder: Path, body: str, labels: list[str], degraded: bool = False, **values) -> Located:
    with ledger_at(folder) as ledger:
        record(ledger, sweep_of(body), labels)
        return locate(read_table(ledger), run_with(**values), StableRule(degraded))


def lines_of(found: Located) -> list[str]:
    return LocateAnswer(found, None, Path("results/case")).lines()


@pytest.mark.parametrize("body", [GRID, RELATED], ids=["grid", "related axes"])
@settings(max_examples=examples(15))
@given(data=st.data())
def test_on_a_stable_cell_the_factors_are_the_margins_of_recommend(tmp_path_factory, body: str, data) -> None:
    sweep = sweep_of(body)
    labels = data.draw(st.lists(LABELS, min_size=len(sweep.trials), max_size=len(sweep.trials)))
    counts_degraded = data.draw(st.booleans())
    with ledger_at(tmp_path_factory.mktemp("located")) as ledger:
        map_ledger(ledger, sweep, labels)
        known = recommend(read_table(ledger), 1.0, "final_loss", StableRule(counts_degraded))
        for candidate in known.candidates:
            found = locate(read_table(ledger), run_with(**candidate.setting), StableRule(counts_degraded))
            assert (found.side, found.num_cells_around) == ("stable", 1)
            assert found.margins == candidate.margins
            assert found.escapes == ()
            assert dict(found.nearest[0].setting) == candidate.setting


@settings(max_examples=examples(25))
@given(data=st.data())
def test_between_cells_a_run_is_at_most_as_far_from_the_edge_as_from_each_cell_around_it(
    tmp_path_factory, data
) -> None:
    sweep = sweep_of(SMALL)
    labels = data.draw(st.lists(LABELS, min_size=len(sweep.trials), max_size=len(sweep.trials)))
    lr = data.draw(st.floats(1.01e-3, 0.99))
    with ledger_at(tmp_path_factory.mktemp("between")) as ledger:
        map_ledger(ledger, sweep, labels)
        found = locate(read_table(ledger), run_with(lr=lr, beta2=0.95))
        state = {(t.cell["lr"], t.cell["beta2"]): t.label for t in ledger.trials()}
    around = [v for v in (1e-3, 1e-2, 1e-1, 1.0) if abs(math.log10(v / lr)) < 1]
    corners = [state[cell] for cell in itertools.product(around, (0.9, 0.99))]
    assert (found.side == "stable") == all(label in ("stable", "degraded") for label in corners)
    assert (found.side == "not stable") == all(label in ("diverged", "spiked") for label in corners)
    over = [v for (v, beta2), label in state.items() if beta2 in (0.9, 0.99) and label in ("diverged", "spiked")]
    for margin in found.margins:
        if margin.axis == "lr" and margin.edge is not None:
            beyond = [max(v / lr, lr / v) for v in over if (v > lr) == margin.is_upwards]
            assert margin.edge == pytest.approx(min(beyond))
            assert margin.known < margin.edge


def test_from_beyond_the_edge_the_ways_lead_back_to_stable_cells(tmp_path: Path) -> None:
    labels = ["stable" if lr < 0.05 or beta2 < 0.95 else "diverged" for lr in LR for beta2 in BETA2]
    found = located(tmp_path, SMALL, labels, lr=0.5, beta2=0.995)
    assert (found.side, found.margins) == ("not stable", ())
    ways = {(way.axis, way.is_upwards): (way.stable_from, round(way.factor, 6)) for way in found.escapes}
    assert ways == {("lr", False): (1e-2, 50), ("beta2", False): (0.9, 20)}
    lines = lines_of(found)
    assert lines[1] == "outside stable territory: none of the 4 cells around it is stable"
    assert "  lr down: stable from 0.01 (factor 50)" in lines


LR, BETA2 = (1e-3, 1e-2, 1e-1, 1.0), (0.9, 0.99, 0.999)


def test_a_stable_cell_beyond_the_edge_is_told_to_be_cut_off_from_the_stable_region(tmp_path: Path) -> None:
    body, labels = "axes: {lr: {log: [1e-3, 10], num: 5}}\n", ["stable", "stable", "stable", "diverged", "stable"]
    island, mainland = (located(tmp_path / str(lr), body, labels, lr=lr) for lr in (10.0, 0.01))
    assert (island.side, island.is_island, mainland.is_island) == ("stable", True, False)
    assert lines_of(island)[1].startswith("stable, but cut off from the stable region: ")


def test_between_stable_and_not_stable_cells_a_run_is_at_the_edge(tmp_path: Path) -> None:
    labels = ["stable" if lr < 0.05 else "diverged" for lr in LR for _ in BETA2]
    found = located(tmp_path, SMALL, labels, lr=0.05, beta2=0.99)
    assert (found.side, found.num_cells_around) == ("at the edge", 2)
    assert [(way.axis, way.stable_from) for way in found.escapes] == [("lr", 1e-2)]


def test_what_is_not_known_around_a_run_is_told_and_not_taken_for_stable(tmp_path: Path) -> None:
    labels = ["planned" if (lr, beta2) == (1e-2, 0.99) else "stable" for lr in LR for beta2 in BETA2]
    found = located(tmp_path, SMALL, labels, lr=5e-3, beta2=0.95)
    assert found.side == "not known"
    assert "not known" in "\n".join(lines_of(found))


def test_a_value_beyond_its_axis_is_told_and_nothing_is_extrapolated(tmp_path: Path) -> None:
    found = located(tmp_path, SMALL, ["stable"] * 12, lr=2.0, beta2=0.99)
    assert (found.side, found.margins, found.escapes) == ("outside", (), ())
    assert dict(found.nearest[0].setting) == {"lr": 1.0, "beta2": 0.99}
    lines = lines_of(found)
    assert lines[1] == "outside the axes: lr = 2, where the sweep has 0.001 .. 1"


def test_a_value_as_tables_print_it_means_that_of_the_cell(tmp_path: Path) -> None:
    body = "axes: {lr: {log: [1e-3, 3], num: 8}}\n"
    found = located(tmp_path, body, ["stable"] * 8, lr=0.0309168)
    assert found.num_cells_around == 1
    assert found.place.setting["lr"] == found.nearest[0].setting["lr"]


def test_settings_that_differ_from_the_sweep_are_cautions_with_their_lines(tmp_path: Path) -> None:
    same = {"eps": 1e-8, "steps": 20}
    found = located(tmp_path, SMALL, ["stable"] * 12, lr=0.1, beta2=0.99, **same, warmup=7, batch=32)
    told = {caution.name: (caution.place, caution.run, caution.sweep, caution.is_known) for caution in found.cautions}
    assert told == {"warmup": ("mine.yaml:5", 7, 0, True), "batch": ("mine.yaml:6", 32, None, False)}
    lines = lines_of(found)
    assert "caution: mine.yaml:5: warmup = 7, where the sweep has 0" in lines
    assert any(line.startswith("caution: mine.yaml:6: batch = 32 is not a setting of the sweep") for line in lines)


def test_degraded_cells_count_as_the_edge_where_that_is_asked_for(tmp_path: Path) -> None:
    labels = ["degraded" if lr < 5e-3 else "stable" for lr in LR for _ in BETA2]
    as_stable = located(tmp_path / "a", SMALL, labels, lr=2e-3, beta2=0.99)
    assert (as_stable.side, as_stable.num_degraded_around) == ("stable", 1)
    assert "inside the edge, with 1 of the 2 cells around it degraded" in lines_of(as_stable)
    assert located(tmp_path / "b", SMALL, labels, degraded=True, lr=2e-3, beta2=0.99).side == "at the edge"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"lr": 0.1}, "beta2: is an axis of the sweep, and the run has no value"),
        ({"lr": 0.1, "bta2": 0.9}, "mine.yaml:2: bta2: is no setting of the sweep\n.*`beta2`"),
        ({"lr": "fast", "beta2": 0.9}, "mine.yaml:1: lr: 'fast' is not a number"),
        ({"lr": True, "beta2": 0.9}, "mine.yaml:1: lr: True is not a number"),
        ({"lr": 0.0, "beta2": 0.9}, "mine.yaml:1: lr: 0.0 has no place on a log axis"),
        ({"lr": 0.1, "beta2": 1.0}, "mine.yaml:2: beta2: 1.0 has no place on a log1m axis"),
    ],
)
def test_settings_that_lie_on_no_axis_are_refused(tmp_path: Path, values: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        located(tmp_path, SMALL, ["stable"] * 12, **values)


def test_a_word_or_null_that_an_axis_does_not_have_lies_outside(tmp_path: Path) -> None:
    body = "axes: {optimizer: {values: [adamw, sgd]}, clip: {values: [0.5, 1.0]}}\n"
    found = located(tmp_path, body, ["stable"] * 4, optimizer="lion", clip=None)
    assert [(each.axis, each.value) for each in found.outside] == [("optimizer", "lion"), ("clip", None)]


@pytest.mark.parametrize(("lr", "side"), [(2e-3, "stable"), (0.8, "not stable"), (0.05, "at the edge")])
def test_where_cells_are_scattered_a_fitted_surface_answers(tmp_path: Path, lr: float, side: str) -> None:
    sweep = sweep_of(SCATTERED)
    labels = ["stable" if trial.cell["lr"] < 0.05 else "diverged" for trial in sweep.trials]
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, labels)
        found = locate(read_table(ledger), run_with(lr=lr, beta2=0.97))
    assert found.side == side
    assert found.p_stable.low <= found.p_stable.at <= found.p_stable.high
    edges = [margin for margin in found.margins if margin.axis == "lr" and margin.is_upwards]
    ways = [way for way in found.escapes if way.axis == "lr"]
    if side == "stable":
        assert edges[0].first_not_stable == pytest.approx(0.05, rel=0.5)
    if side == "not stable":
        assert ways[0].stable_from == pytest.approx(0.05, rel=0.5)
    assert found.is_fitted
    assert "by a fitted surface" in "\n".join(lines_of(found))


def test_the_axes_are_measured_once_for_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand scattered cells have as many values, so each cell's distance may not look at all of them."""
    asked, position = [], module._position
    monkeypatch.setattr(module, "_position", lambda axis, value: asked.append(value) or position(axis, value))
    located(tmp_path, SCATTERED, ["stable"] * 48, lr=0.01, beta2=0.95)
    assert len(asked) <= 2 * 48 * 3


def test_a_run_beyond_the_trials_of_a_surface_is_outside_though_the_axis_goes_on(tmp_path: Path) -> None:
    body = (
        "seeds: [0]\nsample: {method: sobol, num: 32}\naxes: {lr: {log: [0.001, 1.0]}, beta1: {linear: [0.0, 0.9]}}\n"
    )
    sweep = sweep_of(body)
    labels = [
        "planned" if trial.cell["beta1"] > 0.4 else "stable" if trial.cell["lr"] < 0.1 else "diverged"
        for trial in sweep.trials
    ]
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, labels)
        within, beyond = (locate(read_table(ledger), run_with(lr=0.002, beta1=beta1)) for beta1 in (0.3, 0.85))
    assert (within.side, within.outside) == ("stable", ())
    assert beyond.side == "outside"
    assert [each.axis for each in beyond.outside] == ["beta1"]
    assert (beyond.margins, beyond.escapes, beyond.p_stable) == ((), (), None)
