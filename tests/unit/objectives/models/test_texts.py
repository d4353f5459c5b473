"""Files of a text: compressed ones, folders, more than fits into memory; always the same bytes to train on."""

import bz2
import gzip
import lzma
import os
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from curve_cases import assert_resumes, assert_same, curves
from pack_cases import SMALL, trainer_of
from pretend_device import DEVICE, on_host, pretended_device

from objectives.base import GptConfig
from objectives.models import texts
from objectives.models.curriculum import Curriculum
from objectives.models.data import BatchStream, Corpus, held_out_batches, load_corpus
from objectives.models.documents import contents, documents_of
from objectives.models.facts.text import Recipe
from objectives.models.files import Source, opened
from objectives.models.made import _renamed
from objectives.models.origins import batch_origin
from objectives.models.texts import StoredBytes, load_text

CPU = torch.device("cpu")
CONTENT = b"".join(b"line %d of a text that is read from several files\n" % number for number in range(1500))
SIZES = {**SMALL["gpt"], "steps": 6}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    load_corpus.cache_clear()
    yield tmp_path / "cache" / "texts"
    load_corpus.cache_clear()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)


def zstd(content: bytes) -> bytes:
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(content)
    return out.getvalue().to_pybytes()


COMPRESSED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}


def whole(text: texts.Text) -> bytes:
    return text.training[:].tobytes() + text.held_out[:].tobytes()


@pytest.fixture(params=["one file", "a folder", *COMPRESSED, "a folder with a compressed file"])
def text(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, bytes]:
    """Where a text is, and its bytes."""
    folder = tmp_path / "text"
    folder.mkdir()
    if request.param in COMPRESSED:
        (folder / f"all.txt{request.param}").write_bytes(COMPRESSED[request.param](CONTENT))
        return str(folder / f"all.txt{request.param}"), CONTENT
    if request.param == "one file":
        (folder / "all.txt").write_bytes(CONTENT)
        return str(folder / "all.txt"), CONTENT
    (folder / "a.txt").write_bytes(CONTENT[:9000])
    (folder / "b.txt").write_bytes(b"")
    rest = CONTENT[9000:]
    name, content = ("c.txt", rest) if request.param == "a folder" else ("c.txt.gz", gzip.compress(rest))
    (folder / name).write_bytes(content)
    return str(folder), b"\n".join([CONTENT[:9000], b"", rest])


def test_a_text_is_the_same_in_memory_and_on_disk_and_once_more_from_the_cache(
    text: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = load_text(text[:1], Recipe())
    assert isinstance(in_memory.training, np.ndarray)
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    for _ in range(2):
        on_disk = load_text(text[:1], Recipe())
        assert isinstance(on_disk.training, StoredBytes)
        assert whole(on_disk) == whole(in_memory) == text[1]
        assert len(on_disk.training) == len(in_memory.training) == int(len(text[1]) * 0.9)
        assert (on_disk.sha256, on_disk.names) == (in_memory.sha256, in_memory.names)


def test_batches_are_the_same_in_memory_and_on_disk(text: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    cohorts = [(0, 3), (5, 250)]

    def found() -> list[torch.Tensor]:
        load_corpus.cache_clear()
        corpus = load_corpus(text[:1])
        return [BatchStream(corpus, 4, 16, CPU).batches(cohorts, 40), held_out_batches(corpus, 3, 4, 16)]

    in_memory = found()
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    assert all(map(torch.equal, found(), in_memory))


def test_a_trainer_reads_from_the_disk_what_it_reads_from_memory_and_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_bytes(CONTENT)
    config = GptConfig(text=(str(tmp_path / "text.txt"),), **SIZES)
    in_memory = curves(trainer_of("gpt", [config], [3]), 6)
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    load_corpus.cache_clear()
    assert_same(curves(trainer_of("gpt", [config], [3]), 6), in_memory)
    assert_resumes(partial(trainer_of, "gpt"), [config], [3], 4, 6, tmp_path)


def test_places_in_a_text_on_disk_stay_where_it_is_read_and_no_batch_of_it_waits_for_the_device(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(CONTENT)
    stored = StoredBytes(tmp_path / "text.bin", 0, len(CONTENT))
    corpus = Corpus(stored, stored, "", "")
    with pretended_device() as notes:
        on_device = BatchStream(corpus, 2, 8, torch.device(DEVICE)).batch([(0, 3)])
        assert notes.take() == {}
    assert torch.equal(on_host(on_device), BatchStream(corpus, 2, 8, CPU).batch([(0, 3)]))


def test_with_a_curriculum_a_text_on_disk_waits_for_the_device_once(tmp_path: Path) -> None:
    (tmp_path / "text.bin").write_bytes(CONTENT)
    stored = StoredBytes(tmp_path / "text.bin", 0, len(CONTENT))
    own = {"curriculum": "length", "curriculum_from": 0.5, "curriculum_steps": 4}
    curriculum = Curriculum([GptConfig(**{**SIZES, **own})] * 2)
    with pretended_device() as notes:
        index = torch.zeros(2, dtype=torch.int64).to(DEVICE)
        stream = BatchStream(Corpus(stored, stored, "", ""), 2, 8, torch.device(DEVICE))
        stream.batches_of([(0, 3)], 1, index, curriculum)
        notes.take()
        for step in (4, 5):
            stream.batches_of([(0, step)], 1, index, curriculum)
        assert notes.take() == {}


def test_bytes_outside_a_part_are_not_read_from_the_other_part(tmp_path: Path, little_memory: None) -> None:
    (tmp_path / "text.txt").write_bytes(CONTENT)
    text = load_text((str(tmp_path / "text.txt"),), Recipe())
    assert isinstance(text.training, StoredBytes)
    assert text.training.sequences(np.array([len(text.training) - 9]), 9).tobytes() == text.training[-9:].tobytes()
    for start in (len(text.training) - 8, -1):
        with pytest.raises(IndexError):
            text.training.sequences(np.array([0, start]), 9)


def test_held_out_batches_of_a_large_text_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "held_out.bin").touch()
    os.truncate(tmp_path / "held_out.bin", 199_999_999)
    held_out = StoredBytes(tmp_path / "held_out.bin", 0, 199_999_999)
    assert held_out_batches(Corpus(held_out, held_out, "", ""), 8, 64, 32).shape == (8, 64, 33)


def test_one_plain_file_is_read_in_place_and_others_are_kept_once(
    tmp_path: Path, cache: Path, little_memory: None
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(CONTENT)
    one = load_text((str(tmp_path / "a.txt"),), Recipe())
    assert isinstance(one.training, StoredBytes)
    assert one.training.path == tmp_path / "a.txt"
    assert [path.suffix for path in cache.iterdir()] == [".npz"]
    two = load_text((str(tmp_path / "*.txt"),), Recipe())
    assert isinstance(two.training, StoredBytes)
    assert two.training.path.parent == cache
    assert sorted(path.suffix for path in cache.iterdir()) == [".bin", ".npz", ".npz"]


def test_a_file_that_changes_is_read_anew(tmp_path: Path, little_memory: None) -> None:
    path = tmp_path / "text.txt.gz"
    for content in (CONTENT, CONTENT[::-1]):
        path.write_bytes(gzip.compress(content))
        os.utime(path, ns=(0, content[0]))
        assert whole(load_text((str(path),), Recipe())) == content


def test_a_cache_that_is_damaged_is_made_anew(tmp_path: Path, cache: Path, little_memory: None) -> None:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(CONTENT))
    load_text((str(path),), Recipe())
    for stored in cache.glob("*.npz"):
        stored.write_bytes(stored.read_bytes()[:100])
    assert whole(load_text((str(path),), Recipe())) == CONTENT


def test_a_cache_without_a_place_is_named_and_a_text_in_memory_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(CONTENT))
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "file"))
    in_memory = load_text((str(tmp_path / "text.txt.gz"),), Recipe(separator="\n", dedup="exact"))
    assert whole(in_memory) == CONTENT
    monkeypatch.setattr(texts, "MOST_IN_MEMORY", 5000)
    with pytest.raises(ValueError, match=r"no place in .*SWEEP_CACHE"):
        load_text((str(tmp_path / "text.txt.gz"),), Recipe())


def test_a_file_that_shrinks_while_it_is_trained_on_is_named(tmp_path: Path, little_memory: None) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(CONTENT)
    stream = BatchStream(load_corpus((str(path),)), 64, 16, CPU)
    stream.batch([(0, 0)])
    path.write_bytes(CONTENT[:100])
    with pytest.raises(ValueError, match=r"text\.txt has become shorter"):
        stream.batch([(0, 1)])


@pytest.mark.parametrize("ending", COMPRESSED)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"text{ending}"
    for content in (b"no such thing", COMPRESSED[ending](os.urandom(50_000))[:30_000]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"text\{ending} cannot be decompressed"):
            load_text((str(path),), Recipe())


@pytest.mark.parametrize("separator", ["\n", "\n\n", "<|end|>", "never there"])
@pytest.mark.parametrize("room", [10**6, 0])
def test_a_separator_tells_documents_apart_and_changes_no_byte(tmp_path: Path, separator: str, room: int) -> None:
    mark = separator.encode()
    files = [b"one" + mark + b"two\n" + mark + mark + b"three", b"", b"four" + mark, mark]
    for number, content in enumerate(files):
        (tmp_path / f"{number}.txt").write_bytes(content)
    sources = opened([(f"{n}", tmp_path / f"{n}.txt") for n in range(4)], room)
    assert [source.content is None for source in sources] == [room == 0] * 4
    documents = documents_of(sources, separator)
    expected = []
    for content in files:
        parts = content.split(mark)
        ended = [part + mark for part in parts[:-1]]
        expected.append([*ended, parts[-1]] if parts[-1] or not ended else ended)
    found = list(contents(sources, documents, "markup"))
    assert found == [document for of_file in expected for document in of_file]
    assert documents.has_break_D.sum() == 3
    joined = b"\n".join(files)
    starts = documents.start_D.tolist()
    assert [joined[start : start + len(one)] for start, one in zip(starts, found, strict=True)] == found


@pytest.mark.parametrize("at", range(1, 22))
def test_a_text_that_is_cut_has_all_its_bytes_in_two_parts(at: int) -> None:
    sources = [
        Source(str(n), Path(), len(content), content) for n, content in enumerate([b"abc\ndef", b"", b"ghi\njklmno"])
    ]
    joined = b"\n".join(source.content or b"" for source in sources)
    whole_text = documents_of(sources, "\n")
    assert whole_text.num_bytes == len(joined) == 19
    parts = whole_text.cut(min(at, 18))
    found = [b"".join(_with_breaks(sources, part)) for part in parts]
    assert found == [joined[: min(at, 18)], joined[min(at, 18) :]]


def _with_breaks(sources, documents):
    for content, has_break in zip(contents(sources, documents, "markup"), documents.has_break_D, strict=True):
        yield content + b"\n" * int(has_break)


@pytest.mark.parametrize(
    ("recipe", "most"), [({}, 80), ({"noise_share": 0.1}, 130), ({"dedup": "exact"}, 200)], ids=str
)
def test_a_short_document_costs_little_memory(tmp_path: Path, recipe: dict[str, Any], most: int) -> None:
    number = 30_000
    text = tmp_path / "short.txt"
    text.write_text("".join(f"{place}\n" for place in range(number)))
    load_text((str(text),), Recipe())  # imports
    tracemalloc.start()
    try:
        found = load_text((str(text),), Recipe("\n", **recipe))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.documents) > 0.8 * number
    assert peak < most * number  # bytes


def test_the_origin_of_a_batch_is_found_in_a_text_on_disk(tmp_path: Path, little_memory: None) -> None:
    (tmp_path / "a.txt").write_bytes(CONTENT[:20_000])
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(CONTENT[20_000:]))
    config = GptConfig(**{**SIZES, "batch_size": 16}, text=(str(tmp_path / "*.txt*"),))
    origins = batch_origin(config, 0, 0)
    assert {Path(origin.file).name for origin in origins} == {"a.txt", "b.txt.gz"}
    for origin in origins:
        start = origin.offset + (20_000 if origin.file.endswith("gz") else 0)
        assert origin.excerpt == " ".join(CONTENT[start : start + 9].decode().split())


def test_a_text_that_two_processes_make_at_once_is_that_of_the_first(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
        (folder / "000.txt").write_text(folder.name)
    _renamed(mine, theirs)
    assert (theirs / "000.txt").read_text() == "theirs"
    with pytest.raises(OSError, match="gone"):
        _renamed(tmp_path / "gone", tmp_path / "new")
