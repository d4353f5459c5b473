"""Forks confirm planted causes, and none where chance alone makes runs fail."""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.proofs.results import Proofs
from orchestrator.causes.proofs.training import plan_for, read_proofs, train_proofs
from orchestrator.causes.remedies.forking import objective_of
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import Sweep, load_sweep

CAUSES = Path(__file__).parents[2] / "sweeps/causes"
# Of two coordinates whose gradients are noise, three runs of ten leave their trend, each at a step of its own.
CHANCE = """
name: chance
objective: quadratic
steps: 120
seeds: [{seeds}]
fixed: {{dimension: 2, lr: 0.1, optimizer: adamw, beta2: 0.99, noise: 1.0}}
tracking: {{enabled: false}}
"""
CONFIRMED = {"no_warmup": "warmup_too_short", "short_memory": "short_memory", "poisoned_batch": "bad_batch"}


def proofs_of(sweep: Sweep, results: Path, most: int, replicates: int = 8) -> list[Proofs]:
    """What forks prove about the first unstable trials of a sweep that is trained here."""
    assert show(run_lines(sweep, results, "inline")) == 0
    folder, found = results / sweep.name, []
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        for row in [row for row in rows if row.outcome != "stable"][:most]:
            diagnosis = examine(ledger, row, "every one", rows)
            train_proofs(folder, diagnosis, plan_for(folder, diagnosis, replicates), InlineExecutor, [])
            found.append(read_proofs(ledger, diagnosis, objective_of(folder, row), replicates))
    assert found, "nothing became unstable"
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_chance_failures_confirm_a_cause_in_at_most_five_of_a_hundred_runs(tmp_path: Path) -> None:
    file = tmp_path / "chance.yaml"
    file.write_text(CHANCE.format(seeds=", ".join(map(str, range(400)))))
    found = proofs_of(load_sweep(file), tmp_path, 100)
    assert len(found) == 100
    assert sum(bool(proofs.confirmed) for proofs in found) <= 5
    assert all(proofs.control_repeats and not proofs.num_missing for proofs in found if proofs.mechanisms)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CONFIRMED)
def test_forks_confirm_a_planted_cause_and_no_other(name: str, tmp_path: Path) -> None:
    (proofs,) = proofs_of(load_sweep(CAUSES / f"{name}.yaml"), tmp_path, 1)
    assert proofs.named == CONFIRMED[name]
    assert proofs.confirmed == (CONFIRMED[name],)
    assert not proofs.is_chance
    assert proofs.control_repeats
