"""Readings of a router: how evenly tokens are spread over experts.

Each takes the share of the tokens that each of E experts gets, (..., E), which add up to 1.
"""

from __future__ import annotations

import math

import torch

from objectives.stacking import in_blocks

DEAD_SHARE = 0.1  # of an even share: an expert with less is dead


def load_readings(share_RE: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the readings of a router, (R,) each.

    ``router_load`` the largest share over an even one. ``router_gini`` the Gini coefficient. ``router_dead`` experts
    with less than a tenth of an even share. ``router_entropy`` over log E: 1 for even shares, 0 for one expert.
    """
    E = share_RE.shape[-1]
    log_RE = in_blocks(torch.log, share_RE.clamp(min=torch.finfo(share_RE.dtype).tiny))
    return {
        "router_load": share_RE.amax(-1) * E,
        "router_gini": router_gini(share_RE),
        "router_dead": dead_experts(share_RE),
        "router_entropy": -(share_RE * log_RE).sum(-1) / math.log(E),
    }


def router_gini(share_RE: torch.Tensor) -> torch.Tensor:
    """Return the Gini coefficient, (...): 0 for even shares, and at most (E - 1) / E, for one expert."""
    E = share_RE.shape[-1]
    place_E = 2 * torch.arange(1, E + 1, dtype=share_RE.dtype, device=share_RE.device) - E - 1
    return (share_RE.sort(-1).values * place_E).sum(-1) / E


def dead_experts(share_RE: torch.Tensor) -> torch.Tensor:
    """Return the number of experts with less than a tenth of an even share, (...)."""
    return (share_RE < DEAD_SHARE / share_RE.shape[-1]).sum(-1).to(share_RE.dtype)
