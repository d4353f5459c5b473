from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.maps.pareto import unbeaten

# Few different numbers, so that many are equal; open margins are infinite.
NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.just(float("-inf")))
POINTS = st.lists(st.tuples(st.integers(0, 4).map(float), NUMBERS), max_size=24)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_no_point_beats_one_of_the_front_and_each_other_one_is_beaten_by_one_of_it(points) -> None:
    front = unbeaten(points)
    assert not any(beats(other, points[i]) for i in front for other in points)
    others = set(range(len(points))) - set(front)
    assert all(any(beats(points[i], points[other]) for i in front) for other in others)


@given(POINTS)
def test_along_the_front_one_number_rises_and_the_other_falls(points) -> None:
    found = list(dict.fromkeys(points[i] for i in unbeaten(points)))
    assert found == sorted(found)
    assert [second for _, second in found] == sorted({second for _, second in found}, reverse=True)


@given(POINTS, st.randoms())
def test_the_front_does_not_depend_on_the_order_of_points(points, random) -> None:
    shuffled = random.sample(points, len(points))
    assert sorted(points[i] for i in unbeaten(points)) == sorted(shuffled[i] for i in unbeaten(shuffled))
