"""Knobs: numbers inside a step of the transformer that may differ between the members of a pack.

A knob is None where all members have its neutral value; then nothing is computed for it. A member with the neutral
value beside members without it still keeps its bits: its factor is exactly 1, its term exactly 0, its mask the causal
one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch

# Shapes: K members, B sequences, T positions, D width, N = B * T.

# Hashes have 32 bits and are computed in 64, so no product overflows: the result of an overflow depends on the
# compiler.
_MASK = 2**32 - 1
_MULTIPLIER = 0x45D9F3B  # of Mueller's hash, two rounds of which let every bit affect every other


@dataclass(frozen=True, slots=True)
class Knobs:
    """Numbers of K members in one step; None where no member uses a knob.

    ``z_loss_K``: weight of the mean of log^2 Z of the logits in the loss, Z = sum of exp(logit), neutral 0 (Wortsman et
    al., arXiv 2309.14322, use 1e-4). ``residual_scale_K``: factor on each sublayer's addition to the residual stream,
    neutral 1. ``dropout_K``: dropped share, neutral 0, with masks from the ``dropout_key_KB`` of each sequence.
    ``context_K``: length of the blocks that sequences are cut into, within which attention stays and positions are
    counted; any length from T on is neutral. Keys and lengths are int64, the others float64, rounded where they meet
    activations. ``sequence_share_KB``: weight of each sequence in the loss, float32; without it the loss is their mean.
    """

    z_loss_K: torch.Tensor | None = None
    residual_scale_K: torch.Tensor | None = None
    dropout_K: torch.Tensor | None = None
    dropout_key_KB: torch.Tensor | None = None
    context_K: torch.Tensor | None = None
    sequence_share_KB: torch.Tensor | None = None

    def of_rows(self, rows: torch.Tensor | slice) -> Knobs:
        """The knobs of the members in ``rows``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Knobs(**{name: None if value is None else value[rows] for name, value in values.items()})

    def of_sequences(self, first: int, end: int) -> Knobs:
        """The knobs of the sequences ``[first, end)`` of a batch, which weigh alike."""
        keys_KB = None if self.dropout_key_KB is None else self.dropout_key_KB[:, first:end]
        return replace(self, dropout_key_KB=keys_KB, sequence_share_KB=None)

    def with_factor(self, num_members: int, device: torch.device) -> Knobs:
        """These knobs with an explicit ``residual_scale``, even if it is 1, which changes bits of second derivatives.

        Multiplying by 1 changes no number, but gradients through the product add up in another order.
        """
        if self.residual_scale_K is not None:
            return self
        return replace(self, residual_scale_K=torch.ones(num_members, dtype=torch.float64, device=device))

    def of_validation(self) -> Knobs:
        """The part that belongs to the model: no dropout, no z-loss, the whole context."""
        return Knobs(residual_scale_K=self.residual_scale_K)


NEUTRAL = Knobs()


def branch_factor(knobs: Knobs, branch: int, x_KND: torch.Tensor, num_sequences: int) -> torch.Tensor | None:
    """The factor on the output of sublayer ``branch`` (0, 1, 2, ... from the first block) before the residual sum.

    residual_scale; with dropout (Srivastava et al., JMLR 2014) residual_scale / (1 - p) where kept and 0 where dropped.
    (K, 1, 1) or (K, N, D); None for no factor. ``x_KND`` is the residual stream that the output is added to.
    """
    scale_K = knobs.residual_scale_K
    if knobs.dropout_K is None:
        return None if scale_K is None else scale_K.to(x_KND.dtype)[:, None, None]
    kept_K = 1 / (1 - knobs.dropout_K) if scale_K is None else scale_K / (1 - knobs.dropout_K)
    is_kept_KBn = is_kept(knobs, branch, x_KND[0].numel() // num_sequences)
    return (is_kept_KBn.to(x_KND.dtype) * kept_K.to(x_KND.dtype)[:, None, None]).view(x_KND.shape)


def is_kept(knobs: Knobs, branch: int, num_numbers: int) -> torch.Tensor:
    """Which numbers of each sequence dropout keeps in sublayer ``branch``: bool, (K, B, num_numbers).

    A hash of key, sublayer and position, so masks need no memory, no state on resume and no device random numbers, and
    a backward pass recreates them exactly. For one key, a larger share drops a superset of what a smaller share drops.
    """
    dropout_K, dropout_key_KB = knobs.dropout_K, knobs.dropout_key_KB
    assert dropout_K is not None
    assert dropout_key_KB is not None
    place = torch.arange(1, num_numbers + 1, device=dropout_K.device) + branch * num_numbers
    # A random odd number times a fixed odd one can be any odd 32-bit number; its upper bits depend on all bits of both.
    bits_KBn = ((_hashed(place) >> 1 | 1) * dropout_key_KB[..., None]).bitwise_and_(_MASK)
    least_K = (dropout_K * 2.0**32).round().to(torch.int64)
    return bits_KBn >= least_K[:, None, None]


def dropout_keys(key_K: torch.Tensor, num_sequences: int) -> torch.Tensor:
    """A separate key for every sequence of a step, int64 (K, B), from one 32-bit key per member, (K,)."""
    sequence_B = torch.arange(1, num_sequences + 1, device=key_K.device)
    return _hashed(_hashed(sequence_B) ^ key_K[:, None]) | 1


def _hashed(value: torch.Tensor) -> torch.Tensor:
    """A well-mixed, one-to-one hash of 32 bits."""
    for _ in range(2):
        value = ((value >> 16) ^ value) * _MULTIPLIER & _MASK
    return (value >> 16) ^ value


def block_positions(context_K: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Each position counted from the start of its block, int64 (K, T)."""
    return torch.arange(num_positions, device=context_K.device) % context_K[:, None]


def may_attend(context_K: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Which positions each position attends to: itself and earlier ones of its block; bool, (K, T, T)."""
    block_KT = torch.arange(num_positions, device=context_K.device) // context_K[:, None]
    is_of_block_KTT = block_KT[:, :, None] == block_KT[:, None, :]
    return is_of_block_KTT.tril()


def mean_of_tokens(value_KN: torch.Tensor, share_KB: torch.Tensor | None) -> torch.Tensor:
    """The mean over the tokens of a batch whose sequences have these shares, (K,); of None all tokens weigh alike."""
    if share_KB is None:
        return value_KN.mean(1)
    mean_KB = value_KN.view(*share_KB.shape, -1).mean(2)
    # A sequence without a share adds nothing, whatever its loss.
    return (mean_KB.masked_fill(share_KB == 0, 0.0) * share_KB.to(value_KN.dtype)).sum(1)


def with_z_loss(
    loss_K: torch.Tensor, log_z_KN: torch.Tensor, z_loss_K: torch.Tensor, share_KB: torch.Tensor | None = None
) -> torch.Tensor:
    """loss + z_loss * mean(log^2 Z), (K,); exactly the loss where z_loss is 0, however large log Z is."""
    penalty_K = z_loss_K * mean_of_tokens(log_z_KN.square(), share_KB)
    return loss_K + torch.where(z_loss_K > 0, penalty_K, 0.0)
