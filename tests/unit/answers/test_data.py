"""What `sweep data` says about the texts of a sweep."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from sweep_cases import sweep_of

from objectives.models.facts.text import Recipe
from objectives.models.inspection import inspected
from orchestrator.answers.data import DataAnswer, DataQuery
from orchestrator.api.sweep_files import overrides, read_sweep, sweep_of_text
from orchestrator.base.errors import InputError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu"]
PARAGRAPHS = [" ".join(np.random.RandomState(number).choice(WORDS, 30)) for number in range(120)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """120 paragraphs, the 7th and 8th repeated, the 9th with one word changed; the end is held out."""
    changed = PARAGRAPHS[9].replace(PARAGRAPHS[9].split()[0], "other", 1)
    written = "\n\n".join([*PARAGRAPHS[:100], PARAGRAPHS[7], changed, PARAGRAPHS[8], "z" * 180, *PARAGRAPHS[100:]])
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(written.encode()))
    return tmp_path / "text.txt.gz"


def asked(body: str, **options) -> DataAnswer:
    sweep = sweep_of(body, "name: case\nobjective: gpt\nsteps: 5\n")
    return DataQuery(**options).ask((sweep, Path()))


def test_exact_and_near_duplicates_are_counted_by_document_and_by_line(text: Path) -> None:
    (found,) = asked(f"fixed: {{text: ['{text}']}}\n", separator="\n\n").texts
    document, line = found.levels
    assert (document.level, line.level) == ("document", "line")
    assert (document.num_exact, document.num_near) == (line.num_exact, line.num_near) == (2, 1)
    sizes = [len(PARAGRAPHS[7]) + len(PARAGRAPHS[8]) + 4, len(PARAGRAPHS[9]) + 2]
    assert document.exact_share * found.num_bytes == pytest.approx(sizes[0], abs=4)
    assert document.near_share * found.num_bytes == pytest.approx(sizes[1], abs=6)
    assert (found.num_files, document.num) == (1, document.num_examined)


def test_the_least_typical_document_comes_first_with_its_place(text: Path) -> None:
    (found,) = asked(f"fixed: {{text: ['{text}']}}\n", separator="\n\n").texts
    first = found.untypical[0]
    content = gzip.decompress(text.read_bytes())
    assert content[first.offset : first.offset + first.size] == b"z" * 180 + b"\n\n"
    assert first.compression < found.compression.low
    assert first.file == str(text)


def test_a_text_is_examined_as_each_of_its_recipes_leaves_it(text: Path) -> None:
    axes = "axes: {dedup: {values: [null, exact, near]}, lr: {values: [0.1, 0.2]}}\n"
    found = asked(f"{axes}fixed: {{text: ['{text}'], separator: \"\\n\\n\"}}\n", separator="\n\n").texts
    assert [one.recipe for one in found] == [{}, {"dedup": "exact"}, {"dedup": "near"}]
    counts = [(one.levels[0].num_exact, one.levels[0].num_near) for one in found]
    assert counts == [(2, 1), (0, 1), (0, 0)]


def test_only_as_many_documents_are_compared_as_memory_allows(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inspected((str(text),), Recipe(separator="\n\n"))
    monkeypatch.setattr("objectives.models.inspection.MOST_EXAMINED", 50)
    part = inspected((str(text),), Recipe(separator="\n\n"))
    for level, other in zip(part.levels, whole.levels, strict=True):
        assert (level.num, level.num_examined, level.num_exact) == (other.num, 50, 0)


def test_texts_beyond_the_first_eight_are_counted(text: Path) -> None:
    axes = "axes: {noise_share: {values: [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}}\n"
    found = asked(f"{axes}fixed: {{text: ['{text}'], separator: \"\\n\\n\"}}\n")
    assert (len(found.texts), found.num_more) == (8, 2)


def test_what_cannot_be_examined_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(InputError, match="training needs at least 10000"):
        asked(f"fixed: {{text: ['{tmp_path / 'short.txt'}']}}\n")
    with pytest.raises(InputError, match="quadratic trains on no text"):
        DataQuery().ask((sweep_of("", "name: case\nobjective: quadratic\nsteps: 5\n"), Path()))
    with pytest.raises(InputError, match=r"--separator: .*is empty"):
        DataQuery.from_texts({"separator": ""})
    assert DataQuery.from_texts({"separator": r"\n\n"}).separator == "\n\n"


def test_a_path_or_a_name_that_is_not_a_sweep_is_a_text_itself(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    changes = overrides(sets=["fixed.dedup=near", 'fixed.separator="\\n\\n"'])
    sweep = sweep_of_text(text.name, results, changes)
    (found,) = DataQuery().ask((sweep, results)).texts
    assert (found.text, found.recipe, found.levels[0].num_near) == (str(text), {"dedup": "near"}, 0)
    for name in (str(tmp_path), "*.gz", "tables"):
        assert sweep_of_text(name, results, overrides()) is not None


def test_what_names_a_sweep_or_nothing_is_not_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.yaml").write_text("name: case\nobjective: gpt\nsteps: 5\n")
    for folder in (tmp_path / "done", tmp_path / "results" / "other"):
        folder.mkdir(parents=True)
        (folder / "sweep.yaml").write_text("name: case\nobjective: gpt\nsteps: 5\n")
    for name in ("case.yaml", "done", "other", "lr_warmup", "missing"):
        assert sweep_of_text(name, tmp_path / "results", overrides()) is None


@pytest.mark.parametrize(
    ("name", "or_text", "remedy"),
    [
        ("lr_warmpu", False, "did you mean `lr_warmup`?"),
        ("frist.yaml", False, "did you mean `first.yaml`?"),
        ("licenses", True, "did you mean `licences`?"),
        ("nothing.txt", True, "name a file, folder or glob of text, or a sweep"),
        ("nothing.txt", False, "`sweep init NAME` writes a sweep file"),
    ],
)
def test_a_name_of_nothing_is_refused_with_a_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, or_text: bool, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.yaml").touch()
    with pytest.raises(InputError) as refused:
        read_sweep(name, tmp_path / "results", overrides(), False, or_text=or_text)
    (problem,) = refused.value.problems
    assert (problem.where, problem.remedy) == (name, remedy)


def test_one_document_has_no_table_of_the_least_typical(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("\n".join(PARAGRAPHS))
    answer = asked(f"fixed: {{text: ['{path}']}}\n")
    assert not answer.texts[0].untypical
    assert not [line for line in answer.lines() if line.startswith("least typical")]
