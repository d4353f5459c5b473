"""Forks confirm planted causes, and none where chance alone makes runs fail."""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.proofs.results import Proofs
from orchestrator.causes.proofs.training import plan_for, read_proofs, train_proofs
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
# A loss that sees the direction of its weights alone, as if a norm followed: its curvature grows as 1 / norm^2.
RAYLEIGH = """
import torch

from objectives.base import Objective, TrainingConfig
from objectives.training.packed import PackedTrainer


class RayleighConfig(TrainingConfig):
    'The Rayleigh quotient of a diagonal matrix, with a little noise.'

    norm: str = "the vector's own"


class RayleighTrainer(PackedTrainer):
    groups = {"w": "sphere"}
    takes_float64 = True

    def initial_weights(self, seed):
        w = torch.randn(32, generator=torch.Generator().manual_seed(seed))
        return {"w": w / w.norm()}

    def losses(self):
        unit_Kn = self.weights["w"] / self.weights["w"].norm(dim=1, keepdim=True)
        noise_Kn = self.draw(lambda generator: torch.randn(32, generator=generator))
        return (unit_Kn.square() * torch.linspace(1, 10, 32) + 1e-5 * noise_Kn * unit_Kn).sum(1)


start = RayleighTrainer
OBJECTIVE = Objective("rayleigh", RayleighConfig, "rayleigh", spike_rise=0.3, can_compile=False, has_held_out=False)
"""
SHRINKING = """
name: shrinking
objective: {packed: "rayleigh:OBJECTIVE"}
steps: 400
seeds: [0, 1]
axes: {weight_decay: {values: [0.0, 0.5]}}
fixed: {lr: 0.02, optimizer: sgd, beta1: 0.0}
telemetry: {curvature: 10}
tracking: {enabled: false}
"""
CONFIRMED = {
    "no_warmup": "warmup_too_short",
    "short_memory": "short_memory",
    "poisoned_batch": "bad_batch",
    "absorption": "absorption",
    "half_precision": "half_precision_overflow",
    "frozen_embedding": "layers_out_of_step",
    "sharpening": "sharpening",
}


def proofs_of(sweep: Sweep, results: Path, most: int, replicates: int = 8) -> list[Proofs]:
    """What forks prove about the first unstable trials of a sweep that is trained here."""
    assert show(run_lines(sweep, results, "inline")) == 0
    folder, found = results / sweep.name, []
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        for row in [row for row in rows if row.outcome != "stable"][:most]:
            diagnosis = examine(ledger, row, "every one", rows)
            plan = plan_for(folder, diagnosis, replicates, allow_import=True)
            train_proofs(folder, diagnosis, plan, InlineExecutor, [], allow_import=True)
            found.append(read_proofs(ledger, diagnosis, plan))
    assert found, "nothing became unstable"
    return found


@pytest.mark.slow
def test_chance_failures_confirm_a_cause_in_at_most_five_of_a_hundred_runs(tmp_path: Path) -> None:
    file = tmp_path / "chance.yaml"
    file.write_text(CHANCE.format(seeds=", ".join(map(str, range(400)))))
    found = proofs_of(load_sweep(file), tmp_path, 100)
    assert len(found) == 100
    assert sum(bool(proofs.confirmed) for proofs in found) <= 5
    assert all(proofs.control_repeats and not proofs.num_missing for proofs in found if proofs.mechanisms)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIRMED)
def test_forks_confirm_a_planted_cause_and_no_other(name: str, tmp_path: Path) -> None:
    (proofs,) = proofs_of(load_sweep(CAUSES / f"{name}.yaml"), tmp_path, 1)
    assert proofs.named == CONFIRMED[name]
    assert proofs.confirmed == (CONFIRMED[name],)
    assert not proofs.is_chance
    assert proofs.control_repeats


@pytest.mark.slow
def test_forks_confirm_that_the_norms_of_a_custom_packed_objective_collapse(tmp_path: Path) -> None:
    """The fork that keeps them is stable, and so is one at a lower rate, which proves nothing next to it."""
    (tmp_path / "rayleigh.py").write_text(RAYLEIGH)
    (tmp_path / "shrinking.yaml").write_text(SHRINKING)
    found = proofs_of(load_sweep(tmp_path / "shrinking.yaml", allow_import=True), tmp_path, 2)
    assert {proofs.trial.cell["weight_decay"] for proofs in found} == {0.5}
    for proofs in found:
        assert (proofs.named, proofs.confirmed) == ("norm_collapse", ("norm_collapse",))
        assert {proof.name: proof.spiked for proof in proofs.mechanisms} == {"norm_collapse": 0, "sharpening": 0}
        assert proofs.control_repeats
