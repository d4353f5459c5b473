"""The smallest step along an update that raises the loss, found by forward passes alone.

Critical sharpness (Kalra et al., arXiv 2601.16979) is 2 / eta, where eta is the smallest learning rate whose own
update raises the loss. To second order eta = 2 g.d / (d.H d), for an update of -lr d, a gradient g and
a Hessian H. Like an eigenvalue of the preconditioned Hessian it is compared with 2 / lr. It needs no derivative, so the
model may be compiled, sharded or in mixed precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

# Shapes: R members.

PASSES = 6  # forward passes of a search that starts from an earlier one
PASSES_AT_FIRST = 12
_FASTEST = 16.0  # growth of a step between two passes


def critical_steps(losses: Callable[[torch.Tensor], torch.Tensor], start_R: torch.Tensor) -> torch.Tensor:
    """Return the smallest step that raises each member's loss over its loss at step 0, float64, (R,).

    ``losses(step_R)`` has the losses, (R,), with parameters at ``step_R`` times the update: 0 is before the update, 1
    after. ``start_R`` are the results of the last search, or 0 for a member's first. NaN if no step of the search
    raises the loss, or none lowers it. A non-finite loss counts as raised. A member's result depends on its own losses
    alone.

    The search doubles or halves a step until it has one that raises the loss and one that does not, then narrows these
    down. On a quadratic loss the rise over the step is linear in the step, so two passes beyond the loss at 0 give the
    result up to rounding.
    """
    start_R = start_R.to(torch.float64)
    is_first_R = start_R == 0
    num_passes = PASSES_AT_FIRST if bool(is_first_R.any()) else PASSES
    base_R = losses(torch.zeros_like(start_R)).to(torch.float64)
    step_R = torch.where(is_first_R, 1.0, start_R)
    low_R, high_R = torch.zeros_like(step_R), torch.full_like(step_R, math.inf)
    low_rise_R, high_rise_R, growth_R = torch.zeros_like(step_R), high_R, torch.full_like(step_R, 2.0)
    for number in range(1, num_passes):
        rise_R = (losses(step_R).to(torch.float64) - base_R) / step_R
        goes_on_R = is_first_R | (number < PASSES)
        is_raised_R = ~(rise_R <= 0)
        is_high_R, is_low_R = goes_on_R & is_raised_R, goes_on_R & ~is_raised_R
        high_R, high_rise_R = torch.where(is_high_R, step_R, high_R), torch.where(is_high_R, rise_R, high_rise_R)
        low_R, low_rise_R = torch.where(is_low_R, step_R, low_R), torch.where(is_low_R, rise_R, low_rise_R)
        inside_R = _inside(low_R, high_R, _crossing(low_R, high_R, low_rise_R, high_rise_R))
        outside_R = torch.where(low_R == 0, step_R / growth_R, step_R * growth_R)
        step_R = torch.where(_is_bracketed(low_R, high_R), inside_R, outside_R)
        growth_R = (growth_R * growth_R).clamp(max=_FASTEST)
    found_R = _crossing(low_R, high_R, low_rise_R, high_rise_R)
    return torch.where(_is_bracketed(low_R, high_R) & torch.isfinite(base_R), found_R, math.nan)


def _is_bracketed(low_R: torch.Tensor, high_R: torch.Tensor) -> torch.Tensor:
    return (low_R > 0) & torch.isfinite(high_R)


def _crossing(
    low_R: torch.Tensor, high_R: torch.Tensor, low_rise_R: torch.Tensor, high_rise_R: torch.Tensor
) -> torch.Tensor:
    """Return where the line through both rises is zero, or the geometric mean if the higher one is not finite."""
    linear_R = low_R - low_rise_R * ((high_R - low_R) / (high_rise_R - low_rise_R))
    return torch.where(torch.isfinite(high_rise_R), linear_R, low_R.sqrt() * high_R.sqrt())


def _inside(low_R: torch.Tensor, high_R: torch.Tensor, step_R: torch.Tensor) -> torch.Tensor:
    """Return ``step_R``, at least an eighth of the bracket from both ends, on a logarithmic scale."""
    eighth_R = (high_R / low_R).sqrt().sqrt().sqrt()  # unlike a power, exact to the bit at any position
    return torch.minimum(torch.maximum(step_R, low_R * eighth_R), high_R / eighth_R)
