from __future__ import annotations

import pytest
import torch

from objectives.data import BatchStream, held_out_batches, load_corpus

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path):
    for i in range(3):
        (tmp_path / f"part{i}.txt").write_bytes(bytes([65 + i]) * 6000)
    return tmp_path


def test_the_default_text_is_the_standard_library() -> None:
    corpus = load_corpus(())
    assert "Python" in corpus.source
    assert "standard library" in corpus.source
    assert len(corpus.training) > 5_000_000
    assert b"def " in bytes(corpus.held_out[:100_000].tolist())


def test_files_folders_and_globs_hold_the_same_text(files) -> None:
    names = tuple(str(files / f"part{i}.txt") for i in range(3))
    found = {load_corpus(text).sha256 for text in (names, (str(files),), (str(files / "*.txt"),))}
    assert len(found) == 1


def test_what_is_held_out_is_the_end_and_never_trained_on(files) -> None:
    corpus = load_corpus((str(files),))
    assert len(corpus.held_out) == pytest.approx(0.1 * 18_002, abs=1)
    whole = b"\n".join(bytes([65 + i]) * 6000 for i in range(3))
    assert bytes(corpus.training.tolist()) + bytes(corpus.held_out.tolist()) == whole


@pytest.mark.parametrize(("text", "says"), [("missing-*.txt", "missing"), ("short.txt", "5 bytes")])
def test_text_that_cannot_be_trained_on_is_named(tmp_path, text: str, says: str) -> None:
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(ValueError, match=says):
        load_corpus((str(tmp_path / text),))


def test_a_context_longer_than_the_text_is_refused(files) -> None:
    with pytest.raises(ValueError, match="context = 5000"):
        BatchStream(load_corpus((str(files),)), [0], 2, 5000, CPU)


def test_batches_depend_on_seed_and_step_alone() -> None:
    corpus = load_corpus(())
    stream = BatchStream(corpus, [0, 1, 0], 4, 16, CPU)
    first = [stream.batch(step).clone() for step in (0, 1, 255, 256, 1000)]
    other = BatchStream(corpus, [1], 4, 16, CPU)
    # Asked in another order, by another pack.
    for step, batch in reversed(list(zip((0, 1, 255, 256, 1000), first, strict=True))):
        assert torch.equal(other.batch(step)[0], batch[1])
        assert torch.equal(batch[0], batch[2])
        assert not torch.equal(batch[0], batch[1])
    assert len({tuple(batch.flatten().tolist()) for batch in first}) == 5


def test_held_out_batches_are_sequences_of_the_held_out_part(files) -> None:
    batches = held_out_batches(load_corpus((str(files),)), 3, 2, 8)
    assert batches.shape == (3, 2, 9)
    assert set(batches.unique().tolist()) == {67}
