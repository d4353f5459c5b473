"""Random maps with holes, errors and ties, beside a reading of the definitions that tries everything.

Axes lie next to 1, their values are out of order, seeds are planned, running, errored or lost.
"""

import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, sweep_of
from tiers import examples
from typer.testing import CliRunner

from orchestrator.answers._rows import named_rows
from orchestrator.base.errors import InputError
from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.base.vocabulary import OUTCOMES, cell_state
from orchestrator.cli import app
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.cell_map import cell_map, facet_maps
from orchestrator.maps.comparison import compare
from orchestrator.maps.edges import StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table
from orchestrator.pages.data import report_data
from orchestrator.render.maps import draw_edges
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.spec import Sweep

FAULTS = ("errored",)
OUTSTANDING = ("planned", "running", "interrupted", "lost")
RESULTS = (*OUTCOMES, "degraded")
PRUNED = "pruned"  # a result, but not of a whole training
LABELS = (*["stable"] * 4, "degraded", "spiked", "diverged", "stalled", PRUNED, *FAULTS, *OUTSTANDING)
POOLS = {
    "lr": (1e-3, 1e-2, 1e-1, 1.0, 3.0),
    "beta2": (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999, 0.9999999, 0.66274),
    "eps": (1e-12, 1e-8, 1e-4),
}
Cell = tuple[Any, ...]
some = settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Case:
    """A sweep, and what became of each of its trials."""

    sweep: Sweep
    labels: tuple[str, ...]
    losses: tuple[float | None, ...]

    def __repr__(self) -> str:
        return (
            f"{[(axis.name, axis.values) for axis in self.sweep.axes]} {self.sweep.seeds} {self.labels} {self.losses}"
        )

    @property
    def seeds_of(self) -> Mapping[Cell, list[tuple[str, float | None]]]:
        """Label and loss of every seed of every cell."""
        found: dict[Cell, list[tuple[str, float | None]]] = {}
        for trial, label, loss in zip(self.sweep.trials, self.labels, self.losses, strict=True):
            found.setdefault(tuple(trial.cell.values()), []).append((label, loss))
        return found


@st.composite
def cases(draw: st.DrawFn, most_axes: int = 3) -> Case:
    """Up to three axes of up to five values each, in any order, with up to three seeds."""
    names = draw(st.permutations(list(POOLS)))[: draw(st.integers(1, most_axes))]
    axes = {name: draw(st.lists(st.sampled_from(POOLS[name]), min_size=1, max_size=5, unique=True)) for name in names}
    seeds = list(range(draw(st.integers(1, 3))))
    body = f"seeds: {seeds}\naxes:\n"
    body += "".join(f"  {name}: {{values: [{', '.join(map(repr, values))}]}}\n" for name, values in axes.items())
    sweep = sweep_of(body.replace("e-", ".0e-").replace("..0e", ".0e"))
    labels = tuple(draw(st.sampled_from(LABELS)) for _ in sweep.trials)
    known = st.sampled_from([1.0, 2.0, 2.0, 3.5, None])
    # What a stalled trial ended at says whether its learning rate is too slow: see test_table.
    has_loss = (*RESULTS, PRUNED)
    losses = tuple(draw(known) if label in has_loss and label != "stalled" else None for label in labels)
    if not any(label in ("stable", "spiked") and loss is not None for label, loss in zip(labels, losses, strict=True)):
        labels = tuple("stable" if label == "degraded" else label for label in labels)  # they are the best there are
    return Case(sweep, labels, losses)


# --- the definitions, word by word --------------------------------------------------------------


# How good a cell is: a degraded one lies between.
STABLE, DEGRADED, OVER_EDGE = 2, 1, 0


def level(seeds: Sequence[tuple[str, Any]]) -> int | None:
    """STABLE where every seed asked for is stable; None where a result is missing that could still be one, or lost."""
    labels = [label for label, _ in seeds]
    if any(label in OUTSTANDING for label in labels) or not any(label in RESULTS for label in labels):
        return None
    if any(label in OUTCOMES and label != "stable" for label in labels):
        return OVER_EDGE
    return None if "errored" in labels or PRUNED in labels else DEGRADED if "degraded" in labels else STABLE


def reduced(cells: Sequence[Sequence[tuple[str, Any]]], how: str) -> int | None:
    """The level of the worst, median or best of cells, in every way in which the unknown ones may come out."""
    known = [level(cell) for cell in cells]
    place = {"best": 0, "median": len(cells) // 2, "worst": len(cells) - 1}[how]
    levels = [STABLE, DEGRADED, OVER_EDGE]
    ways = itertools.product(*([value] if value is not None else levels for value in known))
    answers = {sorted(way, reverse=True)[place] for way in ways}
    return answers.pop() if len(answers) == 1 else None


def edges_of(row: Sequence[tuple[Any, int | None]], least: int = DEGRADED) -> list[tuple[Any, Any]]:
    """Ends of every change along a row to below the level ``least``, cells that are not known left out."""
    known = [(value, found >= least) for value, found in row if found is not None]
    return [(a[0], b[0]) if a[1] else (b[0], a[0]) for a, b in itertools.pairwise(known) if a[1] != b[1]]


def in_order(case: Case, axis: int) -> list[Any]:
    """The values of an axis, ascending."""
    return sorted({cell[axis] for cell in case.seeds_of})


def of_state(state: str) -> int | None:
    """What the state of a cell says of its level."""
    if state in ("unknown", "errored", "not_run", PRUNED):
        return None
    return {"stable": STABLE, "degraded": DEGRADED}.get(state, OVER_EDGE)


def rows_of(case: Case, how: str = "worst") -> Iterator[tuple[Any, list[tuple[Any, int | None]]]]:
    """Each row of the map over the first two axes: y, and every x with what the definitions say of the cell."""
    num_axes = len(case.sweep.axes)
    for y in in_order(case, 1) if num_axes > 1 else [None]:
        row = []
        for x in in_order(case, 0):
            inner = [seeds for cell, seeds in case.seeds_of.items() if cell[0] == x and (num_axes == 1 or cell[1] == y)]
            row.append((x, reduced(inner, how)))
        yield y, row


# --- what the code says ---------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path_factory: pytest.TempPathFactory):
    """Writes the ledger of a case; returns its folder."""

    def write(case: Case) -> Path:
        folder = tmp_path_factory.mktemp("maps") / case.sweep.name
        with ledger_at(folder) as ledger:
            map_ledger(ledger, case.sweep, case.labels, case.losses)
        (folder / FROZEN_SWEEP).write_text(case.sweep.text)
        return folder

    return write


def opened(folder: Path) -> LedgerReader:
    return LedgerReader(folder / "ledger.db")


@given(st.lists(st.sampled_from(LABELS), max_size=5))
def test_a_cell_s_state_says_what_the_definition_says(labels: list[str]) -> None:
    seeds = [(label, None) for label in labels]
    state = cell_state(labels)
    assert of_state(state) == level(seeds)
    if state in OUTCOMES and state != "stable":
        counts = Counter(label for label in labels if label in OUTCOMES and label != "stable")
        assert counts[state] == max(counts.values())


@some
@given(cases(), st.sampled_from(["worst", "median", "best"]))
def test_the_map_its_table_and_its_boundary_are_the_definitions(written, case: Case, how: str) -> None:
    with opened(written(case)) as ledger:
        grid, strict = (GridMap(read_table(ledger), StableRule(counts), reduce=how) for counts in (False, True))
    stability = grid.cells
    for (y, row), of_row in zip(rows_of(case, how), grid.rows(), strict=True):
        assert list(of_row.setting.values()) == ([] if y is None else [y])
        assert [(x, of_state(stability.state((x, y)))) for x, _ in row] == row
        assert [(edge.stable, edge.not_stable) for edge in of_row.edges] == edges_of(row)
        assert list(of_row.not_known) == [x for x, found in row if found is None]
        assert list(of_row.degraded) == [x for x, found in row if found == DEGRADED]
    for (_, row), of_row in zip(rows_of(case, how), strict.rows(), strict=True):
        assert [(edge.stable, edge.not_stable) for edge in of_row.edges] == edges_of(row, STABLE)
    table = map_table(stability)
    assert len(table) == len(stability.cells)
    for record in table.to_dict("records"):
        assert (record["num_finished"] == 0) == pd.isna(record["fraction_stable"])
        assert record["num_stable"] <= record["num_finished"] <= record["num_seeds"]
    for _, text in named_rows(grid):
        assert f"near {stability.x.name}=1 " not in text, "a bound next to 1 is not 1"


@some
@given(cases())
def test_where_and_facet_take_the_cells_of_the_value_and_no_other(written, case: Case) -> None:
    folder, last = written(case), len(case.sweep.axes) - 1
    name = case.sweep.axes[last].name
    with opened(folder) as ledger:
        maps = (
            {stability.facet[0][1]: stability for stability in facet_maps(read_table(ledger), name, {})} if last else {}
        )
        for value, facet in itertools.zip_longest(in_order(case, last), maps.values()):
            wanted = [label for cell, seeds in case.seeds_of.items() if cell[last] == value for label, _ in seeds]
            for spelling in (value, repr(value), *([facet.facet[0][1]] if facet else [])):
                found = cell_map(read_table(ledger), where={name: spelling})
                cells = [found] if facet is None else [found, facet]
                for one in cells:
                    if last < 2:  # nothing is reduced
                        counted = sum((Counter(cell.outcomes) for cell in one.cells.values()), Counter())
                        assert counted == Counter(wanted)
                assert f"{name} = " in found.note


def margin_by_hand(case: Case, cell: Cell, axis: int, is_upwards: bool, least: int) -> float:
    """The factor up to which every cell in one direction has at least a level; infinite where all of them have."""
    values = in_order(case, axis)
    here = values.index(cell[axis])
    beyond = values[here + 1 :] if is_upwards else values[:here][::-1]
    last = cell[axis]
    for value in beyond:
        found = level(case.seeds_of[(*cell[:axis], value, *cell[axis + 1 :])])
        if found is None or found < least:
            # Of values near to 1, such as those of beta2, the distances to 1 count.
            is_near_one = max(values) < 1 and (1 - min(values)) / (1 - max(values)) > max(values) / min(values)
            factor = (1 - last) / (1 - cell[axis]) if is_near_one else last / cell[axis]
            return max(factor, 1 / factor)
        last = value
    return math.inf


def largest_regions_by_hand(case: Case, least: int) -> set[Cell]:
    """The cells of the regions with the most stable cells, which steps between cells not known to be below connect."""
    levels = {cell: level(seeds) for cell, seeds in case.seeds_of.items()}
    region_of = {cell: cell for cell, found in levels.items() if found is None or found >= least}
    orders = [in_order(case, axis) for axis in range(len(case.sweep.axes))]

    def are_beside(a: Cell, b: Cell) -> bool:
        steps = [abs(order.index(x) - order.index(y)) for order, x, y in zip(orders, a, b, strict=True)]
        return sum(steps) == 1

    beside = [pair for pair in itertools.permutations(region_of, 2) if are_beside(*pair)]
    for _ in region_of:
        for a, b in beside:
            region_of[a] = region_of[b] = min(region_of[a], region_of[b])
    sizes = Counter({region: 0 for region in region_of.values()})
    sizes.update(region for cell, region in region_of.items() if levels[cell] == STABLE)
    return {cell for cell, region in region_of.items() if sizes[region] == max(sizes.values())}


@some
@given(cases(), st.sampled_from([1.0, 1.05, 8.0, 200.0]), st.booleans())
def test_the_recommended_cell_is_the_best_of_its_region_with_nothing_else_than_stable_cells_around(
    written, case: Case, at_least: float, counts_degraded: bool
) -> None:
    with opened(written(case)) as ledger:
        found = recommend(read_table(ledger), at_least, rule=StableRule(counts_degraded))
    least = STABLE if counts_degraded else DEGRADED
    passing, connected = {}, largest_regions_by_hand(case, least)
    for cell, seeds in case.seeds_of.items():
        if cell in connected and level(seeds) == STABLE and all(loss is not None for _, loss in seeds):
            directions = itertools.product(range(len(cell)), (False, True))
            if min(margin_by_hand(case, cell, *direction, least) for direction in directions) >= at_least:
                passing[cell] = median(loss for _, loss in seeds)
    if not passing:
        assert found.chosen is None
    else:
        chosen = tuple(found.chosen.setting.values())
        assert passing[chosen] == found.chosen.loss == min(passing.values())


@some
@given(cases(most_axes=2), st.data(), st.booleans())
def test_a_comparison_counts_the_cells_that_are_known_in_both(
    written, case: Case, data: st.DataObject, counts_degraded: bool
) -> None:
    places = data.draw(st.permutations(range(len(case.labels))))
    other = Case(case.sweep, *(tuple(values[i] for i in places) for values in (case.labels, case.losses)))
    both = [case.seeds_of, other.seeds_of]
    known = [cell for cell in both[0] if all(level(seeds_of[cell]) is not None for seeds_of in both)]
    with opened(written(case)) as first, opened(written(other)) as second:
        if not known:
            with pytest.raises(InputError, match="none of them is known in all sweeps"):
                compare([read_table(first), read_table(second)])
            return
        found = compare([read_table(first), read_table(second)], rule=StableRule(counts_degraded))
    assert (found.num_cells, found.num_unknown) == (len(both[0]), len(both[0]) - len(known))
    for seeds_of, side in zip(both, found.sides, strict=True):
        shares = []
        for cell in known:
            results = [label for label, _ in seeds_of[cell] if label in RESULTS]
            shares.append(results.count("stable") / len(results))
        assert side.num_degraded == sum(level(seeds_of[cell]) == DEGRADED for cell in known)
        assert side.area == pytest.approx(sum(shares) / len(shares))


# --- every command that reads a map agrees --------------------------------------------------------

MARKS = {
    "o": STABLE,
    "v": DEGRADED,
    "^": OVER_EDGE,
    "X": OVER_EDGE,
    "-": OVER_EDGE,
    "!": None,
    "?": None,
    "s": None,
    ":": None,
    ".": None,
}


def lines_drawn(stability: Any) -> set[tuple[float, float]]:
    """Places where the figure's line crosses the middle of two neighbouring cells' common side."""
    figure, axes = matplotlib.pyplot.subplots()
    draw_edges(axes, stability)
    found = set()
    for line in axes.lines:
        x, y = line.get_data()
        pieces = [(x[i : i + 2], y[i : i + 2]) for i in range(0, len(x), 3)]
        found |= {(sum(of_x) / 2, sum(of_y) / 2) for of_x, of_y in pieces}
    matplotlib.pyplot.close(figure)
    return found


@pytest.mark.slow
@settings(some, max_examples=examples(12))
@given(cases())
def test_every_command_that_reads_the_map_agrees_with_it(written, case: Case) -> None:
    folder = written(case)
    rows = list(rows_of(case))
    command = CliRunner()

    def answer(*arguments: str) -> str:
        done = command.invoke(app, [*arguments, "--results", str(folder.parent)], catch_exceptions=False)
        assert done.exit_code in (0, 3), done.output
        return done.output

    # the table
    answer("export", "heatmap", folder.name, "--output", str(folder / "map.csv"))
    table = pd.read_csv(io.StringIO((folder / "map.csv").read_text()))
    x, *others = case.sweep.axis_names
    y = others[0] if others else None
    of_table = {(record[x], record[y] if y else None): of_state(record["state"]) for record in table.to_dict("records")}
    assert of_table == {(value, of_y): stable for of_y, row in rows for value, stable in row}
    # the text
    with opened(folder) as ledger:
        drawn = text_map(read_table(ledger).trials).plain.splitlines()
        stability = cell_map(read_table(ledger))
        page, order = report_data(read_table(ledger)), [axis.values for axis in read_table(ledger).axes]
    marks = [line.split()[-len(rows[0][1]) :] for line in drawn[1 if y else 0 :][: len(rows)]][::-1]
    assert [[MARKS[mark] for mark in row] for row in marks] == [[stable for _, stable in row] for _, row in rows]
    assert drawn[0] in answer("status", folder.name)
    # the boundary
    said = answer("boundary", folder.name, "--along", x).splitlines()[1:][::-1]
    for (_, row), line in zip(rows, said, strict=True):
        assert line.count(" is stable, ") + line.count(" is inside the edge, ") == len(edges_of(row))
        assert ("not known at " in line or "not run" in line) == any(stable is None for _, stable in row)
    # the figure
    places = set()
    for i, (_, row) in enumerate(rows):
        for j, (_, stable) in enumerate(row):
            for side, neighbour in (
                ((j + 0.5, i), row[j + 1 : j + 2]),
                ((j, i + 0.5), [r[1][j] for r in rows[i + 1 : i + 2]]),
            ):
                levels = (stable, neighbour[0][1]) if neighbour else ()
                if OVER_EDGE in levels and None not in levels and levels[0] != levels[1]:
                    places.add(side)
    assert lines_drawn(stability) == places
    # the page has the same trials to draw from
    assert page["trials"]["outcome"] == list(case.labels)
    if len(order) <= 2:
        cells = zip(page["cells"]["at"], page["cells"]["state"], strict=True)
        named = {tuple(values[i] for values, i in zip(order, at, strict=True)): of_state(state) for at, state in cells}
        assert {(key[0], key[1] if y else None): stable for key, stable in named.items()} == of_table
    # the recommendation is a cell that the table calls stable
    chosen = answer("recommend", folder.name).splitlines()[0]
    if not chosen.startswith("none"):
        setting = dict(word.split("=") for word in chosen.split(":")[0].split())
        key = (float(setting[x]), float(setting[y]) if y else None)
        assert len(case.sweep.axes) > 2 or of_table[key] == STABLE
