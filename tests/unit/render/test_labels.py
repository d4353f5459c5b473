from __future__ import annotations

import pytest

from orchestrator.render.labels import distinct_numbers


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.1, 0.25, 1e-5, 2500.0], ["0.1", "0.25", "1e-5", "2.5e3"]),
        ([3.264, 3.266, 3.272], ["3.264", "3.266", "3.272"]),
        ([1.00001, 1.00002], ["1.00001", "1.00002"]),
        ([2.0, 2.0], ["2", "2"]),
        ([], []),
    ],
)
def test_numbers_that_differ_have_texts_that_differ(values: list[float], texts: list[str]) -> None:
    assert distinct_numbers(values) == texts
