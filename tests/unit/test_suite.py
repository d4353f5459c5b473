"""The default tests stay few where each starts processes or trains. A limit of time would depend on the machine."""

import re
from collections import Counter

import pytest
from tiers import MOST_BY_DEFAULT, OTHER_TARGETS, is_default


def too_many(tests: list[str]) -> dict[str, int]:
    """How many there are in each room with more than its most, from the names of tests."""
    found = Counter("/".join(name.split("/")[:2]) for name in tests)
    return {room: found[room] for room, most in MOST_BY_DEFAULT.items() if found[room] > most}


def test_rooms_where_tests_start_processes_or_train_have_few_by_default(request: pytest.FixtureRequest) -> None:
    """Where the whole suite runs; a part of it has fewer."""
    names = [item.nodeid for item in request.session.items if is_default(item)]
    assert too_many(names) == {}, "make one slow that varies what another default test shows"


def test_a_room_with_one_test_more_than_its_most_is_named() -> None:
    room, most = next(iter(MOST_BY_DEFAULT.items()))
    names = [f"{room}/test_some.py::test_case[{number}]" for number in range(most + 1)]
    assert too_many(names) == {room: most + 1}
    assert too_many(names[1:]) == {}
    assert too_many([f"tests/unit/test_some.py::test_case[{number}]" for number in range(99_999)]) == {}


def test_a_test_of_another_target_is_none_by_default(request: pytest.FixtureRequest) -> None:
    assert is_default(request.node)
    request.node.add_marker(pytest.mark.slow)
    assert not is_default(request.node)


def test_the_target_of_default_tests_leaves_out_those_of_every_other(pytestconfig: pytest.Config) -> None:
    target = (pytestconfig.rootpath / "Makefile").read_text().split("\ntest:")[1].split("\n\n")[0]
    assert set(re.findall(r"not (\w+)", target)) == OTHER_TARGETS
