"""What a page that is a file reads later, curves and diagnoses: rounded and compressed, so that the file is small."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

# Digits of a float32's mantissa that are kept, in bits: a loss is read to four digits and zoomed into, a reading to
# three. The others are zeros, which compress to nothing.
CURVE_BITS, READING_BITS = 13, 10
_MANTISSA = 23

# Of the page's data, what is drawn only once a cell is chosen.
LATER = ("curves", "diagnoses", "remedy_pictures")


def rounded(value_N: np.ndarray, bits: int) -> np.ndarray:
    """The finite float32 values to the nearest of ``bits`` bits of their mantissas."""
    drop = _MANTISSA - bits
    raw_N = value_N.view("<u4").astype(np.uint64)
    near_N = ((raw_N + (1 << (drop - 1))) >> drop << drop).astype("<u4").view("<f4")
    return np.where(np.isfinite(near_N), near_N, value_N).astype("<f4")


def split(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The data that a page reads at once, and the rest as the text of an element: deflated JSON in base64."""
    now = {name: value for name, value in data.items() if name not in LATER}
    later = {name: data[name] for name in LATER}
    text = json.dumps(later, allow_nan=False, separators=(",", ":"))
    return now, base64.b64encode(zlib.compress(text.encode())).decode()
