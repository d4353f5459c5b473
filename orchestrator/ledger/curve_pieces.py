"""Pieces of curves as bytes, as the ledger has them: a table of steps and columns, compressed."""

from __future__ import annotations

import functools
import io
import zlib
from collections.abc import Sequence

import numpy as np

from orchestrator.messages import Trace

_LARGEST = 2**28  # bytes of a piece; more is no curve but an attack on memory
_LONGEST_HEADER = 2**20  # bytes; NumPy's own limit is passed by some hundred columns
_ENTRY = 32  # letters of a header for a column, beside its name, and more than there are
_USUAL = b"\x93NUMPY\x01\x00"  # how an npy file of version 1 begins
_HEADER = 10  # bytes up to its header, the length of which is in the last two


def pack_piece(piece: Trace) -> bytes:
    """The columns of ``piece``, all of the length of ``step``, as bytes."""
    # A table has one header; an archive of arrays costs more than the few rows of a report.
    table = np.zeros(len(piece["step"]), dtype=[(name, values.dtype) for name, values in piece.items()])
    for name, values in piece.items():
        table[name] = values
    buffer = io.BytesIO()
    # Version 1 holds names of latin letters, and not too many; left to choose, NumPy warns of the other.
    names = "".join(piece)
    version = (1, 0) if names.isascii() and len(names) + _ENTRY * len(piece) < 2**16 else (3, 0)
    np.lib.format.write_array(buffer, table, version=version, allow_pickle=False)
    return zlib.compress(buffer.getvalue(), level=1)


def unpack_piece(content: bytes) -> dict[str, np.ndarray]:
    """The columns that ``pack_piece`` made bytes of. Raises ValueError for whatever else, and never more than that."""
    try:
        return _of_table(content)
    except Exception as error:
        # NumPy's readers raise anything where a header is not what they expect, up to the errors of a tokenizer.
        raise ValueError(f"a piece of a curve cannot be read: {error}") from error


def join_pieces(pieces: Sequence[Trace]) -> dict[str, np.ndarray]:
    """The pieces of a curve as one, with every column that one of them has, NaN where another has none."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: np.concatenate([_column(piece, name) for piece in pieces]) for name in names}


def _column(piece: Trace, name: str) -> np.ndarray:
    return piece[name] if name in piece else np.full(len(piece["step"]), np.nan)


def _of_table(content: bytes) -> dict[str, np.ndarray]:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(content, _LARGEST)
    if not unpacker.eof:
        raise ValueError("it is cut off or too large")
    if not unpacked.startswith(_USUAL):
        # Names in other alphabets have another header.
        table = np.load(io.BytesIO(unpacked), allow_pickle=False, max_header_size=_LONGEST_HEADER)
        return {name: np.ascontiguousarray(table[name]) for name in table.dtype.names}
    start = _HEADER + int.from_bytes(unpacked[_HEADER - 2 : _HEADER], "little")
    dtype, num_rows = _layout(unpacked[:start])
    table = np.frombuffer(unpacked, dtype, offset=start)
    if len(table) != num_rows:
        raise ValueError(f"it has {len(table)} rows in place of {num_rows}")
    return {name: np.array(table[name]) for name in table.dtype.names}


@functools.lru_cache(maxsize=1024)
def _layout(header: bytes) -> tuple[np.dtype, int]:
    """Columns and number of rows of a table by its header, of which many pieces share a few: reading one takes long."""
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_LONGEST_HEADER)
    if dtype.hasobject or dtype.names is None or len(shape) != 1:
        raise ValueError("it is no plain table")
    return dtype, shape[0]
