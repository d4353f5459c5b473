"""What each knob does to the edge of the learning rate and to the loss below it: tables, and the picture of all.

    python benchmarks/lr_knobs.py [--results FOLDER] [--repeat]

It reads the ledgers that `make lr-knobs` trains, of every file of `sweeps/lr_knobs` that has one; a knob without a
ledger keeps its table, its row of the page and its place on the picture. A value's edge is where half of the trials are
stable by the surface that is fitted to all trials of the file. The loss of a value is the lowest median over the
learning rates of the file's grid; its factor is the geometric mean of the seeds' quotients with the base value, each at
its own best learning rate.

Five seeds make some edges seem to move. ``--repeat`` prints the arguments of `sweep` that train, for every value whose
edge has moved by a factor of less than 1.5, ten other seeds of it and of the base value at one learning rate between
both edges.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from scipy.stats import fisher_exact
from scipy.stats import t as student

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from objectives.base import OBJECTIVES  # noqa: E402
from orchestrator.base.files import LEDGER  # noqa: E402
from orchestrator.base.intervals import CONFIDENCE  # noqa: E402
from orchestrator.base.space import format_value  # noqa: E402
from orchestrator.base.trial_result import TrialResult  # noqa: E402
from orchestrator.ledger.reader import LedgerReader  # noqa: E402
from orchestrator.maps import table as maps_table  # noqa: E402
from orchestrator.maps.comparison import row_shift  # noqa: E402
from orchestrator.maps.edges import Edge, Row  # noqa: E402
from orchestrator.maps.surface_map import SurfaceMap, surface_map  # noqa: E402
from orchestrator.render.style import BLUE, GREY, VERMILION, saved  # noqa: E402
from orchestrator.sweepfile.spec import Sweep, load_sweep  # noqa: E402

SWEEPS = ROOT / "sweeps" / "lr_knobs"
TABLES = ROOT / "results" / "reference" / "lr_knobs"
PICTURE = ROOT / "docs" / "pictures" / "knobs_at_lr_edge.png"
# The fields of the edge that are not at their default; a knob's base value is the one that it has there.
BASE = {"norm": None, "init": "fan_in", "warmup": 10, "duplicated_times": 1}
AVERAGED = {"merge_last": "merged_loss"}  # a knob that leaves training alone and has a loss of its own
PAGE = ROOT / "docs" / "knobs.md"
REPEAT_SEEDS = range(5, 15)
_BEYOND_DOUBT = 1.5  # factor of the edge from which other seeds are not asked
_SHOWN = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20)  # factors that are marked on the picture
_DIGITS = 4
_BETWEEN = "<br>"  # between the values of a knob, within a cell of the page's table


class Span(NamedTuple):
    """A number with the ends of its interval of 95 %; without ``at`` an end is a bound."""

    at: float | None
    low: float | None
    high: float | None

    @property
    def excludes_one(self) -> bool:
        """Whether the interval of a factor says that there is an effect."""
        return (self.low is not None and self.low > 1) or (self.high is not None and self.high < 1)


NOTHING = Span(None, None, None)


@dataclass(frozen=True, slots=True)
class Effect:
    """One value of a knob. Factors are over the base value; low and high are ends of intervals of 95 %.

    An end is None where there is none. Without an ``edge``, ``edge_low`` or ``edge_high`` is where the axis ends
    on which the value is stable, or not stable, throughout. ``best_lr`` is of the grid. Of ``REPEAT_SEEDS``,
    ``repeat_stable`` are stable at ``repeat_lr``, and ``repeat_base_stable`` with the base value.
    """

    value: str
    edge: float | None
    edge_low: float | None
    edge_high: float | None
    edge_factor: float | None
    edge_factor_low: float | None
    edge_factor_high: float | None
    best_lr: float | None
    loss: float | None
    loss_factor: float | None
    loss_factor_low: float | None
    loss_factor_high: float | None
    trials: int
    is_base: bool
    repeat_lr: float | None = None
    repeat_stable: int | None = None
    repeat_base_stable: int | None = None

    @property
    def moved(self) -> Span:
        """The factor of the edge."""
        return Span(self.edge_factor, self.edge_factor_low, self.edge_factor_high)


def main() -> None:
    """Write the tables of all sweeps that are trained, and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--repeat", action="store_true", help="print what to train with other seeds, and write nothing")
    arguments = parser.parse_args()
    results = arguments.results
    found = {}
    for path in sorted(SWEEPS.glob("*.yaml")):
        sweep = load_sweep(path)
        if (results / sweep.name / LEDGER).exists():
            found[path.stem] = effects(sweep, results / sweep.name / LEDGER)
    if arguments.repeat:
        print("\n".join(command for knob, rows in found.items() for command in repeating(knob, rows)))
        return
    TABLES.mkdir(parents=True, exist_ok=True)
    for knob, rows in found.items():
        repeated = [with_repeat(row, results / repeat_name(knob, row) / LEDGER) for row in rows]
        write_table(TABLES / f"{knob}.csv", repeated)
    found = {path.stem: read_table(path) for path in sorted(TABLES.glob("*.csv"))}  # the page has the tables' digits
    PICTURE.write_bytes(saved(lambda: draw(found), "png", "curves"))
    PAGE.write_text(page_with(PAGE.read_text(), found))


def effects(sweep: Sweep, ledger_path: Path) -> list[Effect]:
    """What each value of the sweep's knob does, in the file's order."""
    knob = next(name for name in sweep.axis_names if name != "lr")
    values = next(axis.values for axis in sweep.axes if axis.name == knob)
    base = base_value(sweep, knob, values)
    with LedgerReader(ledger_path) as ledger:
        trials, surface = ledger.trials(), surface_map(maps_table.read_table(ledger), "lr", fills_grids=True)
    of_base = surface.row({knob: base})
    grid = {trial.cell["lr"] for trial in sweep.trials}
    base_losses = best_losses(trials, knob, base, grid)
    found = []
    for value in values:
        row, losses = surface.row({knob: value}), best_losses(trials, knob, value, grid)
        num = sum(trial.cell[knob] == value and trial.outcome is not None for trial in trials)
        is_base = value == base
        edge = edge_of(row, surface)
        moved = NOTHING if is_base else edge_factor(of_base, row, surface)
        ratio = NOTHING if is_base else loss_factor(base_losses, losses)
        found.append(
            Effect(
                value=format_value(value),
                edge=edge.at,
                edge_low=edge.low,
                edge_high=edge.high,
                edge_factor=moved.at,
                edge_factor_low=moved.low,
                edge_factor_high=moved.high,
                best_lr=losses[0] if losses else None,
                loss=median(losses[1].values()) if losses else None,
                loss_factor=ratio.at,
                loss_factor_low=ratio.low,
                loss_factor_high=ratio.high,
                trials=num,
                is_base=is_base,
            )
        )
    return found


def base_value(sweep: Sweep, knob: str, values: Iterable[Any]) -> Any:
    """The value that the knob has in the other sweeps."""
    defaults = {name: info.default for name, info in OBJECTIVES[sweep.objective.name].config_class.model_fields.items()}
    base = BASE.get(knob, defaults[knob])
    return next((value for value in values if value == base), next(iter(values)))


def edge_of(row: Row, surface: SurfaceMap) -> Span:
    """The lowest edge of a row above which it is not stable, with its interval.

    Where the fit does not cross the level, the end of the axis is a bound, or that of the stretch in which it may.
    """
    crossed = next((edge for edge in row.edges if edge.at is not None and edge.is_stable_below), None)
    if crossed is not None:
        return Span(crossed.at, crossed.low, crossed.high)
    doubt = row.edges[0] if row.edges else None
    lowest, highest = surface.along.ends or (surface.along.values[0], surface.along.values[-1])
    if (row.p_stable or 0.0) > surface.level:
        return Span(None, doubt.low if doubt else float(highest), None)
    return Span(None, None, doubt.high if doubt else float(lowest))


def edge_factor(base: Row, row: Row, surface: SurfaceMap) -> Span:
    """How far the edge has moved from that of the base; a bound where only one of them is known."""
    shift = row_shift(base, row, surface.along)
    if shift.factor is not None:
        return Span(shift.factor, *factor_ends(base.edges[0], row.edges[0]))
    _, base_low, base_high = edge_of(base, surface)
    _, low, high = edge_of(row, surface)
    return Span(
        None,
        low / base_high if low is not None and base_high is not None else None,
        high / base_low if high is not None and base_low is not None else None,
    )


def factor_ends(first: Edge, new: Edge) -> tuple[float | None, float | None]:
    """The interval of the factor between two fitted edges, whose errors are taken as independent; None for no end.

    Each is taken as normal on either side, as wide as the interval there: the formula of G. Y. Zou and A. Donner, Stat.
    Med. 27 (2008) 1693, for logarithms of values.
    """
    (a, a_low, a_high), (b, b_low, b_high) = (
        [None if value is None else math.log(value) for value in (edge.at, edge.low, edge.high)]
        for edge in (first, new)
    )
    assert a is not None
    assert b is not None
    low = None if a_high is None or b_low is None else math.exp(b - a - math.hypot(b - b_low, a_high - a))
    high = None if a_low is None or b_high is None else math.exp(b - a + math.hypot(b_high - b, a - a_low))
    return low, high


def best_losses(
    trials: Sequence[TrialResult], knob: str, value: Any, grid: Iterable[float]
) -> tuple[float, dict[int, float]] | None:
    """The learning rate of the lowest median loss on held-out data, and the loss of each seed there.

    A trial that is lost has no loss of held-out data, and counts as infinite. A knob that averages weights has their
    loss.
    """
    losses: dict[float, dict[int, float]] = {lr: {} for lr in grid}
    for trial in trials:
        if trial.cell[knob] == value and trial.cell["lr"] in losses and trial.outcome is not None:
            averaged = getattr(trial, AVERAGED[knob]) if knob in AVERAGED else None
            loss = trial.validation_loss if averaged is None else averaged
            lost = trial.outcome == "diverged" or loss is None
            losses[trial.cell["lr"]][trial.seed] = math.inf if lost else float(loss or math.inf)
    medians = {lr: median(of_seed.values()) for lr, of_seed in losses.items() if of_seed}
    if not medians or math.isinf(min(medians.values())):
        return None
    best = min(medians, key=lambda lr: medians[lr])
    return best, losses[best]


def loss_factor(base: tuple[float, dict[int, float]] | None, other: tuple[float, dict[int, float]] | None) -> Span:
    """The geometric mean over seeds of the losses' quotients, with Student's interval of their logarithms."""
    if base is None or other is None:
        return NOTHING
    shared = [seed for seed in base[1] if seed in other[1] and math.isfinite(base[1][seed] + other[1][seed])]
    logs = [math.log(other[1][seed] / base[1][seed]) for seed in shared]
    if len(logs) < 2:
        return NOTHING
    half = student.ppf(0.5 + CONFIDENCE / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Span(math.exp(fmean(logs)), math.exp(fmean(logs) - half), math.exp(fmean(logs) + half))


def repeating(knob: str, rows: Sequence[Effect]) -> list[str]:
    """The commands that train other seeds of the values whose edge has moved, but by less than ``_BEYOND_DOUBT``."""
    (base,) = (row for row in rows if row.is_base)
    axis = next(name for name in load_sweep(SWEEPS / f"{knob}.yaml").axis_names if name != "lr")
    commands = []
    for row in rows:
        if row.edge is None or base.edge is None or not row.moved.excludes_one:
            continue
        if not 1 / _BEYOND_DOUBT < row.edge / base.edge < _BEYOND_DOUBT:
            continue
        lr = f"{math.sqrt(row.edge * base.edge):.2g}"
        commands.append(
            f"run {SWEEPS.relative_to(ROOT)}/{knob}.yaml --name {repeat_name(knob, row)} --axis lr=values:{lr}"
            f" --axis {axis}=values:{base.value},{row.value} --seeds {','.join(map(str, REPEAT_SEEDS))}"
        )
    return commands


def repeat_name(knob: str, row: Effect) -> str:
    """The name of the sweep with other seeds of a value."""
    return f"lr_repeat_{knob}_{re.sub('[^a-z0-9]', '_', row.value.lower())}"


def with_repeat(row: Effect, ledger_path: Path) -> Effect:
    """The row with the outcomes of other seeds, where they are trained."""
    if not ledger_path.exists():
        return row
    with LedgerReader(ledger_path) as ledger:
        trials = [trial for trial in ledger.trials() if trial.outcome is not None]
    stable = [trial for trial in trials if trial.outcome == "stable"]
    knob = next(name for name in trials[0].cell if name != "lr")
    of_value = sum(format_value(trial.cell[knob]) == row.value for trial in stable)
    return replace(
        row,
        repeat_lr=float(trials[0].cell["lr"]),
        repeat_stable=of_value,
        repeat_base_stable=len(stable) - of_value,
    )


def write_table(path: Path, rows: Sequence[Effect]) -> None:
    """A row for each value, with as many digits as it can bear."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Effect)])
        for row in rows:
            writer.writerow([_cell(value) for value in asdict(row).values()])


def read_table(path: Path) -> list[Effect]:
    """The rows of a table that ``write_table`` wrote."""

    def parsed(name: str, text: str) -> Any:
        if name in ("value", "is_base"):
            return text if name == "value" else text == "True"
        if not text:
            return None
        return int(text) if name in ("trials", "repeat_stable", "repeat_base_stable") else float(text)

    with path.open() as file:
        return [Effect(**{name: parsed(name, text) for name, text in row.items()}) for row in csv.DictReader(file)]


def page_with(page: str, found: Mapping[str, Sequence[Effect]]) -> str:
    """The page with the measured cells of each knob's row, which are all but the first and the last."""
    for knob, rows in found.items():
        row = re.compile(rf"^(\| \[{knob}\]\(#[^)]*\)) \|[^|]*\|[^|]*\|[^|]*\|[^|]*\| (?=[^|]*\|$)", re.MULTILINE)
        cells = " | ".join(cells_of(rows)).replace("\\", r"\\")
        page = row.sub(rf"\g<1> | {cells} | ", page)
    return page


def cells_of(rows: Sequence[Effect]) -> tuple[str, str, str, str]:
    """The values of a knob, the factors of the edge, the outcomes of other seeds and the factors of the loss."""
    others = [row for row in rows if not row.is_base]
    columns = (
        [row.value for row in others],
        [factor_text(row.moved) for row in others],
        [repeat_text(row) for row in others],
        [loss_text(Span(row.loss_factor, row.loss_factor_low, row.loss_factor_high)) for row in others],
    )
    values, edges, repeats, losses = (_BETWEEN.join(column) for column in columns)
    return values, edges, repeats if any(row.repeat_lr is not None for row in others) else "-", losses


def repeat_text(row: Effect) -> str:
    """How many of the other seeds are stable, and how many of the base value's; in bold where the two differ."""
    if row.repeat_lr is None or row.repeat_stable is None or row.repeat_base_stable is None:
        return "-"
    text = f"{row.repeat_stable}, base {row.repeat_base_stable}, at {row.repeat_lr:g}"
    counts = [[stable, len(REPEAT_SEEDS) - stable] for stable in (row.repeat_stable, row.repeat_base_stable)]
    return f"**{text}**" if fisher_exact(counts).pvalue < 1 - CONFIDENCE else text


def factor_text(factor: Span) -> str:
    """A factor with its interval, or a bound; in bold where the interval excludes 1."""
    at, low, high = factor
    if at is not None:
        ends = ", ".join("open" if end is None else f"{end:.2f}" for end in (low, high))
        text = f"{at:.2f} [{ends}]"
    else:
        text = f"> {low:.2f}" if low is not None else f"< {high:.2f}" if high is not None else "not known"
    return f"**{text}**" if factor.excludes_one else text


def loss_text(factor: Span) -> str:
    """A factor of the loss, whose interval only the table of numbers has; in bold where it excludes 1."""
    if factor.at is None:
        return "not known"
    return f"**{factor.at:.2f}**" if factor.excludes_one else f"{factor.at:.2f}"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else str(value)


def draw(found: Mapping[str, Sequence[Effect]]) -> Figure:
    """The factors of the edge of all values of all knobs, sorted, with their intervals; an arrow is a bound."""
    named = [(f"{knob} {row.value}", row) for knob, rows in found.items() for row in rows if not row.is_base]
    placed = sorted(
        ((place, name, row) for name, row in named if (place := _place(row)) is not None), key=lambda drawn: drawn[:2]
    )
    figure = Figure(figsize=(7.2, 0.8 + 0.17 * len(placed)), layout="constrained")
    axes = figure.subplots()
    for y, (place, _, row) in enumerate(placed):
        low, high = row.edge_factor_low, row.edge_factor_high
        colour = (BLUE if place > 1 else VERMILION) if row.moved.excludes_one else GREY
        if row.edge_factor is None:
            axes.plot(place, y, ">" if low is not None else "<", color=colour, markersize=5)
            continue
        ends = (low or _SHOWN[0], high or _SHOWN[-1])
        axes.plot(ends, [y, y], color=colour, linewidth=1.4)
        axes.plot(place, y, "o", color=colour, markersize=4)
    axes.axvline(1, color="black", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks(_SHOWN, [f"{factor:g}" for factor in _SHOWN])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(placed)), [name for _, name, _ in placed], fontsize=7)
    axes.set_ylim(-0.8, len(placed) - 0.2)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel("edge of the learning rate, as a factor of that of the base value")
    return figure


def _place(row: Effect) -> float | None:
    """Where a value is drawn: at its factor, or at the bound."""
    places = (row.edge_factor, row.edge_factor_low, row.edge_factor_high)
    return next((place for place in places if place is not None), None)


if __name__ == "__main__":
    main()
