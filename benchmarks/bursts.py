"""Whether a burst of the gradient that raised v excludes the decay of v where it should.

``python -m benchmarks.bursts RESULTS NAME ...`` takes every trial of the sweeps in the folders RESULTS/NAME whose decay
of v the evidence supports with the limit ``INFLATED``, or would support without it. It forks each with v at rest and
with everything, trains what is missing, and prints a row for each trial as CSV and then counts. The limit is right if
forks refute what it excludes, and confirm what it leaves.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.diagnosis import Diagnosis, examine
from orchestrator.causes.mechanisms import limits
from orchestrator.causes.mechanisms.second_moment import preconditioner_decay
from orchestrator.causes.proofs.plan import Plan
from orchestrator.causes.proofs.training import plan_for, read_proofs, train_proofs
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader

REPLICATES = 6
DECAY = preconditioner_decay.key


@dataclass(frozen=True, slots=True)
class Decay:
    """A trial whose v had decayed, by all but the limit, and what became of forks without and with this decay."""

    sweep: str
    cell: str
    seed: int
    outcome: str | None
    onset_step: int | None
    by_limit: Literal["named", "supported", "excluded"]
    tried: int
    failed: int
    tried_with: int
    failed_with: int
    p_value: float | None
    verdict: str


@contextmanager
def without_limit() -> Iterator[None]:
    """Let no burst exclude a decay."""
    limit, limits.INFLATED = limits.INFLATED, math.inf
    try:
        yield
    finally:
        limits.INFLATED = limit


def supports(diagnosis: Diagnosis) -> bool:
    """Whether the evidence supports that v decayed."""
    return any(finding.mechanism == DECAY and finding.verdict == "supported" for finding in diagnosis.findings)


def tested(ledger: LedgerReader, row: TrialResult, rows: Sequence[TrialResult]) -> Decay | None:
    """The trial with its forks, trained where they are missing; None if v had not decayed."""
    with without_limit():
        before = examine(ledger, row, "every one", rows)
    if not supports(before):
        return None
    now, folder = examine(ledger, row, "every one", rows), ledger.path.parent
    plan = plan_for(folder, before, REPLICATES)
    plan = Plan(tuple(each for each in plan.experiments if each.mechanism == DECAY), ())
    train_proofs(folder, before, plan, InlineExecutor, [])
    (proof,) = read_proofs(ledger, before, plan).mechanisms
    is_named = now.cause is not None and now.cause.mechanism == DECAY
    return Decay(
        sweep=now.sweep,
        cell=row.cell.name,
        seed=row.seed,
        outcome=row.outcome,
        onset_step=now.evidence.onset,
        by_limit="named" if is_named else "supported" if supports(now) else "excluded",
        tried=proof.tried,
        failed=proof.spiked,
        tried_with=proof.control_tried,
        failed_with=proof.control_spiked,
        p_value=proof.p_value,
        verdict=proof.verdict,
    )


def decays(folder: Path) -> Iterator[Decay]:
    """Every trial of a sweep whose v had decayed, by all but the limit."""
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        for row in rows:
            if row.is_judged and row.outcome != "stable" and (found := tested(ledger, row, rows)) is not None:
                yield found


def main() -> None:
    """Print the table, a row as soon as it is there, and what it adds up to."""
    results, *names = sys.argv[1:]
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow([field.name for field in fields(Decay)])
    counts: Counter[tuple[str, str]] = Counter()
    for name in names:
        for decay in decays(Path(results) / name):
            table.writerow(list(asdict(decay).values()))
            sys.stdout.flush()
            counts[decay.by_limit, decay.verdict] += 1
    for (by_limit, verdict), number in sorted(counts.items()):
        print(f"{by_limit}: {number} {verdict}", file=sys.stderr)


if __name__ == "__main__":
    main()
