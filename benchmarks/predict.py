"""How well smaller sizes predict the edge and the best rate of a larger one, on a table of finished runs.

    python benchmarks/predict.py FILE [--leave-out WIDTH | --each-grid] [--assume EXPONENT | --free] [--surface]

FILE is a CSV with the columns width, depth, tokens, batch, lr and smooth_loss, such as the table of Step Law (arXiv
2503.04715); a loss above 5 is a run that diverged. It is imported as a sweep with axes lr, batch, width, depth and
tokens. The runs of the largest width, or of WIDTH and above, or of one grid after another, are predicted from the
others, row by row: a row is one size, token count and batch. Where widths or depths span less than a factor of 4,
`sweep predict` refuses them without an exponent, and the one that it proposes is assumed here, unless --free says to
fit it nevertheless. Two naive rules stand next to the law: no scaling (the edge of the nearest row of the largest
smaller size), and one constant (the mean edge of all other rows). With --surface the surface of P(stable), over all
axes but the depth, is read at the target, too, where `sweep` itself does not read it.

Regret is the loss that a rate leaves on the table: first against the best single run of its row, which may be a lucky
one, then against a cubic in log rate through the runs within 0.06 of it, where luck averages out.

The last lines say how the best rate of the whole table goes with batch and tokens, and where the batch saturates.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.polynomial import Polynomial
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator.base.files import LEDGER  # noqa: E402
from orchestrator.cli.app import app  # noqa: E402
from orchestrator.ledger.reader import LedgerReader  # noqa: E402
from orchestrator.maps.ladder import Ladder, Size, log_size, read_ladder  # noqa: E402
from orchestrator.maps.law import Law  # noqa: E402
from orchestrator.maps.optimum import Optimum  # noqa: E402
from orchestrator.maps.prediction import carries, usual_assumption, usual_form  # noqa: E402
from orchestrator.maps.surface_map import surface_map  # noqa: E402
from orchestrator.maps.table import SweepTable, read_table  # noqa: E402

SIZES = ("width", "depth", "tokens", "batch")
DIVERGED_ABOVE = 5
NEAR = 1.4  # the factor within which most edges should lie
SMOOTHED, FEWEST = 0.06, 6  # loss above the best, and runs, of a cubic over log rate


@dataclass(frozen=True)
class Row:
    """One row that was predicted: logs of the edge, of its bracket and of the recommended rate, and what they cost."""

    size: Size
    at: float
    low: float
    high: float
    copied: float
    constant: float
    regret: float | None
    smooth_regret: float | None
    copied_regret: float | None

    @property
    def meets(self) -> bool:
        """Whether the interval meets the bracket, which is open where no run diverged."""
        below, above = self.size.low, self.size.high
        return (above is None or self.low <= above) and (below is None or self.high >= below)


def smooth_regret(optimum: Optimum, log_rate: float) -> float | None:
    """What a rate costs on a cubic through the runs near the best; None with too few, or beyond them."""
    most = min(optimum.costs) + SMOOTHED
    near = [(rate, cost) for rate, cost in zip(optimum.rates, optimum.costs, strict=True) if cost < most]
    rates, costs = zip(*near, strict=True)
    if len(near) < FEWEST or not rates[0] <= log_rate <= rates[-1]:
        return None
    cubic = Polynomial.fit(rates, costs, 3)
    return float(cubic(log_rate) - cubic(np.linspace(rates[0], rates[-1], 400)).min())


def rounded(path: Path, folder: Path) -> Path:
    """The table with the axes alone, and rates that are rounded in one way: 0.00276 and 0.002762 are one value."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    columns = ("lr", *SIZES, "smooth_loss")
    if missing := [name for name in columns if not rows or name not in rows[0]]:
        raise SystemExit(f"{path}: no rows, or no column {', '.join(missing)}")
    target = folder / "table.csv"
    with target.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([f"{float(row['lr']):.3g}", *(row[name] for name in columns[1:])] for row in rows)
    return target


def imported(path: Path, folder: Path) -> Ladder:
    """The table as a sweep, read as sizes."""
    return read_ladder(imported_table(path, folder), SIZES, "lr")


def imported_table(path: Path, folder: Path) -> SweepTable:
    """The table as a sweep."""
    axes = [part for name in ("lr", *SIZES) for part in ("--axis", f"{name}=log")]
    arguments = ["import", str(rounded(path, folder)), "--name", "table", *axes, "--outcome", "smooth_loss"]
    done = CliRunner().invoke(app, [*arguments, "--diverged-above", str(DIVERGED_ABOVE), "--results", str(folder)])
    if done.exit_code:
        raise SystemExit(done.output or str(done.exception))
    with LedgerReader(folder / "table" / LEDGER) as ledger:
        return read_table(ledger)


def predicted(ladder: Ladder, from_width: float, assume: float | None = None, is_free: bool = False) -> list[Row]:
    """The rows of ``from_width`` and above, from the others; ``is_free`` assumes no exponent."""
    return _of_others(ladder, lambda size: size.setting["width"] >= from_width, assume, is_free)


def each_grid(ladder: Ladder, assume: float | None = None, is_free: bool = False) -> list[Row]:
    """The rows of each width, depth and token count, from those of all others."""

    def grid(size: Size) -> tuple[float, ...]:
        return tuple(size.setting[name] for name in SIZES[:-1])

    grids = sorted({grid(size) for size in ladder.sizes})
    return [row for one in grids for row in _of_others(ladder, lambda size: grid(size) == one, assume, is_free)]  # noqa: B023


def _of_others(ladder: Ladder, is_target: Callable[[Size], bool], assume: float | None, is_free: bool) -> list[Row]:
    rest = replace(ladder, sizes=tuple(size for size in ladder.sizes if not is_target(size)))
    if not rest.sizes:
        raise SystemExit("nothing is left to predict from: give --leave-out a larger width")
    constant = fmean(size.edge_or_bound for size in rest.sizes)
    top = rest.values("width")[-1]
    largest = [size for size in rest.sizes if size.setting["width"] == top]
    laws: dict[tuple[tuple[int, ...], ...], tuple[Law, Law | None]] = {}
    found = []
    for size in filter(is_target, ladder.sizes):
        assumed = [name for name in SIZES if not carries(rest, name, size.setting[name]) and not is_free]
        exponent = usual_assumption(max(1, len(assumed))) if assume is None else assume
        form = usual_form(rest, size.setting, assumed, exponent)
        key = (form.shared, form.bent, tuple(map(SIZES.index, assumed)))
        if key not in laws:
            laws[key] = form.edge_law(rest), form.best_law(rest)
        edges, best = laws[key]
        if best is None:
            raise SystemExit("no row shows a best rate")
        place = log_size(size.setting, SIZES)
        near = min(largest, key=lambda other: abs(log_size(other.setting, SIZES) - place).sum())
        at, low, high = edges.interval(place)
        rate = min(best.interval(place)[0], low)
        regret = None if size.optimum is None else size.optimum.regret(rate)
        smooth = None if size.optimum is None else smooth_regret(size.optimum, rate)
        copied = None if size.optimum is None or near.optimum is None else size.optimum.regret(near.optimum.centre)
        found.append(Row(size, at, low, high, near.edge_or_bound, constant, regret, smooth, copied))
    return found


def surface_factors(table: SweepTable, rows: list[Row]) -> list[float]:
    """How far a surface that is fitted to smaller widths is from the edges of ``rows``, of those where it has one."""
    from_width = min(row.size.setting["width"] for row in rows)
    smaller = tuple(trial for trial in table.trials if trial.cell["width"] < from_width)
    axes = tuple(axis for axis in table.axes if axis.name != "depth")  # it goes with the width
    trials = tuple(replace(trial, cell=trial.cell.without({"depth"})) for trial in smaller)
    surface = surface_map(replace(table, axes=axes, trials=trials), "lr", fills_grids=True)
    whole = replace(surface, reach=surface.axes)
    found = []
    for row in rows:
        edges = whole.row({axis.name: float(row.size.setting[axis.name]) for axis in axes if axis.name != "lr"}).edges
        if row.size.edge is not None and edges and edges[0].at is not None:
            found.append(math.exp(abs(math.log(edges[0].at) - row.size.edge)))
    return found


def factors(rows: list[Row], rule: str) -> list[float]:
    """How far the edges of a rule are from the middles of the brackets, among rows that have one."""
    return [math.exp(abs(getattr(row, rule) - row.size.edge)) for row in rows if row.size.edge is not None]


def factors_text(name: str, found: list[float]) -> str:
    """The median of factors, and how many are near."""
    share = sum(factor <= NEAR for factor in found) / len(found)
    return f"{name}: factor {median(found):.3f} in the median, {100 * share:.0f} % within {NEAR}"


def report(rows: list[Row]) -> list[str]:
    """The figures, one a line."""
    lines = [f"{len(rows)} rows, {sum(row.size.edge is not None for row in rows)} with a bracket"]
    for rule, name in (("at", "the law"), ("copied", "no scaling"), ("constant", "one constant")):
        lines.append(factors_text(name, factors(rows, rule)))
    meets = 100 * sum(row.meets for row in rows) / len(rows)
    width = median(math.exp(row.high - row.low) for row in rows)
    lines.append(f"the interval meets the bracket in {meets:.0f} % of rows, and is a factor {width:.2f} wide")
    for key, name in (
        ("regret", "rate of the law"),
        ("smooth_regret", "rate of the law, against a cubic"),
        ("copied_regret", "rate of the nearest row"),
    ):
        known = [value for row in rows if (value := getattr(row, key)) is not None]
        if known:
            lines.append(f"regret of the {name}: {median(known):.4f} in the median, {max(known):.4f} at worst")
    return lines


@dataclass(frozen=True)
class BestRate:
    """Powers of batch and tokens with which the best rate goes, at the least and the most of both, of one width.

    ``saturates`` are the batches above which it is flat, there and there, and ``power`` that of tokens between them.
    """

    at_least: tuple[float, float]
    at_most: tuple[float, float]
    saturates: tuple[float, float] | None
    power: float | None

    def lines(self) -> list[str]:
        """The powers, one pair a line."""
        pairs = (("least", self.at_least), ("most", self.at_most))
        lines = [
            f"at the {name} batch and tokens the best rate goes as batch^{batch:.2f} and tokens^{tokens:.2f}"
            for name, (batch, tokens) in pairs
        ]
        if self.saturates is None:
            return lines
        low, high = self.saturates
        return [*lines, f"it is flat above a batch of {low:.0f} to {high:.0f}, which goes as tokens^{self.power:.2f}"]


def best_rate(ladder: Ladder) -> BestRate | None:
    """Return how the best rate goes over the smallest width; None if no row shows one."""
    width, *_ = ladder.values("width")
    own = [size for size in ladder.sizes if size.setting["width"] == width]
    least, most = (choose(own, key=_batch_and_tokens).setting for choose in (min, max))
    law = usual_form(ladder, least, (), None).best_law(ladder)
    if law is None:
        return None
    batch, tokens = SIZES.index("batch"), SIZES.index("tokens")
    places = [log_size(setting, SIZES) for setting in (least, most)]
    powers = [(law.exponent(batch, place)[0], law.exponent(tokens, place)[0]) for place in places]
    flat = [found[0] for place in places if (found := law.saturates_at(batch, place)) is not None]
    if len(flat) < len(places):
        return BestRate(powers[0], powers[1], None, None)
    power = (flat[1] - flat[0]) / (places[1] - places[0])[tokens]
    return BestRate(powers[0], powers[1], (math.exp(flat[0]), math.exp(flat[1])), power)


def _batch_and_tokens(size: Size) -> tuple[float, float]:
    return size.setting["batch"], size.setting["tokens"]


def main() -> None:
    """Predict the largest width from the others."""
    parser = argparse.ArgumentParser(description="predict the largest width of a table from the others")
    parser.add_argument("file", type=Path)
    parser.add_argument("--leave-out", type=float, metavar="WIDTH", help="predict this width and above")
    parser.add_argument("--each-grid", action="store_true", help="predict each width and token count from all others")
    parser.add_argument("--assume", type=float, metavar="EXPONENT", help="in place of what `sweep predict` proposes")
    parser.add_argument("--free", action="store_true", help="assume no exponent of width and depth")
    parser.add_argument("--surface", action="store_true", help="read a fitted surface beyond its trials, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = imported_table(arguments.file, Path(folder))
    ladder = read_ladder(table, SIZES, "lr")
    if arguments.each_grid:
        rows = each_grid(ladder, arguments.assume, arguments.free)
    else:
        from_width = arguments.leave_out or ladder.values("width")[-1]
        rows = predicted(ladder, from_width, arguments.assume, arguments.free)
    found = best_rate(ladder)
    print("\n".join([*report(rows), *(() if found is None else found.lines())]))
    if arguments.surface:
        print(factors_text("a surface beyond its trials", surface_factors(table, rows)))


if __name__ == "__main__":
    main()
