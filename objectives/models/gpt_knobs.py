"""Knobs: numbers inside a step of the transformer that may differ between the members of a pack.

A knob is None if all members have its neutral value, and costs nothing then. In a mixed pack, a member with the neutral
value keeps its bits: its factor is exactly 1, its term exactly 0, its mask the causal one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

# Shapes: K members, B sequences, T positions, D width, N = B * T.

# Hashes have 32 bits and are computed in 64 bits, so that no product overflows: the result would depend on the
# compiler.
_MASK = 2**32 - 1
_MULTIPLIER = 0x45D9F3B  # of Mueller's hash; after two rounds every bit affects every other


@dataclass(frozen=True, slots=True)
class Knobs:
    """Numbers of K members in one step; None for a knob that no member uses.

    ``z_loss_K``: weight of the mean of log^2 Z in the loss, with Z = sum of exp(logit); neutral 0 (Wortsman et al.,
    arXiv 2309.14322, use 1e-4). ``residual_scale_K``: factor on each sublayer's output before it is added to the
    residual stream; neutral 1. ``dropout_K``: dropped share; neutral 0, with masks from the ``dropout_key_KB`` of each
    sequence. ``context_K``: length of the blocks that sequences are cut into, which confine attention and restart
    positions; any length of T or more is neutral. ``sequence_share_KB``: weight of each sequence in the loss, float32;
    without it the loss is the mean. Of experts (L layers, E experts): ``balance_weight_K``, ``router_z_loss_K`` and
    ``router_noise_K``, neutral 0, with normal numbers ``router_draw_KBLTE``; ``capacity_K``, neutral infinity;
    ``router_bias_KLE`` on the scores by which experts are chosen, neutral 0. Keys and lengths are int64, draws and
    biases float32, the others float64, rounded when they meet activations.
    """

    z_loss_K: torch.Tensor | None = None
    residual_scale_K: torch.Tensor | None = None
    dropout_K: torch.Tensor | None = None
    dropout_key_KB: torch.Tensor | None = None
    context_K: torch.Tensor | None = None
    sequence_share_KB: torch.Tensor | None = None
    balance_weight_K: torch.Tensor | None = None
    router_z_loss_K: torch.Tensor | None = None
    router_noise_K: torch.Tensor | None = None
    router_draw_KBLTE: torch.Tensor | None = None
    router_bias_KLE: torch.Tensor | None = None
    capacity_K: torch.Tensor | None = None

    def of_rows(self, rows: torch.Tensor | slice) -> Knobs:
        """Return the knobs of the members in ``rows``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Knobs(**{name: None if value is None else value[rows] for name, value in values.items()})

    def of_sequences(self, first: int, end: int) -> Knobs:
        """Return the knobs of the sequences ``[first, end)`` of a batch, with equal weights."""
        keys_KB = None if self.dropout_key_KB is None else self.dropout_key_KB[:, first:end]
        draw = None if self.router_draw_KBLTE is None else self.router_draw_KBLTE[:, first:end]
        return replace(self, dropout_key_KB=keys_KB, router_draw_KBLTE=draw, sequence_share_KB=None)

    def with_factor(self, num_members: int, device: torch.device) -> Knobs:
        """Return these knobs with an explicit ``residual_scale``, even if it is 1.

        Multiplying by 1 changes no number, but gradients through the product sum in another order, which changes bits
        of second derivatives.
        """
        if self.residual_scale_K is not None:
            return self
        return replace(self, residual_scale_K=torch.ones(num_members, dtype=torch.float64, device=device))

    def of_validation(self) -> Knobs:
        """Return the knobs that belong to the model: no dropout, noise, capacity or added losses, the whole context."""
        return Knobs(residual_scale_K=self.residual_scale_K, router_bias_KLE=self.router_bias_KLE)


NEUTRAL = Knobs()


def branch_factor(knobs: Knobs, branch: int, x_KND: torch.Tensor, num_sequences: int) -> torch.Tensor | None:
    """Return the factor on the output of sublayer ``branch`` (counted from 0 over all blocks) before the residual sum.

    residual_scale; with dropout (Srivastava et al., JMLR 2014) residual_scale / (1 - p) if kept and 0 if dropped. (K,
    1, 1) or (K, N, D); None for no factor. ``x_KND`` is the residual stream that the output is added to.
    """
    scale_K = knobs.residual_scale_K
    if knobs.dropout_K is None:
        return None if scale_K is None else scale_K.to(x_KND.dtype)[:, None, None]
    kept_K = 1 / (1 - knobs.dropout_K) if scale_K is None else scale_K / (1 - knobs.dropout_K)
    is_kept_KBn = is_kept(knobs, branch, x_KND[0].numel() // num_sequences)
    return (is_kept_KBn.to(x_KND.dtype) * kept_K.to(x_KND.dtype)[:, None, None]).view(x_KND.shape)


def is_kept(knobs: Knobs, branch: int, num_numbers: int) -> torch.Tensor:
    """Return which numbers of each sequence dropout keeps in sublayer ``branch``: bool, (K, B, num_numbers).

    A hash of key, sublayer and position, so masks need no memory, no state on resume and no device random numbers, and
    a backward pass recreates them exactly. For one key, a larger share drops a superset of what a smaller share drops.
    """
    dropout_K, dropout_key_KB = knobs.dropout_K, knobs.dropout_key_KB
    assert dropout_K is not None
    assert dropout_key_KB is not None
    position = torch.arange(1, num_numbers + 1, device=dropout_K.device) + branch * num_numbers
    # A random odd number times a fixed odd one can be any odd 32-bit number. Its upper bits depend on all bits of both
    # factors.
    bits_KBn = ((_hashed(position) >> 1 | 1) * dropout_key_KB[..., None]).bitwise_and_(_MASK)
    least_K = (dropout_K * 2.0**32).round().to(torch.int64)
    return bits_KBn >= least_K[:, None, None]


def dropout_keys(key_K: torch.Tensor, num_sequences: int) -> torch.Tensor:
    """Return a separate key for every sequence of a step, int64 (K, B), from one 32-bit key per member, (K,)."""
    sequence_B = torch.arange(1, num_sequences + 1, device=key_K.device)
    return _hashed(_hashed(sequence_B) ^ key_K[:, None]) | 1


def _hashed(value: torch.Tensor) -> torch.Tensor:
    """Return a well-mixed, one-to-one hash of 32 bits."""
    for _ in range(2):
        value = ((value >> 16) ^ value) * _MULTIPLIER & _MASK
    return (value >> 16) ^ value


def block_positions(context_K: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Return each position counted from the start of its block, int64 (K, T)."""
    return torch.arange(num_positions, device=context_K.device) % context_K[:, None]


def may_attend(context_K: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Return which positions each position attends to: itself and earlier ones in its block; bool, (K, T, T)."""
    block_KT = torch.arange(num_positions, device=context_K.device) // context_K[:, None]
    is_of_block_KTT = block_KT[:, :, None] == block_KT[:, None, :]
    return is_of_block_KTT.tril()


def mean_of_tokens(value_KN: torch.Tensor, share_KB: torch.Tensor | None) -> torch.Tensor:
    """Return the mean over a batch's tokens, weighted by the shares of their sequences if given, (K,)."""
    if share_KB is None:
        return value_KN.mean(1)
    mean_KB = value_KN.view(*share_KB.shape, -1).mean(2)
    # A sequence with share 0 adds nothing, even if its loss is not finite.
    return (mean_KB.masked_fill(share_KB == 0, 0.0) * share_KB.to(value_KN.dtype)).sum(1)


def with_z_loss(
    loss_K: torch.Tensor, log_z_KN: torch.Tensor, z_loss_K: torch.Tensor, share_KB: torch.Tensor | None = None
) -> torch.Tensor:
    """Return loss + z_loss * mean(log^2 Z), (K,); exactly the loss if z_loss is 0, however large log Z is."""
    penalty_K = z_loss_K * mean_of_tokens(log_z_KN.square(), share_KB)
    return loss_K + torch.where(z_loss_K > 0, penalty_K, 0.0)


def context_lengths(
    start_K: torch.Tensor, steps_K: torch.Tensor, age_K: torch.Tensor, context: torch.Tensor | int
) -> torch.Tensor:
    """Return the sequence length of each member's curriculum at its step ``age_K`` (0, 1, ...), int64 (K,), in bytes.

    Sequence length warmup (Li, Zhang & He, arXiv 2108.06084), in the variant that reshapes the text and drops nothing
    (``seqlen_reshape`` of DeepSpeed, Li et al., arXiv 2212.03597): a sequence of T bytes is trained on as blocks of
    the current length L. Attention stays within a block and positions count from its start. Each byte is still a target
    exactly once, so every step has the same number of tokens and the same shapes. If L does not divide T, the last
    block is shorter. The paper itself truncates sequences to L, which makes the first batches smaller, and rounds L
    down to a multiple of 8 for the hardware. Here L is rounded down to whole bytes, since no tensor is reshaped.

    L(t) = start + (context - start) * min(t / steps, 1), rounded down: ``start_K`` at step 0, ``context`` once
    ``steps_K`` is reached. A member without a curriculum has start = ``context``. The arithmetic is in integers, so a
    length is independent of the other members of the pack. Ages may be a float tensor of whole numbers.
    """
    start_K, steps_K = start_K.long(), steps_K.long().clamp(min=1)
    grown_K = torch.minimum(age_K.long(), steps_K)
    return start_K + (context - start_K) * grown_K // steps_K
