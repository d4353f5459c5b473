"""Adam with 8-bit moments, in blocks with one scale each (Dettmers et al., arXiv 2110.02861)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import torch

from objectives.base import TrainingConfig
from objectives.optimizers.facts.packed import Adam8bitFields
from objectives.optimizers.rules.adamw import AdamW, debiased
from objectives.optimizers.rules.rule import Numbers, States
from objectives.stacking import BLOCK, Layout, Piece

# Shapes: K members, n parameters per member, c columns of coded weights in whole blocks, B blocks,
# p columns of plain weights.

_DECADES = 7
MOMENTS = ("first", "second")


class Tables(NamedTuple):
    """Values of codes, borders between them, and the lowest code of numbers with the same first 16 bits.

    No two borders have the same first 16 bits, so a number's code is that one or the next.
    """

    values: torch.Tensor
    borders: torch.Tensor
    first_codes: torch.Tensor


class Adam8bit(AdamW):
    """AdamW that keeps each moment as an 8-bit code of its size within a block of ``adam8bit_block`` entries.

    A step decodes both moments, does what AdamW does, and encodes them again: each block is divided by its largest
    absolute value, and every entry is rounded to the nearest of 256 numbers that span seven decades (dynamic tree
    quantisation; the second moment, without a sign, has twice as many per decade). Blocks start at the start of a
    weight. Weights with fewer than ``adam8bit_smallest`` entries keep full-precision moments.

    Equal to ``bitsandbytes.optim.AdamW8bit``, except its CPU kernel of version 0.50, whose lookup table is too coarse
    for small numbers. Codes are chosen in single precision, whatever the type.
    """

    state_types = {f"{moment}_codes": torch.uint8 for moment in MOMENTS}

    def __init__(self, structure: TrainingConfig, layout: Layout) -> None:
        super().__init__(structure, layout)
        fields = cast(Adam8bitFields, structure)
        self._block = fields.adam8bit_block
        self._coded = [piece for piece in layout.pieces if piece.size >= fields.adam8bit_smallest]
        self._plain = [piece for piece in layout.pieces if piece.size < fields.adam8bit_smallest]
        # Per moment; created outside a compiled update, once the parameters' device is known.
        self._tables: dict[str, Tables] = {}

    def state_sizes(self) -> Mapping[str, int]:
        """Codes and scales of large weights, and moments of small ones."""
        num_coded = sum(piece.size + -piece.size % self._block for piece in self._coded)
        num_plain = sum(piece.size for piece in self._plain)
        sizes = {"codes": num_coded, "scales": num_coded // self._block, "plain": num_plain + -num_plain % BLOCK}
        return {f"{moment}_{name}": size for moment in MOMENTS for name, size in sizes.items() if size}

    def scalars(self, numbers: Numbers, lr_K: torch.Tensor, age_K: torch.Tensor) -> Numbers:
        """Prepare the tables and return AdamW's scalars."""
        self._prepare(lr_K.device)
        return super().scalars(numbers, lr_K, age_K)

    def update(
        self, states: States, grad_Kn: torch.Tensor, params_Kn: torch.Tensor, scalars_K1: Numbers
    ) -> torch.Tensor:
        """Return the update, with large and small weights in separate buffers."""
        plain_Kp = coded_Kc = None
        if self._plain:
            grad_Kp = _gathered(grad_Kn, [self._plain], BLOCK)
            moments = {"first_moment": states["first_plain"], "second_moment": states["second_plain"]}
            plain_Kp = super().update(moments, grad_Kp, params_Kn, scalars_K1)
        if self._coded:
            grad_Kc = _gathered(grad_Kn, [[piece] for piece in self._coded], self._block)
            moments = {f"{moment}_moment": self._decoded(states, moment) for moment in MOMENTS}
            coded_Kc = super().update(moments, grad_Kc, params_Kn, scalars_K1)
            for moment in MOMENTS:
                self._encode(states, moment, moments[f"{moment}_moment"])
        return self._scattered(plain_Kp, coded_Kc)

    def second_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return v / (1 - beta2^t), as stored."""
        return debiased(self._kept(states, "second"), numbers["beta2"], age_K)

    def first_moment(self, states: States, numbers: Numbers, age_K: torch.Tensor) -> torch.Tensor:
        """Return m / (1 - beta1^t), as stored."""
        return debiased(self._kept(states, "first"), numbers["beta1"], age_K)

    def _prepare(self, device: torch.device) -> None:
        if not self._tables:
            self._tables = {moment: make_tables(signed=moment == "first", device=device) for moment in MOMENTS}

    def _kept(self, states: States, moment: str) -> torch.Tensor:
        """Return a moment of all weights, (K, n)."""
        self._prepare(next(iter(states.values())).device)
        return self._scattered(
            states[f"{moment}_plain"] if self._plain else None, self._decoded(states, moment) if self._coded else None
        )

    def _decoded(self, states: States, moment: str) -> torch.Tensor:
        """Return code times scale, (K, c)."""
        codes_Kc, scales_KB = states[f"{moment}_codes"], states[f"{moment}_scales"]
        values = self._tables[moment].values
        share_Kc = values.index_select(0, codes_Kc.flatten().to(torch.int32)).view_as(codes_Kc).to(scales_KB.dtype)
        return (share_Kc.unflatten(1, (-1, self._block)) * scales_KB[:, :, None]).flatten(1)

    def _encode(self, states: States, moment: str, value_Kc: torch.Tensor) -> None:
        """Store the nearest code of each value, and the scale of each block."""
        blocks_KBb = value_Kc.unflatten(1, (-1, self._block))
        scales_KB = blocks_KBb.abs().amax(2)
        states[f"{moment}_scales"].copy_(scales_KB)
        share_KBb = blocks_KBb / scales_KB.masked_fill(scales_KB == 0, 1.0)[:, :, None]
        states[f"{moment}_codes"].copy_(nearest_codes(share_KBb.flatten(1), self._tables[moment]))

    def _scattered(self, plain_Kp: torch.Tensor | None, coded_Kc: torch.Tensor | None) -> torch.Tensor:
        """Return all weights at their columns, (K, n), with zeros in the padding."""
        columns: dict[int, torch.Tensor] = {}
        plain_at = coded_at = 0
        for piece in self._plain:
            assert plain_Kp is not None
            columns[piece.start] = plain_Kp[:, plain_at : plain_at + piece.size]
            plain_at += piece.size
        for piece in self._coded:
            assert coded_Kc is not None
            columns[piece.start] = coded_Kc[:, coded_at : coded_at + piece.size]
            coded_at += piece.size + -piece.size % self._block
        pieces = [columns[piece.start] for piece in self.layout.pieces]
        missing = self.layout.size - self.layout.pieces[-1].end
        return torch.cat([*pieces, pieces[0].new_zeros(len(pieces[0]), missing)], dim=1)


def code_values(*, signed: bool) -> torch.Tensor:
    """Return the 256 values of the codes, ascending, in single precision; the largest is 1.

    Each decade below 1 is divided into equal parts and the values are their midpoints: one part in the seventh decade,
    twice as many in each next one, and twice as many again without a sign. Zero and one are values too.
    """
    values = [0.0, 1.0]
    for decade in range(_DECADES):
        num_parts = 2**decade if signed else 2 ** (decade + 1)
        edges = torch.linspace(0.1, 1, num_parts + 1, dtype=torch.float32)
        middles = (10.0 ** (decade - _DECADES + 1) * ((edges[:-1] + edges[1:]) / 2)).tolist()
        values += middles + [-middle for middle in middles if signed]
    return torch.tensor(sorted([*values, *[0.0] * (256 - len(values))]), dtype=torch.float32)


def make_tables(*, signed: bool, device: torch.device) -> Tables:
    """Return lookup tables for a moment with or without a sign."""
    values = code_values(signed=signed)
    borders = torch.cat([(values[:-1] + values[1:]) / 2, torch.tensor([torch.inf])])
    starts = torch.arange(2**16, dtype=torch.int32) << 16
    # Positive numbers grow with their bits, negative ones fall: the lowest negative number has the highest bits.
    lowest = torch.where(starts < 0, starts | 0xFFFF, starts).view(torch.float32)
    first_codes = torch.bucketize(lowest.nan_to_num(0.0), borders[:-1], out_int32=True)
    return Tables(values.to(device), borders.to(device), first_codes.to(device))


def nearest_codes(share_Kc: torch.Tensor, tables: Tables) -> torch.Tensor:
    """Return the code nearest to each number in [-1, 1], the lower one for a tie; uint8."""
    share = share_Kc.to(torch.float32).flatten()
    # A search in 255 borders takes twenty times as long as looking up the number's first 16 bits.
    code = tables.first_codes.index_select(0, (share.view(torch.int32) >> 16) & 0xFFFF)
    code = code + (share > tables.borders.index_select(0, code))
    return code.to(torch.uint8).view_as(share_Kc)


def _gathered(value_Kn: torch.Tensor, groups: Iterable[Sequence[Piece]], multiple: int) -> torch.Tensor:
    """Concatenate columns of weights, each group zero-padded to a multiple."""
    columns = []
    for pieces in groups:
        columns += [value_Kn[:, piece.start : piece.end] for piece in pieces]
        columns.append(value_Kn.new_zeros(len(value_Kn), -sum(piece.size for piece in pieces) % multiple))
    return torch.cat(columns, dim=1)
