"""Compiled packs of the transformer; compiling starts a compiler."""

import pytest
from gpt_cases import KNOBS, assert_compiled_is_eager, short_text


@pytest.fixture
def text(tmp_path):
    return short_text(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its code generator
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"qk_norm": True},
        {"norm": "rms", "recompute": True, "knobs": KNOBS[-3:]},
        {"norm": None, "init": "fan_in", "knobs": KNOBS[-3:]},
    ],
)
def test_a_compiled_pack_trains_as_an_eager_one(text, model: dict) -> None:
    assert_compiled_is_eager(text, depth=1, **model)
