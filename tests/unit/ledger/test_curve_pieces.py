from __future__ import annotations

import io
import zlib

import numpy as np
import pytest

from orchestrator.ledger.curve_pieces import join_pieces, pack_piece, unpack_piece


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "names", [["step"], ["step", "loss"], ["step", "потеря"], ["step", *map("column_{}".format, range(900))]]
)
def test_a_piece_comes_back_as_it_was_whatever_its_columns_are_called(names: list[str]) -> None:
    piece = {name: np.arange(5) if name == "step" else np.linspace(0, 1, 5) for name in names}
    found = unpack_piece(pack_piece(piece))
    assert list(found) == names
    for name, values in piece.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
        found[name][0] = 1  # which a caller may do


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_has_its_precision_also_where_a_piece_lacks_it(dtype: type) -> None:
    measured = {"step": np.arange(2), "lambda_max": np.ones(2, dtype)}
    found = join_pieces([measured, {"step": np.arange(2, 3)}])
    assert found["lambda_max"].dtype == dtype
    np.testing.assert_array_equal(found["lambda_max"], [1.0, 1.0, np.nan])


def test_pieces_are_joined_with_nan_where_one_lacks_a_column() -> None:
    found = join_pieces([{"step": np.arange(2), "loss": np.ones(2)}, {"step": np.arange(2, 3)}])
    np.testing.assert_array_equal(found["step"], [0, 1, 2])
    np.testing.assert_array_equal(found["loss"], [1, 1, np.nan])


TABLE = npy(np.zeros(3, dtype=[("step", "<i8")]))


@pytest.mark.parametrize(
    "content",
    {
        "nothing": b"",
        "noise": b"\x00\x01\x02",
        "an archive": b"PK\x03\x04...",
        "cut off": zlib.compress(TABLE)[:-4],
        "too large": zlib.compress(bytes(2**28 + 1), level=1),
        "no table": zlib.compress(npy(np.zeros(3))),
        "no header": zlib.compress(TABLE[:10]),
        "an open header": zlib.compress(TABLE.replace(b"}", b"(")),
        "an indented header": zlib.compress(TABLE.replace(b"{'descr'", b" \n  {'des")),
        "a long sum": zlib.compress(TABLE[:8] + (60_000).to_bytes(2, "little") + b"-" * 60_000),
        "objects": zlib.compress(TABLE.replace(b"'<i8'", b"'|O' ")),
        "rows that are missing": zlib.compress(TABLE[:-8]),
        "a part of a row": zlib.compress(TABLE[:-3]),
        "a number": 5,
        "a text": "step",
    }.items(),
    ids=lambda item: item[0],
)
def test_whatever_else_is_no_piece_and_is_told_so(content: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match="a piece of a curve cannot be read"):
        unpack_piece(content[1])
