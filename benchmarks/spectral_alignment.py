"""Spectral Alignment (Qiu et al., arXiv 2510.04202) of `gpt`, as a rival of the warning's readings.

    python -m benchmarks.spectral_alignment RESULTS

It trains the `gpt` sweeps of sweeps/warning again, into RESULTS, and reads the alignment every five steps in place of
the curvature. `python -m benchmarks.warning` compares it where RESULTS is given with --alignment.

The paper's alignment of a layer y = x W is the distribution, over the positions of a batch, of the cosine of the input x
with the first left singular vector of W; it warns where the signs stop to differ. The page of the paper that we know is
its abstract: which layers, and from which share of one sign on, are choices of ours. Three shares are read, each the
larger of the shares of the two signs, 0.5 to 1: the mean over all layers, the largest, and the mean over the layers whose
input is the residual stream (the others' inputs have means that are not zero).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from objectives.models import gpt, gpt_model
from objectives.training.packed import Weights
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.sweepfile.spec import load_sweep

# Shapes: K members, N positions, D inputs and E outputs of a layer, L layers.

ROOT = Path(__file__).parents[1]
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


def main() -> None:
    """Train the sweeps with alignment among the forward readings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    forward = gpt.forward_readings
    gpt.forward_readings = lambda *given: forward(*given) | alignment_readings(*given)
    for name in SWEEPS:
        sweep = load_sweep(ROOT / "sweeps" / "warning" / f"{name}.yaml", overrides={"telemetry.curvature": None})
        run_sweep(sweep, arguments.results / name, InlineExecutor)


if __name__ == "__main__":
    main()
