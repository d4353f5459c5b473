"""Pieces of curves as bytes, as the ledger stores them: a compressed table of steps and columns."""

from __future__ import annotations

import functools
import io
import zlib
from collections.abc import Sequence

import numpy as np

from orchestrator.base.packs import Trace

_LARGEST = 2**28  # bytes of a piece; a larger one is an attack on memory
_LONGEST_HEADER = 2**20  # bytes; some hundred columns exceed NumPy's own limit
_ENTRY = 32  # characters of a header per column, besides its name; an upper bound
_USUAL = b"\x93NUMPY\x01\x00"  # start of an npy file of version 1
_HEADER = 10  # bytes before its header; the last two hold the header's length


def pack_piece(piece: Trace) -> bytes:
    """Return the columns of ``piece``, which have the length of ``step``, as bytes."""
    # A table has one header; an archive of arrays costs more than the few rows of a report.
    columns = tuple((name, values.dtype.str) for name, values in piece.items())
    table = np.zeros(len(piece["step"]), dtype=list(columns))
    for name, values in piece.items():
        table[name] = values
    return zlib.compress(_header(columns, len(table)) + table.tobytes(), level=1)


@functools.lru_cache(maxsize=1024)
def _header(columns: tuple[tuple[str, str], ...], num_rows: int) -> bytes:
    """Return what NumPy writes before such a table. Cached: most pieces of a sweep have the same."""
    buffer, table = io.BytesIO(), np.zeros(num_rows, dtype=list(columns))
    # Version 1 holds a limited number of Latin names; NumPy warns if it has to choose the other version.
    names = "".join(name for name, _ in columns)
    version = (1, 0) if names.isascii() and len(names) + _ENTRY * len(columns) < 2**16 else (3, 0)
    np.lib.format.write_array(buffer, table, version=version, allow_pickle=False)
    return buffer.getvalue()[: buffer.tell() - table.nbytes]


def unpack_piece(content: bytes) -> dict[str, np.ndarray]:
    """Return the piece that ``pack_piece`` packed. Raises ValueError, and nothing else, for any other content."""
    try:
        return _of_table(content)
    except Exception as error:
        # NumPy's readers may raise anything for an unexpected header, even tokenizer errors.
        raise ValueError(f"a piece of a curve cannot be read: {error}") from error


def join_pieces(pieces: Sequence[Trace]) -> dict[str, np.ndarray]:
    """Join the pieces of a curve. It has the columns of all pieces, NaN if a piece lacks one.

    A column keeps its precision, so that nothing computed from it depends on when its pieces were written.
    """
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: np.concatenate([_column(piece, name) for piece in pieces]) for name in names}


def _column(piece: Trace, name: str) -> np.ndarray:
    return piece[name] if name in piece else np.full(len(piece["step"]), np.nan, np.float32)


def _of_table(content: bytes) -> dict[str, np.ndarray]:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(content, _LARGEST)
    if not unpacker.eof:
        raise ValueError("it is cut off or too large")
    if not unpacked.startswith(_USUAL):
        # Names in other alphabets have another header.
        table = np.load(io.BytesIO(unpacked), allow_pickle=False, max_header_size=_LONGEST_HEADER)
        return {name: np.ascontiguousarray(table[name]) for name in table.dtype.names or ()}
    start = _HEADER + int.from_bytes(unpacked[_HEADER - 2 : _HEADER], "little")
    dtype, num_rows = _layout(unpacked[:start])
    table = np.frombuffer(unpacked, dtype, offset=start)
    if len(table) != num_rows:
        raise ValueError(f"it has {len(table)} rows instead of {num_rows}")
    return {name: np.array(table[name]) for name in dtype.names or ()}


@functools.lru_cache(maxsize=1024)
def _layout(header: bytes) -> tuple[np.dtype, int]:
    """Return dtype and number of rows of a table. Cached: parsing is slow, and many pieces have the same header."""
    file = io.BytesIO(header)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_LONGEST_HEADER)
    if dtype.hasobject or dtype.names is None or len(shape) != 1:
        raise ValueError("it is not a plain table")
    return dtype, shape[0]
