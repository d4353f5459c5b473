"""What a recipe makes of a text: noise, copies, deduplication and a filter; packs and resumed runs stay exact."""

import itertools
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from curve_cases import assert_goes_on_as_alone, assert_resumes
from pack_cases import SMALL, trainer_of
from pydantic import ValidationError
from sweep_cases import sweep_of

from objectives.base import GptConfig
from objectives.models import model_loss, texts
from objectives.models.data import load_corpus
from objectives.models.facts.text import NoiseKind, Quality, Recipe
from objectives.models.noise import noisy
from objectives.models.origins import batch_origin, batch_text
from objectives.models.texts import Text, load_text
from orchestrator.base.errors import InputError

SIZES = SMALL["gpt"]
NUM_STEPS = 8
KINDS = get_args(NoiseKind)
LINES = [
    b"number %d has words %s and %s\n" % (n, b"a" * (n % 7 + 1), b"xyz"[n % 3 : n % 3 + 1] * (n % 11 + 2))
    for n in range(1000)
]


@pytest.fixture(autouse=True)
def short_training_of_what_scores_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loss, "STEPS", 3)


@pytest.fixture
def text(tmp_path: Path) -> tuple[str]:
    """A text of lines, no two of which are equal."""
    (tmp_path / "lines.txt").write_bytes(b"".join(LINES))
    return (str(tmp_path / "lines.txt"),)


def trained_on(text: Text) -> bytes:
    return text.training[:].tobytes()


def lines_of(text: Text) -> list[bytes]:
    return trained_on(text).splitlines(keepends=True)


def by(**fields: Any) -> Recipe:
    return GptConfig(steps=1, **{"separator": "\n", **fields}).recipe


NOTHING = [
    {}, {"noise_share": 0.0, "noise_kind": "markup"}, {"duplicated_share": 0.0}, {"separator": None},
    {"duplicated_share": 0.3, "duplicated_times": 1}, {"dedup": "exact"},
    {"quality": "perplexity", "quality_keep": 1.0}, {"dedup": "exact", "duplicated_share": 0.3, "duplicated_times": 4},
]  # fmt: skip


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_without_dirt_copies_or_a_filter_the_text_is_the_same_to_the_bit(text: tuple[str], fields: dict) -> None:
    plain, prepared = load_text(text, Recipe()), load_text(text, by(**fields))
    assert trained_on(prepared) == trained_on(plain)
    assert prepared.sha256 == plain.sha256


@pytest.mark.parametrize("fields", NOTHING[:5], ids=str)
def test_what_changes_nothing_is_no_recipe(fields: dict) -> None:
    assert by(**fields) == Recipe()


@pytest.mark.parametrize("kind", KINDS)
def test_noise_replaces_a_share_of_the_documents_and_those_of_a_smaller_share_are_among_them(
    text: tuple[str], kind: NoiseKind
) -> None:
    plain = load_text(text, Recipe())
    found = [load_text(text, by(noise_share=share, noise_kind=kind)) for share in (0.1, 0.4, 1.0)]
    clean = lines_of(plain)
    dirty: list[set[int]] = []
    for share, noise in zip((0.1, 0.4, 1.0), found, strict=True):
        assert noise.held_out[:].tobytes() == plain.held_out[:].tobytes()
        documents = noise.documents
        assert documents.start_D.tolist() == np.cumsum([0, *map(len, clean)])[:-1].tolist()
        now = trained_on(noise)
        for number, (start, line) in enumerate(zip(documents.start_D.tolist(), clean, strict=True)):
            expected = noisy(kind, line, number) if documents.is_noise_D[number] else line
            assert now[start : start + len(line)] == expected
        dirty.append({*np.flatnonzero(documents.is_noise_D).tolist()})
        assert documents.size_D[documents.is_noise_D].sum() / len(now) == pytest.approx(share, abs=0.002)
    assert dirty[0] < dirty[1] < dirty[2] == {*range(len(clean))}


LONG = b"".join(LINES[:20])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "content", [b"", b"a", b"\n \n", b"\xff\xfe\x00" * 9, LONG], ids=["", "a", "space", "bytes", "text"]
)
def test_noise_is_as_long_as_the_document_and_the_same_each_time(kind: NoiseKind, content: bytes) -> None:
    found = [noisy(kind, content, number) for number in (3, 3, 4)]
    assert [len(each) for each in found] == [len(content)] * 3
    assert found[0] == found[1]


def test_each_kind_of_noise_is_what_it_is_called() -> None:
    shuffled, foreign, markup, repeated = (noisy(kind, LONG, 1) for kind in KINDS)
    assert Counter(shuffled) == Counter(LONG)
    assert b"number" not in shuffled
    assert re.findall("[a-zA-Z]", foreign.decode(errors="ignore")) == []
    letters = {chr(ord(letter) + 0x430 - ord("a")) for letter in "numberhaswordsandxyz"}
    assert {*re.findall(r"[^\W\d_]", foreign.decode(errors="ignore"))} == letters
    assert {*re.findall(rb">(\w+)</", markup)} <= {*re.findall(rb"\w+", LONG)}
    assert markup.count(b"<") > len(markup) / 50
    assert len({*repeated.split(b" ")[:-1]}) == 1


@pytest.mark.parametrize(("share", "times"), [(0.01, 100), (0.3, 2), (1.0, 3)])
def test_a_share_of_the_documents_is_there_as_often_as_asked_for(text: tuple[str], share: float, times: int) -> None:
    plain, prepared = (
        load_text(text, recipe) for recipe in (Recipe(), by(duplicated_share=share, duplicated_times=times))
    )
    whole = lines_of(plain)[:-1]  # the last is cut where the held-out part begins
    counts = Counter(lines_of(prepared))
    assert {counts[line] for line in whole} <= {1, times}
    repeated = sum(len(line) for line in whole if counts[line] == times)
    assert repeated / len(trained_on(plain)) == pytest.approx(share, abs=0.003)
    assert len(trained_on(prepared)) == pytest.approx(len(trained_on(plain)) * (1 + share * (times - 1)), rel=0.02)
    assert trained_on(prepared).startswith(trained_on(plain))
    assert prepared.held_out[:].tobytes() == plain.held_out[:].tobytes()


def test_copies_of_noise_are_equal_and_exact_deduplication_takes_them_out(text: tuple[str]) -> None:
    noise = {"noise_share": 0.5, "noise_kind": "shuffled"}
    copies = {"duplicated_share": 0.2, "duplicated_times": 5}
    found = load_text(text, by(**noise, **copies, dedup="exact"))
    assert trained_on(found) == trained_on(load_text(text, by(**noise)))


@pytest.mark.parametrize("quality", get_args(Quality))
def test_a_filter_keeps_its_share_in_the_order_of_the_text(text: tuple[str], quality: str) -> None:
    plain = lines_of(load_text(text, Recipe()))
    kept = [lines_of(load_text(text, by(quality=quality, quality_keep=keep))) for keep in (0.5, 0.8)]
    for keep, lines in zip((0.5, 0.8), kept, strict=True):
        assert sum(map(len, lines)) / sum(map(len, plain)) == pytest.approx(keep, abs=0.002)
        places = [plain.index(line) for line in lines[:-1]]
        assert all(one < other for one, other in itertools.pairwise(places))
    assert {*kept[0][:-1]} < {*kept[1]}


def test_every_recipe_is_the_same_in_memory_on_disk_and_from_the_cache(
    text: tuple[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = [
        by(noise_share=0.3, noise_kind="markup", duplicated_share=0.1, duplicated_times=3, dedup=dedup, quality=quality)
        for dedup, quality in ((None, None), ("exact", "perplexity"), ("near", "compression"), (None, "model"))
    ]
    first, again = ([load_text(text, recipe) for recipe in recipes] for _ in range(2))
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    monkeypatch.setenv("SWEEP_CACHE", str(Path(text[0]).parent / "other"))
    on_disk = [load_text(text, recipe) for recipe in recipes]
    for found in zip(first, again, on_disk, strict=True):
        assert len({trained_on(each) for each in found}) == len({each.sha256 for each in found}) == 1
        assert len({each.documents.number_D.tobytes() for each in found}) == 1


def test_a_text_of_few_documents_is_refused_with_a_remedy(text: tuple[str]) -> None:
    with pytest.raises(ValueError, match=r"lines\.txt has 1 document to train on.* separator"):
        load_text(text, by(separator=None, noise_share=0.1))


def test_the_origin_of_a_batch_is_in_the_file_wherever_copies_and_filters_move_it(text: tuple[str]) -> None:
    fields = {"separator": "\n", "duplicated_share": 0.2, "duplicated_times": 4, "quality": "compression"}
    config = GptConfig(steps=9, text=text, **{**SIZES, "batch_size": 32}, **fields)
    content = b"".join(LINES)
    corpus = load_corpus(text, config.recipe)
    for origin in batch_origin(config, 0, 0):
        size = origin.length if not origin.is_cut_short else 1
        assert bytes(corpus.training[origin.start : origin.start + size].tolist()) == content[origin.offset :][:size]
    dirty = config.model_copy(update={"noise_share": 0.5})
    assert {origin.is_noise for origin in batch_origin(dirty, 0, 0)} == {True, False}
    said = batch_text(dirty, 0, 0).split(", ")[0]
    assert said.endswith(" (noise)") == batch_origin(dirty, 0, 0)[0].is_noise


FIELDS = {
    "noise": {"separator": "\n", "noise_share": 0.4, "noise_kind": "repeated"},
    "copies": {"separator": "\n", "duplicated_share": 0.2, "duplicated_times": 5},
    "filter": {"separator": "\n", "dedup": "near", "quality": "perplexity"},
}


@pytest.mark.parametrize("fields", FIELDS.values(), ids=list(FIELDS))
def test_packs_and_resumed_runs_stay_exact(text: tuple[str], fields: dict, tmp_path: Path) -> None:
    base = GptConfig(steps=NUM_STEPS, lr=1e-2, text=text, **SIZES, **fields)
    configs = [base, base.model_copy(update={"lr": 3e-3}), base]
    assert_goes_on_as_alone(partial(trainer_of, "gpt"), configs, [0, 0, 1], [0, 2], NUM_STEPS)
    assert_resumes(partial(trainer_of, "gpt"), configs, [0, 0, 1], 5, NUM_STEPS, tmp_path)


def test_a_recipe_acts_on_what_is_trained_on_and_not_on_the_validation_text(text: tuple[str]) -> None:
    plain = GptConfig(steps=NUM_STEPS, text=text, **SIZES)
    start = trainer_of("gpt", [plain], [0])
    for fields in FIELDS.values():
        prepared = trainer_of("gpt", [plain.model_copy(update=fields)], [0])
        assert prepared.validate([0]) == start.validate([0])
        assert not torch.equal(prepared.step()["loss"], trainer_of("gpt", [plain], [0]).step()["loss"])


@pytest.mark.parametrize("quality", get_args(Quality))
def test_a_filter_that_keeps_no_document_is_refused(text: tuple[str], quality: Any) -> None:
    with pytest.raises(ValueError, match=r"quality_keep = 1e-06 keeps none of the 9\d\d documents of text .*lines"):
        load_text(text, by(quality=quality, quality_keep=1e-6))
    assert len(load_text(text, by(quality=quality, quality_keep=0.02)).training) > 0


BASE = "name: case\nobjective: gpt\nsteps: 20\n"
REFUSED = {
    "fixed: {separator: '\\n'}\n": ("fixed.separator", "duplicated_share, noise_share, dedup or quality"),
    "fixed: {separator: '', dedup: near}\n": ("case.yaml:4", "fixed.separator"),
    "fixed: {noise_kind: markup}\n": ("fixed.noise_kind", "noise_share"),
    "fixed: {noise_kind: dust, noise_share: 0.1}\n": ("case.yaml:4", "fixed.noise_kind", "dust"),
    "fixed: {noise_share: 1.5}\n": ("case.yaml:4", "fixed.noise_share", "1.5"),
    "fixed: {duplicated_times: 3}\n": ("fixed.duplicated_times", "duplicated_share"),
    "fixed: {duplicated_share: 0.1, duplicated_times: 0}\n": ("case.yaml:4", "fixed.duplicated_times", "0"),
    "fixed: {dedup: fuzzy}\n": ("case.yaml:4", "fixed.dedup", "fuzzy"),
    "fixed: {quality_keep: 0.5}\n": ("fixed.quality_keep", "quality"),
    "fixed: {quality: compression, quality_keep: 0}\n": ("case.yaml:4", "fixed.quality_keep", "0"),
}


@pytest.mark.parametrize("body", REFUSED)
def test_settings_that_do_not_fit_are_refused(body: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(body, BASE)
    assert all(word in str(refused.value) for word in REFUSED[body]), str(refused.value)


def test_the_fields_are_axes_and_part_of_a_trial_only_where_they_act() -> None:
    (plain,) = sweep_of("", BASE).trials
    axes = "axes: {noise_share: {values: [0, 0.1]}, quality: {values: [null, compression]}}\n"
    trials = sweep_of(f"{axes}fixed: {{separator: '\\n'}}\n", BASE).trials
    assert len({trial.trial_id for trial in trials}) == 4
    assert plain.trial_id in {trial.trial_id for trial in trials}
    assert [("separator" in trial.config, "quality_keep" in trial.config) for trial in trials] == [
        (False, False), (True, True), (True, False), (True, True),
    ]  # fmt: skip


def test_a_line_break_that_a_shell_or_yaml_leaves_as_it_is_typed_is_one() -> None:
    for typed in ("\\n", "\n"):
        assert by(separator=typed, dedup="exact").separator == "\n"
    quoted, plain = (
        sweep_of(f"fixed: {{dedup: exact, separator: {text}}}\n", BASE).trials for text in ('"\\n"', "'\\n'")
    )
    assert quoted[0].trial_id == plain[0].trial_id


def test_a_recipe_of_an_unknown_kind_is_refused_in_python() -> None:
    with pytest.raises(ValidationError, match="noise_kind"):
        GptConfig(steps=3, noise_share=0.1, noise_kind="dust")
