"""Spectral Alignment (Qiu et al., arXiv 2510.04202) of `gpt`, as a rival of the warning's readings.

    python -m benchmarks.spectral_alignment RESULTS

RESULTS holds the sweeps of sweeps/warning, run with `sweep run`. Two of its `gpt` sweeps are trained again, with their
seeds, into RESULTS/alignment, with the alignment read every five steps in place of the curvature. Both are compared on
these runs. It writes results/reference/warning/alignment.csv.

Of a layer y = x W the alignment is the distribution, over the positions of a batch, of the cosine of the input x with
the first left singular vector of W; a loss explosion is said to follow where its signs no longer differ. That much is
known here from the paper's abstract and from what others wrote of it; which layers count, and from which share of one
sign on, are choices made here. The share of the commoner sign, 0.5 to 1, is read as the mean over all layers, the
largest of them, and the mean over the layers whose input is the residual stream: what enters the others has a mean that
is not zero.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import warning
from benchmarks.warning import REFERENCE, SCORES, Run, Scorer, across, fixed, numbers, read, write
from objectives.models import gpt, gpt_model
from objectives.training.packed import Weights
from orchestrator.base.files import LEDGER
from orchestrator.detection.warning.risk import RECENT, USUAL, running_median
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep

# Shapes: K members, N positions, D inputs and E outputs of a layer, L layers.

COLUMNS = ("alignment/mean", "alignment/largest", "alignment/residual")
SWEEPS = ("warning_gpt_adamw", "warning_gpt_others")
_RESIDUAL = ("qkv", "mlp_in", "head")


def sign_share(x_KND: torch.Tensor, weight_KDE: torch.Tensor) -> torch.Tensor:
    """Share of the positions whose input lies on the commoner side of the first left singular vector, (K,)."""
    # The sign of a singular vector is arbitrary, so only the commoner of the two sides means anything.
    first_KD1 = torch.linalg.svd(weight_KDE, full_matrices=False).U[:, :, :1]
    side_KN = torch.sign((x_KND @ first_KD1)[..., 0])
    above_K, below_K = (side_KN > 0).double().mean(1), (side_KN < 0).double().mean(1)
    return torch.maximum(above_K, below_K)


@torch.no_grad()
def alignment_readings(shape: Any, weights: Weights, tokens_KBS: torch.Tensor, knobs: Any) -> dict[str, torch.Tensor]:
    """The three shares of each member on these sequences, (K,) each; NaN where a weight is not finite."""
    name_of = {id(weight): name for name, weight in weights.items()}
    shares: dict[str, torch.Tensor] = {}
    product = gpt_model.autocast_product

    def seen(x_KND: torch.Tensor, weight_KDE: torch.Tensor) -> torch.Tensor:
        is_finite_K = torch.isfinite(weight_KDE).all(2).all(1) & torch.isfinite(x_KND).all(2).all(1)
        finite_K11 = is_finite_K[:, None, None]
        share_K = sign_share(x_KND.where(finite_K11, 0.0), weight_KDE.where(finite_K11, 0.0))
        shares[name_of[id(weight_KDE)]] = share_K.masked_fill(~is_finite_K, float("nan"))
        return product(x_KND, weight_KDE)

    gpt_model.autocast_product = seen
    try:
        gpt_model.cross_entropy(shape, weights, tokens_KBS, knobs)
    finally:
        gpt_model.autocast_product = product
    share_LK = torch.stack(list(shares.values()))
    residual_LK = torch.stack([share for name, share in shares.items() if name.endswith(_RESIDUAL)])
    values = (share_LK.mean(0), share_LK.amax(0), residual_LK.mean(0))
    return dict(zip(COLUMNS, values, strict=True))


def _share(column: str) -> Scorer:
    return lambda run: (run.step_N, run.telemetry[column])


def _rise(column: str) -> Scorer:
    """The recent median of a share less its usual one, of the run's own past."""
    return lambda run: (
        run.step_N,
        running_median(run.telemetry[column], RECENT) - running_median(run.telemetry[column], USUAL),
    )


RIVALS = {
    **{f"{column} of one sign": fixed(_share(column)) for column in COLUMNS},
    **{f"{column} of one sign, rise": fixed(_rise(column)) for column in COLUMNS},
}
COMPARED = ("risk, curvature at the edge", "risk, curvature", "risk, one product", "risk, cheap", "logit alone")


def train(folder: Path) -> None:
    """Train the sweeps into ``folder``, with the seeds of those beside it and the alignment among the readings."""
    own = gpt.GptTrainer.own_readings

    def with_alignment(trainer: gpt.GptTrainer, rows: Any) -> dict[str, torch.Tensor]:
        """Read it by torch's operations, whatever computes the other readings."""
        tokens_KBS, knobs = trainer._batch()
        tokens_RBS = tokens_KBS[rows, : gpt._MOST_SEQUENCES_READ]
        weights = {name: weight.detach()[rows] for name, weight in trainer.weights.items()}
        read = knobs.of_rows(rows).of_sequences(0, tokens_RBS.shape[1])
        return own(trainer, rows) | alignment_readings(trainer.structure, weights, tokens_RBS, read)

    gpt.GptTrainer.own_readings = with_alignment
    try:
        for name in SWEEPS:
            with LedgerReader(folder.parent / name / LEDGER) as ledger:
                seeds = ",".join(sorted({str(trial.seed) for trial in ledger.trials()}))
            changes = Overrides(sets=("telemetry.curvature=null",), seeds=seeds)
            run_sweep(load_sweep(warning.SWEEPS / f"{name}.yaml", changes), folder / name, InlineExecutor)
    finally:
        gpt.GptTrainer.own_readings = own


def compare(runs: Sequence[Run], aligned: Sequence[Run]) -> list[dict[str, str]]:
    """Each score on left-out settings; ``aligned`` are the same runs as ``runs``, with other readings."""
    if [run.unstable for run in runs] != [run.unstable for run in aligned]:
        raise RuntimeError("the runs differ: train both on one machine")
    rows = []
    for name, trained in {**{name: SCORES[name] for name in COMPARED}, **RIVALS}.items():
        found = across(aligned if name in RIVALS else runs, "setting", trained)["all"]
        rows.append({"score": name, **numbers(found)})
        print(*rows[-1].values(), sep="\t", flush=True)
    return rows


def main() -> None:
    """Train, compare, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    folder = parser.parse_args().results
    train(folder / "alignment")
    runs = [run for run in read(folder) if run.sweep in SWEEPS]
    write(REFERENCE / "alignment.csv", compare(runs, read(folder / "alignment")))


if __name__ == "__main__":
    main()
