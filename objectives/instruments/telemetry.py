"""Readings of members besides losses: sizes of gradients, updates and moments by layer group.

All of these are by-products of a training step: a few passes over buffers that are already in memory.
"""

from __future__ import annotations

import torch

from objectives.instruments.native_sums import StepValues, native_sums
from objectives.stacking import Layout, index_on

# Shapes: R observed members, n parameters per member, T weights, G groups, Q quantities.

READINGS_OF_GROUPS = (
    "grad_norm", "grad_rms_over_eps", "update_rms", "update_to_weight", "rms_ratio", "v_lag", "share_below_eps",
    "direction_rms", "share_saturated",
)  # fmt: skip
_SATURATED = 0.9


def norm_per_member(value_Kn: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm of each member's row, shape (K,)."""
    return torch.linalg.vector_norm(value_Kn, dim=1)


def group_readings(layout: Layout, values: StepValues, *, native: bool = False) -> dict[str, torch.Tensor]:
    """Return readings named ``reading/group``, (R,) each, for every layer group and for ``all``.

    The gradient g is before clipping and the update u includes the learning rate. The moments m and v are
    bias-corrected and after the step, or None if the optimizer has none; readings that need them are then NaN. ``eps``
    is (R,), or (R, n) if it differs by weight.

    ``grad_norm`` |g|. ``grad_rms_over_eps`` RMS(g) / eps: near 1, eps rather than v sets the step (Wortsman et al.,
    arXiv 2309.14322, warn below 10). ``update_rms`` RMS(u). ``update_to_weight`` |u| / |weights|. ``rms_ratio``
    sqrt(mean(g^2 / max(v, eps^2))), RMS_t of StableAdamW (Wortsman et al., arXiv 2304.13013). ``v_lag`` |g|^2 / sum(v):
    far below 1 while v only decays, above 1 while v lags behind (Bai et al., arXiv 2506.04805). ``share_below_eps``
    share of coordinates with sqrt(v) < eps. ``direction_rms`` RMS of m / sqrt(v). ``share_saturated`` share of
    coordinates with |m| / sqrt(v) above 0.9: 1 is sign descent (Molybog et al., arXiv 2304.09871).

    Each part of the depth has ``grad_norm`` and ``update_rms``. ``native`` sums are by the C++ kernel.
    """
    grad_Rn, eps = values.grad_Rn, values.eps
    values = values._replace(eps=eps.to(grad_Rn.dtype))
    over_eps_RT = layout.norms_per_weight(grad_Rn / values.eps).square() if eps.dim() == 2 else None
    sums_QRT = (native_sums if native and over_eps_RT is None else sums_per_weight)(layout, values)
    readings: dict[str, torch.Tensor] = {}
    for group, weights in layout.weights_of_groups().items():
        size = sum(layout.pieces[t].size for t in weights)
        index = index_on(grad_Rn.device, tuple(weights))
        sums = sums_QRT[:, :, index].sum(2)
        grad_R, update_R, weight_R, v_R, relative_R, below_R, direction_R, saturated_R = sums
        of_group = (
            grad_R.sqrt(),
            (grad_R / size).sqrt() / eps if over_eps_RT is None else (over_eps_RT[:, index].sum(1) / size).sqrt(),
            (update_R / size).sqrt(),
            (update_R / weight_R).sqrt(),
            (relative_R / size).sqrt(),
            grad_R / v_R,
            below_R / size,
            (direction_R / size).sqrt(),
            saturated_R / size,
        )
        readings |= {f"{name}/{group}": value for name, value in zip(READINGS_OF_GROUPS, of_group, strict=True)}
    for depth, weights in layout.weights_of_depths().items():
        size = sum(layout.pieces[t].size for t in weights)
        grad_R, update_R = sums_QRT[:2, :, index_on(grad_Rn.device, tuple(weights))].sum(2)
        readings |= {f"grad_norm/{depth}": grad_R.sqrt(), f"update_rms/{depth}": (update_R / size).sqrt()}
    return readings


def sums_per_weight(layout: Layout, values: StepValues) -> torch.Tensor:
    """Return the sums of g^2, u^2, weights^2, v, g^2 / max(v, eps^2), sqrt(v) < eps, m^2 / v and |m| / sqrt(v) > 0.9.

    They are over the columns of each weight, (Q, R, T).
    """
    grad_Rn, update_Rn, weight_Rn, first_moment_Rn, second_moment_Rn, eps = values
    nan_RT = torch.full((len(grad_Rn), len(layout.pieces)), float("nan"), dtype=grad_Rn.dtype, device=grad_Rn.device)
    v_RT = relative_RT = below_RT = direction_RT = saturated_RT = nan_RT
    if second_moment_Rn is not None:
        eps_R1 = eps if eps.dim() == 2 else eps[:, None]
        root_Rn = second_moment_Rn.sqrt()
        v_RT = layout.sums_per_weight(second_moment_Rn)
        below_RT = layout.sums_per_weight((root_Rn < eps_R1).to(grad_Rn.dtype))
        if first_moment_Rn is not None:
            # v and m are both zero in a coordinate without a gradient so far.
            direction_Rn = (first_moment_Rn / root_Rn).nan_to_num_(nan=0.0)
            direction_RT = layout.norms_per_weight(direction_Rn).square()
            saturated_RT = layout.sums_per_weight((direction_Rn.abs_() > _SATURATED).to(grad_Rn.dtype))
        relative_RT = layout.norms_per_weight(grad_Rn / torch.maximum(root_Rn, eps_R1, out=root_Rn)).square()
    return torch.stack(
        [
            *(layout.norms_per_weight(value_Rn).square() for value_Rn in (grad_Rn, update_Rn, weight_Rn)),
            v_RT,
            relative_RT,
            below_RT,
            direction_RT,
            saturated_RT,
        ]
    )
