"""What is measured of a member while it trains: norms now, curvature later."""

from __future__ import annotations

import torch

# Shapes: K members, n parameters of one member.


def norm_per_member(value_Kn: torch.Tensor) -> torch.Tensor:
    """Euclidean norm of each member's row, shape (K,)."""
    return torch.linalg.vector_norm(value_Kn, dim=1)
