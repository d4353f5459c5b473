"""What a page that is a file unpacks later."""

import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.pages.packed import CURVE_BITS, LATER, READING_BITS, rounded, split

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(FLOATS, min_size=1), st.sampled_from([CURVE_BITS, READING_BITS]))
def test_a_rounded_value_is_as_near_as_its_bits_allow_and_stays_finite(values: list[float], bits: int) -> None:
    value_N = np.array(values, "<f4")
    found_N = rounded(value_N, bits)
    assert found_N.dtype == value_N.dtype
    assert np.isfinite(found_N).all()
    normal_N = np.abs(value_N) > np.finfo(np.float32).tiny
    away_N = np.abs(found_N.astype(float) - value_N.astype(float))
    assert (away_N[normal_N] <= np.abs(value_N[normal_N]).astype(float) * 2.0 ** -(bits + 1)).all()
    assert np.array_equal(rounded(found_N, bits), found_N), "rounding again changes nothing"


def test_what_was_split_is_whole_again_and_the_first_part_has_no_curves() -> None:
    data = {"name": "case", "curves": [{"last": 3}], "diagnoses": {"a": "<p>why</p>"}, "remedy_pictures": {}}
    now, later = split(data)
    assert now | json.loads(zlib.decompress(base64.b64decode(later))) == data
    assert not now.keys() & {*LATER}
    assert split(data) == (now, later), "a report of one ledger has the same bytes"


def test_what_is_unpacked_later_takes_less_than_it_does_as_json() -> None:
    curves = [{"loss": ["A" * 4000, "B" * 4000]}]
    _, later = split({"curves": curves, "diagnoses": {}, "remedy_pictures": {}})
    assert len(later) < 0.1 * len(json.dumps(curves))


def test_the_largest_number_is_not_rounded_to_infinity() -> None:
    largest = np.array([np.finfo(np.float32).max], "<f4")
    assert rounded(largest, READING_BITS)[0] == pytest.approx(largest[0])
