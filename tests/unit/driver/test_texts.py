"""Texts with too few documents are refused before anything is trained, as training would refuse them."""

import gzip
from pathlib import Path

import pytest
from sweep_cases import sweep_of

from objectives.models.facts.text import LEAST_DOCUMENTS, Recipe
from objectives.models.files import problem_with_documents
from objectives.models.texts import load_text
from orchestrator.base.errors import InputError
from orchestrator.driver.planning import plan_of
from orchestrator.driver.texts import texts_of

BASE = "name: case\nobjective: gpt\nsteps: 5\n"


def written(folder: Path, content: bytes, name: str = "text.txt") -> tuple[str]:
    (folder / name).write_bytes(content)
    return (str(folder / name),)


def is_refused_by_training(text: tuple[str], separator: str | None) -> bool:
    try:
        load_text(text, Recipe(separator, noise_share=0.5))
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("num_documents", [1, 9, 10, 11, 12, 40])
@pytest.mark.parametrize(("mark", "ends"), [("\n\n", False), ("\n\n", True), ("<end>", True)])
def test_as_many_documents_are_counted_as_training_finds(
    tmp_path: Path, num_documents: int, mark: str, ends: bool
) -> None:
    parts = [b"a word and another one " * (20_000 // num_documents // 20) for _ in range(num_documents)]
    text = written(tmp_path, mark.encode().join(parts) + (mark.encode() if ends else b""))
    assert (problem_with_documents(text, mark) is not None) == is_refused_by_training(text, mark)


def test_a_separator_across_two_pieces_of_a_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("objectives.models.files._CHUNK", 7)
    text = written(tmp_path, b"|||".join([b"x" * 1000] * 12) + b"|||")
    assert problem_with_documents(text, "|||") is None
    assert problem_with_documents(text, "||||") is not None


def test_files_and_compressed_documents_are_counted(tmp_path: Path) -> None:
    for number in range(LEAST_DOCUMENTS + 3):
        written(tmp_path, b"text " * 300, f"{number:02}.txt")
    assert problem_with_documents((f"{tmp_path}/*.txt",), None) is None
    assert problem_with_documents((f"{tmp_path}/0[0-4].txt",), None) is not None
    packed = written(tmp_path, gzip.compress(b"line\n" * 5000), "lines.gz")
    assert problem_with_documents(packed, "\n") is None
    assert problem_with_documents(packed, None) is not None


@pytest.mark.parametrize(
    "fields", ["dedup: near", "quality: compression", "noise_share: 0.1", "duplicated_share: 0.1", "curriculum: loss"]
)
def test_a_plan_refuses_a_text_of_few_documents_in_one_line(tmp_path: Path, fields: str) -> None:
    (text,) = written(tmp_path, b"line of a text\n" * 2000)
    few, enough = (
        sweep_of(f"fixed: {{text: ['{text}'], {fields}{more}}}\n", BASE) for more in ("", ', separator: "\\n"')
    )
    with pytest.raises(InputError) as refused:
        plan_of(few, tmp_path)
    (problem,) = refused.value.problems
    assert str(problem).startswith(f"sweep case: text {text} has 1 document")
    assert "\n" not in problem.message
    assert "separator" in problem.remedy
    assert plan_of(enough, tmp_path).to_train == 1


def test_a_plan_refuses_a_compressed_text_that_is_damaged(tmp_path: Path) -> None:
    (text,) = written(tmp_path, gzip.compress(b"line of a text\n" * 2000)[:60], "text.gz")
    with pytest.raises(InputError, match="cannot be read"):
        plan_of(sweep_of(f"fixed: {{text: ['{text}'], dedup: near, separator: x}}\n", BASE), tmp_path)


def test_each_text_of_a_sweep_is_named_once(tmp_path: Path) -> None:
    (text,) = written(tmp_path, b"line of a text\n" * 2000)
    body = f"axes: {{lr: {{values: [0.1, 0.2]}}}}\nfixed: {{domains: {{tables: 1, '{text}': 2}}}}\n"
    assert texts_of(sweep_of(body, BASE)) == [(("tables",), Recipe()), ((text,), Recipe())]
    assert texts_of(sweep_of("", "name: case\nobjective: quadratic\nsteps: 5\n")) == []
