"""What the tests of several objectives share."""

from pathlib import Path

import pytest
from gpt_cases import short_text


@pytest.fixture
def text(tmp_path: Path) -> tuple[str]:
    """A file to train on, as a configuration names it."""
    return short_text(tmp_path)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[str, str]:
    """Two files with no byte in common."""
    (tmp_path / "letters.txt").write_bytes(bytes(range(97, 120)) * 1000)
    (tmp_path / "digits.txt").write_bytes(bytes(range(48, 58)) * 2000)
    return str(tmp_path / "letters.txt"), str(tmp_path / "digits.txt")
