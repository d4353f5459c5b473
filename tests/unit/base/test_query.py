import pytest

from orchestrator.base.errors import InputError
from orchestrator.base.query import conditions, number_range


def test_a_range_is_low_and_high() -> None:
    assert number_range("1e-4:0.1") == (1e-4, 0.1)


@pytest.mark.parametrize("text", ["1e-4", "1:1", "2:1", "a:b", "nan:1", "0:inf", ":", "1:2:3", ""])
def test_a_range_that_is_not_low_and_high_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not LOW:HIGH"):
        number_range(text)


def test_conditions_are_axes_with_values() -> None:
    assert conditions(["lr = 0.1", "clip=none"]) == {"lr": "0.1", "clip": "none"}
    with pytest.raises(InputError, match="is not AXIS=VALUE"):
        conditions(["lr"])
