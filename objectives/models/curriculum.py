"""A curriculum from short to long context: how long a member's context is at its step.

Sequence length warmup (Li, Zhang & He, arXiv 2108.06084), in the variant that cuts the text up and drops none of it
(``seqlen_reshape`` of DeepSpeed, Li et al., arXiv 2212.03597): a sequence of T bytes is trained on as blocks of the
current length L. Attention does not cross from one block into another, positions are counted from the
beginning of the block, and each byte is still a target once, so that every step trains on as many tokens and
keeps its shapes. Where L does not divide T the last block is shorter.

The paper itself cuts the sequences off at L instead, which makes the first batches smaller, and rounds L down to a
multiple of 8 for the sake of hardware; here it is rounded down to whole bytes, as nothing is reshaped.
"""

from __future__ import annotations

import torch

# Shapes: K members.


def context_lengths(start_K: torch.Tensor, steps_K: torch.Tensor, age_K: torch.Tensor, context: int) -> torch.Tensor:
    """Length of each member's blocks at its step ``age_K`` (0, 1, ...), int64 of shape (K,), in bytes.

    L(t) = start + (context - start) * min(t / steps, 1), rounded down: ``start_K`` at step 0 and all of ``context``
    from step ``steps_K`` on. A member without a curriculum has a start of ``context``. Integers throughout, so
    that nobody's length depends on who shares the pack; the ages may be a float tensor of whole numbers.
    """
    start_K, steps_K = start_K.long(), steps_K.long().clamp(min=1)
    grown_K = torch.minimum(age_K.long(), steps_K)
    return start_K + (context - start_K) * grown_K // steps_K
