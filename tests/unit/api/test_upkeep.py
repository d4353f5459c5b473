"""What `sweep objectives` finds, and what `sweep gc` removes."""

import io

import pytest
from rich.console import Console

from objectives.base import OBJECTIVES
from orchestrator.api.sweep_files import objectives
from orchestrator.base.errors import InputError


def shown(*arguments: str | None) -> str:
    console = Console(file=io.StringIO(), width=200)
    for item in objectives(*arguments):
        console.print(item)
    return console.file.getvalue()


def test_fields_are_found_by_their_name_and_by_their_meaning() -> None:
    found = shown("gpt", "QK")
    assert "qk_norm" in found
    assert "beta1" not in found
    assert "quadratic:" not in shown("gpt", None)
    everywhere = shown(None, "learning rate")
    assert everywhere.count("peak learning rate") == len(OBJECTIVES), "one in each objective"


@pytest.mark.parametrize(("name", "match", "said"), [("gt", None, "gpt, function_fit"), (None, "zzz", "no field has")])
def test_what_is_not_there_is_told_with_what_is(name: str | None, match: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        list(objectives(name, match))
