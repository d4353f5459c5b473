"""A curriculum over the sequence length (context), from short to long: each member's length at its step.

Sequence length warmup (Li, Zhang & He, arXiv 2108.06084), in the variant that reshapes the text and drops none of it
(``seqlen_reshape`` of DeepSpeed, Li et al., arXiv 2212.03597): a sequence of T bytes is trained on as blocks of the
current length L. Attention stays within a block and positions are counted from the start of the block. Each byte is
still a target exactly once, so every step has the same number of tokens and the same shapes. Where L does not divide T,
the last block is shorter.

The paper itself truncates sequences to L, which makes the first batches smaller, and rounds L down to a multiple of 8
for the hardware. Here L is rounded down to whole bytes, since no tensor is reshaped.
"""

from __future__ import annotations

import torch

# Shapes: K members.


def context_lengths(start_K: torch.Tensor, steps_K: torch.Tensor, age_K: torch.Tensor, context: int) -> torch.Tensor:
    """Length of each member's blocks at its step ``age_K`` (0, 1, ...), int64 of shape (K,), in bytes.

    L(t) = start + (context - start) * min(t / steps, 1), rounded down: ``start_K`` at step 0, ``context`` from step
    ``steps_K`` on. A member without a curriculum has start = ``context``. The arithmetic is in integers, so a length is
    independent of the other members of the pack. Ages may be a float tensor of whole numbers.
    """
    start_K, steps_K = start_K.long(), steps_K.long().clamp(min=1)
    grown_K = torch.minimum(age_K.long(), steps_K)
    return start_K + (context - start_K) * grown_K // steps_K
