"""What the tests of several objectives share."""

from pathlib import Path

import pytest
from gpt_cases import short_text


@pytest.fixture
def text(tmp_path: Path) -> tuple[str]:
    """A file to train on, as a configuration names it."""
    return short_text(tmp_path)
