"""An MLP with layer norms, which somebody wrote as a packed objective, under SGD over learning rate and weight decay.

Four explanations of its spikes are rivals: norms that weight decay shrinks, a rate that is too high for the curvature,
growth of the head's logits, and rounding. Forks without each tell them apart; nothing is named where nothing spikes.
"""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.proofs.plan import key_of
from orchestrator.causes.proofs.training import plan_for, read_proofs, train_proofs
from orchestrator.causes.remedies.forking import fork_sweep
from orchestrator.causes.remedies.remedy import Fork, own_interventions
from orchestrator.causes.remedies.request import parse_remedies
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import load_sweep

MLP = """
import torch
import torch.nn.functional as F

from objectives.base import Objective, TrainingConfig
from objectives.training.packed import PackedTrainer

POINTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(7))


class NormedMlpConfig(TrainingConfig):
    'An MLP with layer norms that tells which of four numbers is the largest, on 64 points.'


def loss(weights, points):
    hidden = points
    for name in ("first", "second"):
        hidden = torch.relu(F.layer_norm(hidden @ weights[name], (16,)) * weights[f"{name}_gain"])
    return F.cross_entropy(hidden @ weights["head"], points[:, :4].argmax(1))


class NormedMlpTrainer(PackedTrainer):
    groups = {"first": "input", "second": "hidden", "first_gain": "norm", "second_gain": "norm", "head": "head"}
    takes_float64 = True

    def initial_weights(self, seed):
        generator = torch.Generator().manual_seed(seed)
        sizes = {"first": (8, 16), "second": (16, 16), "head": (16, 4)}
        weights = {name: torch.randn(*size, generator=generator) / size[0] ** 0.5 for name, size in sizes.items()}
        return {**weights, "first_gain": torch.ones(16), "second_gain": torch.ones(16)}

    def losses(self):
        points = POINTS.to(self.weights["head"].dtype)
        return self.of_each_member(loss, points.expand(self.num_members, -1, -1))


start = NormedMlpTrainer
OBJECTIVE = Objective(
    "normed_mlp", NormedMlpConfig, "normed_mlp", spike_rise=0.1, can_compile=False, has_logits=True,
    has_held_out=False, is_full_batch=lambda settings: True,
)
"""
SWEEP = """
name: mlp
objective: {packed: "normed_mlp:OBJECTIVE"}
steps: 700
seeds: [0, 1]
axes:
  lr: {values: [0.1, 0.3]}
  weight_decay: {values: [0.0, 0.01]}
fixed: {optimizer: sgd, beta1: 0.0, warmup: 10}
telemetry: {curvature: 20}
tracking: {enabled: false}
"""
# What the authors of such a table do by hand, from step 250 on: the spikes come at 396 and 572.
BY_HAND = {
    "norm=hold": "stable",
    "input.weight_decay=0+hidden.weight_decay=0": "stable",
    "precision=float64": "spiked",
    "freeze=head": "spiked",
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained sweep, next to the module of its objective."""
    results = tmp_path_factory.mktemp("mlp")
    (results / "normed_mlp.py").write_text(MLP)
    (results / "mlp.yaml").write_text(SWEEP)
    assert show(run_lines(load_sweep(results / "mlp.yaml", allow_import=True), results, "inline")) == 0
    return results / "mlp"


def test_forks_confirm_that_norms_collapsed_and_refute_the_head_and_nothing_is_named_where_nothing_spikes(
    folder: Path,
) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        named = {(*row.cell.values(), row.seed): examine(ledger, row, "every one", rows).cause for row in rows}
        spiked = [row for row in rows if row.outcome != "stable"]
        assert {tuple(row.cell.values()) for row in spiked} == {(0.3, 0.01)}
        assert {key for key, cause in named.items() if cause is not None} == {(0.3, 0.01, 0), (0.3, 0.01, 1)}
        for row in spiked:
            diagnosis = examine(ledger, row, "it spikes", rows)
            plan = plan_for(folder, diagnosis, 6, allow_import=True)
            train_proofs(folder, diagnosis, plan, InlineExecutor, [], allow_import=True)
            found = read_proofs(ledger, diagnosis, plan)
            assert (found.named, found.confirmed, found.refuted) == (
                "norm_collapse",
                ("norm_collapse",),
                ("logit_growth",),
            )
            assert found.replicates_nudged
            assert not found.replicates_alike


def test_each_intervention_by_hand_tells_what_the_forks_tell(folder: Path, tmp_path: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        (trial,) = (row for row in ledger.trials() if row.outcome != "stable" and row.seed == 1)
    forks = {text: Fork(parse_remedies([text])[0], 250, 0) for text in BY_HAND}
    sweep = fork_sweep(folder, trial, list(forks.values()), allow_import=True)
    run_sweep(sweep, tmp_path / "forks", InlineExecutor)
    with LedgerReader(tmp_path / "forks" / LEDGER) as ledger:
        outcomes = {key_of(own_interventions(row)): row.outcome for row in ledger.trials()}
    assert {text: outcomes[key_of(fork.interventions())] for text, fork in forks.items()} == BY_HAND
