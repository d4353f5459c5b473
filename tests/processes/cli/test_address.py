"""What the command line says once it has started another process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC


@pytest.mark.parametrize(
    ("address", "words"), [("127.0.0.1:1", "nothing answers at 127.0.0.1:1"), ("nowhere", "is not HOST:PORT")]
)
def test_an_address_without_a_cluster_ends_with_exit_code_2_and_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., tuple[int, str]], address, words
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edge.yaml").write_text(QUADRATIC)
    code, text = command_line("run", "edge.yaml", "--address", address)
    assert code == 2
    assert words in text
    assert "Traceback" not in text
