"""With weight decay the sharpness of an MLP may settle below 2 / lr, so an argument from 2 / lr alone fails there.

By Saether et al. (arXiv 2605.16622), on full batches without momentum. It depends on model and decay: of 2 / lr,
ReLU settles at 1.00 without decay, at 0.52 with 0.01 and at 0.46 with 0.03; tanh at 1.00 with 0.01 and 0.79 with 0.03.
"""

from pathlib import Path

import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import examine
from orchestrator.causes.mechanisms.mechanism import settles_below
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import show
from orchestrator.sweepfile.spec import load_sweep

MLP = """
import math

import torch

from objectives.base import Objective, TrainingConfig, structural
from objectives.training.packed import PackedTrainer

DRAW = torch.Generator().manual_seed(0)
POINTS = torch.randn(50, 20, generator=DRAW)
SIGNS = torch.sign(torch.randn(50, 1, generator=DRAW))


class SignsConfig(TrainingConfig):
    'An MLP that learns random signs of 50 points by heart.'

    is_tanh: bool = structural(False, "switch", "tanh in place of ReLU")


class SignsTrainer(PackedTrainer):
    groups = {"w0": "input", "w1": "hidden", "w2": "head"}

    def initial_weights(self, seed):
        generator = torch.Generator().manual_seed(seed)
        sizes = ((20, 32), (32, 32), (32, 1))
        return {f"w{i}": torch.randn(*size, generator=generator) / math.sqrt(size[0]) for i, size in enumerate(sizes)}

    def losses(self):
        act = torch.tanh if self.structure.is_tanh else torch.relu

        def loss(weights, points):
            return (act(act(points @ weights["w0"]) @ weights["w1"]) @ weights["w2"] - SIGNS).square().mean() / 2

        return self.of_each_member(loss, POINTS.expand(self.num_members, -1, -1))


start = SignsTrainer
OBJECTIVE = Objective(
    "signs", SignsConfig, "signs", spike_rise=2.0, can_compile=False, has_held_out=False,
    is_full_batch=lambda settings: True,
)
"""
SWEEP = """
name: signs
objective: {packed: "signs:OBJECTIVE"}
steps: 1500
seeds: [0]
axes:
  is_tanh: {values: [false, true]}
  weight_decay: {values: [0.0, 0.01, 0.03]}
fixed: {lr: 0.2, optimizer: sgd, beta1: 0.0}
telemetry: {curvature: 20}
tracking: {enabled: false}
"""


@pytest.mark.slow
def test_the_sharpness_settles_at_2_over_lr_without_decay_and_with_relu_far_below_it_with_decay(tmp_path: Path) -> None:
    (tmp_path / "signs.py").write_text(MLP)
    (tmp_path / "signs.yaml").write_text(SWEEP)
    assert show(run_lines(load_sweep(tmp_path / "signs.yaml", allow_import=True), tmp_path, "inline")) == 0
    settled, guarded = {}, {}
    with LedgerReader(tmp_path / "signs" / LEDGER) as ledger:
        rows = ledger.trials()
        for row in rows:
            evidence = examine(ledger, row, "every one", rows).evidence
            key = "tanh" if row.cell["is_tanh"] else "relu", row.cell["weight_decay"]
            settled[key] = evidence.threshold_ratio.between(1000, 1500).median()
            guarded[key] = settles_below(evidence) is not None
    assert settled["relu", 0.0] == pytest.approx(1.0, abs=0.05)
    assert settled["relu", 0.01] == pytest.approx(0.5, abs=0.1)
    assert settled["relu", 0.03] == pytest.approx(0.45, abs=0.1)
    assert settled["tanh", 0.01] == pytest.approx(1.0, abs=0.05), "so nothing follows from the decay alone"
    assert settled["tanh", 0.03] == pytest.approx(0.8, abs=0.1)
    assert guarded == {key: key[1] > 0 for key in settled}
