from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.render.answer import output_ending


@pytest.mark.parametrize(
    ("name", "ending"), [(None, ""), ("a.svg", "svg"), ("a.b.pdf", "pdf"), ("A.PNG", "png"), ("a.csv", "csv")]
)
def test_the_ending_of_a_file_is_its_format(tmp_path: Path, name: str | None, ending: str) -> None:
    assert output_ending(None if name is None else tmp_path / name) == ending


@pytest.mark.parametrize("name", ["a.jpg", "a", ".png"])
def test_an_ending_that_is_no_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"end it in \.txt, \.json, \.csv, .* or \.pdf"):
        output_ending(tmp_path / name)
