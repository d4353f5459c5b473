"""What forks say of the causes in sweeps: how many of the named ones they confirm, and which they refute.

``python -m benchmarks.causes RESULTS NAME ...`` reads what ``sweep cause NAME --each-cell`` stored in the folders
RESULTS/NAME. It prints a row for each unstable cell that was forked as CSV, and then what they add up to.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

from orchestrator.base.files import LEDGER
from orchestrator.causes.proofs.training import stored_proofs
from orchestrator.causes.remedies.reading import unstable_region
from orchestrator.ledger.reader import LedgerReader

Standing = Literal["confirmed", "refuted", "open", "chance", "another", "unnamed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellCause:
    """What forks say of one unstable cell; counts are forks without and with the named mechanism, and failures."""

    sweep: str
    cell: str
    trial_id: str
    outcome: str | None
    onset_step: int | None
    named: str
    standing: Standing
    confirmed: str
    refuted: str
    tried: int | None = None
    failed: int | None = None
    tried_with: int | None = None
    failed_with: int | None = None
    p_value: float | None = None
    num_forks: int = 0


@dataclass(frozen=True, slots=True)
class Total:
    """The cells of one sweep, or of several."""

    num_unstable: int
    cells: Sequence[CellCause]

    def of(self, standing: Standing) -> int:
        """How many cells have this standing."""
        return sum(cell.standing == standing for cell in self.cells)

    @property
    def num_judged(self) -> int:
        """Cells with a named cause that forks confirm, refute or leave open; chance failures have no cause."""
        return sum(cell.standing not in ("chance", "unnamed") for cell in self.cells)


def standing(answer: Mapping[str, Any]) -> Standing:
    """What the forks of one trial say of the cause that its evidence names."""
    named = answer["named"]
    if named is None:
        return "unnamed"
    if named in answer["confirmed"]:
        return "confirmed"
    if named in answer["refuted"]:
        return "refuted"
    if answer["confirmed"]:
        return "another"
    return "chance" if answer["is_chance"] else "open"


def read_sweep(folder: Path) -> Total:
    """The unstable cells of a sweep and what forks say of those that were forked, one trial of each."""
    with LedgerReader(folder / LEDGER) as ledger:
        region = unstable_region(ledger)
        rows = ledger.trials()
    found = []
    for typical in region.trials:
        of_cell = sorted((row for row in rows if row.cell == typical.cell), key=lambda row: row != typical)
        answers = ((row, stored_proofs(folder, row.trial_id)) for row in of_cell)
        row, answer = next(((row, answer) for row, answer in answers if answer), (typical, None))
        if answer is not None:
            own = next((each for each in answer["mechanisms"] if each["name"] == answer["named"]), {})
            cause = CellCause(
                sweep=region.sweep,
                cell=row.cell.name,
                trial_id=row.trial_id,
                outcome=row.ending,
                onset_step=row.onset_step,
                named=answer["named"] or "",
                standing=standing(answer),
                confirmed="; ".join(answer["confirmed"]),
                refuted="; ".join(answer["refuted"]),
                tried=own.get("tried"),
                failed=own.get("spiked"),
                tried_with=own.get("control_tried"),
                failed_with=own.get("control_spiked"),
                p_value=own.get("p_value"),
                num_forks=answer["num_forks"],
            )
            found.append(cause)
    return Total(len(region.trials), found)


def write(cells: Iterable[CellCause], file: TextIO) -> None:
    """Write the cells as CSV."""
    table = csv.writer(file, lineterminator="\n")
    names = [field.name for field in fields(CellCause)]
    table.writerow(names)
    table.writerows([getattr(cell, name) for name in names] for cell in cells)


def summary(totals: Mapping[str, Total]) -> Iterator[str]:
    """Lines with the number of cells of each standing, for each sweep."""
    for name, total in totals.items():
        counts = ", ".join(f"{total.of(each)} {each}" for each in get_args(Standing) if total.of(each))
        share = f", {total.of('confirmed') / total.num_judged:.0%} of the named confirmed" if total.num_judged else ""
        yield f"{name}: {len(total.cells)} of {total.num_unstable} unstable cells forked: {counts or 'none'}{share}"


def main() -> None:
    """Print the table and what it adds up to."""
    results, *names = sys.argv[1:]
    totals = {name: read_sweep(Path(results) / name) for name in names}
    cells = [cell for total in totals.values() for cell in total.cells]
    write(cells, sys.stdout)
    everything = Total(sum(total.num_unstable for total in totals.values()), cells)
    print(*summary({**totals, "all": everything}), sep="\n", file=sys.stderr)
    for cell in (cell for cell in cells if cell.standing == "refuted"):
        print(f"refuted: {cell.named} in {cell.sweep} {cell.cell}", file=sys.stderr)


if __name__ == "__main__":
    main()
