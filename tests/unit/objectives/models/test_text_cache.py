"""The folder of prepared texts stays within its budget, and what a process reads stays there."""

import fcntl
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from objectives.models import text_cache, texts
from objectives.models.data import load_corpus
from objectives.models.facts.text import Recipe
from objectives.models.text_cache import hold, make_room, new_file
from objectives.models.texts import StoredBytes, load_text

KB = 1e-6  # in gigabytes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of texts; as if a process had begun, none of them is held."""
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text_cache, "_held", {})
    load_corpus.cache_clear()
    (tmp_path / "cache" / "texts").mkdir(parents=True)
    yield tmp_path / "cache" / "texts"
    release()
    load_corpus.cache_clear()


def release() -> None:
    """What the end of a process does to its locks."""
    for handle in text_cache._held.values():
        os.close(handle)
    text_cache._held.clear()


def stored(folder: Path, ages: dict[str, int]) -> None:
    """Files of a thousand bytes, last used so many seconds ago."""
    for name, age in ages.items():
        (folder / name).write_bytes(b"x" * 1000)
        os.utime(folder / name, (1.5e9 - age, 1.5e9 - age))


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_was_used_least_recently_goes_first_and_no_more_than_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder, {"a.bin": 30, "b.npz": 40, "c.raw": 10, "d.bin": 20})
    monkeypatch.setenv("SWEEP_CACHE_GB", str(2.5 * KB))
    make_room(folder)
    assert left(folder) == {"c.raw", "d.bin"}
    make_room(folder)
    assert left(folder) == {"c.raw", "d.bin"}


def test_what_a_process_holds_stays_and_goes_once_it_has_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder, {"a.bin": 30, "b.bin": 20, "c.bin": 10})
    monkeypatch.setenv("SWEEP_CACHE_GB", "0")
    with (folder / "b.bin").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert hold(folder / "a.bin")
        make_room(folder)
        assert left(folder) == {"a.bin", "b.bin"}
    release()
    make_room(folder)
    assert left(folder) == set()
    assert not hold(folder / "a.bin")


def test_a_file_is_used_when_it_is_held_and_a_new_one_is_held_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder, {"a.bin": 10**9, "b.bin": 10**8})
    hold(folder / "a.bin")
    release()
    monkeypatch.setenv("SWEEP_CACHE_GB", str(2.5 * KB))
    with new_file(folder / "c.bin") as file:
        file.write(b"x" * 1000)
    assert left(folder) == {"a.bin", "c.bin"}
    monkeypatch.setenv("SWEEP_CACHE_GB", "0")
    make_room(folder)
    assert left(folder) == {"c.bin"}


def test_a_file_that_is_being_written_stays_and_one_that_a_killed_process_left_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_CACHE_GB", "0")
    for name, age in (("new.part", 60), ("old.part", 10**6)):
        (folder / name).write_bytes(b"x")
        now = (folder / name).stat().st_mtime
        os.utime(folder / name, (now - age, now - age))
    make_room(folder)
    assert left(folder) == {"new.part"}


def test_texts_beyond_the_budget_are_made_again_with_the_same_bytes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    monkeypatch.setenv("SWEEP_CACHE_GB", "0")
    for name in ("a", "b"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(name.encode() * 20_000))
    first = load_text((str(tmp_path / "a.gz"),), Recipe())
    other = load_text((str(tmp_path / "b.gz"),), Recipe())
    assert isinstance(first.training, StoredBytes)
    assert first.training[:].tobytes() == b"a" * 18_000, "the one that is read is still there"
    assert other.training[:].tobytes() == b"b" * 18_000
    release()
    make_room(folder)
    assert left(folder) == set()
    again = load_text((str(tmp_path / "a.gz"),), Recipe())
    assert again.training[:].tobytes() == b"a" * 18_000


@pytest.mark.parametrize("value", ["much", "-1", "nan", "inf"])
def test_a_budget_that_is_no_size_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SWEEP_CACHE_GB", value)
    with pytest.raises(ValueError, match="SWEEP_CACHE_GB"):
        make_room(folder)
