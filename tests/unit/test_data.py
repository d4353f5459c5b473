from __future__ import annotations

import pytest
import torch

from objectives.data import BatchStream, Corpus, held_out_batches, load_corpus

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


def test_folders_are_read_to_the_bottom_and_in_a_fixed_order(tmp_path) -> None:
    for name in ("b/c/deep.txt", "a.txt", "z.txt", "b/flat.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name * 1000)
    wanted = b"\n".join(name.encode() * 1000 for name in ("a.txt", "b/c/deep.txt", "b/flat.txt", "z.txt"))
    for text in (tmp_path, tmp_path / "**" / "*.txt"):
        corpus = load_corpus((str(text),))
        whole = bytes(corpus.training.tolist()) + bytes(corpus.held_out.tolist())
        # A glob sorts by the whole path as text, a folder by its parts; here both come out the same.
        assert whole == wanted


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing-*.txt", r"missing-\*\.txt' matches no file"),
        ("missing.txt", r"missing\.txt' matches no file"),
        ("empty", "empty' matches no file"),
        ("short.txt", r"short\.txt holds 5 bytes"),
    ],
)
def test_text_that_cannot_be_trained_on_is_named(tmp_path, name: str, says: str) -> None:
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=says):
        load_corpus((str(tmp_path / name),))


def test_one_pattern_without_a_file_is_refused_beside_others_that_have_some(files) -> None:
    with pytest.raises(ValueError, match=r"typo\.md' matches no file"):
        load_corpus((str(files), str(files / "typo.md")))


def test_a_context_longer_than_the_text_is_refused(files) -> None:
    with pytest.raises(ValueError, match=r"part.*too short for context = 5000"):
        BatchStream(load_corpus((str(files / "part*.txt"),)), 2, 5000, CPU)


def test_batches_are_spans_of_the_training_part_and_reach_all_of_it() -> None:
    # Byte i is i, and held out is 255: a sequence shows where it was cut.
    training = torch.arange(20, dtype=torch.uint8)
    corpus = Corpus(training, torch.full((20,), 255, dtype=torch.uint8), "counting", "")
    stream = BatchStream(corpus, 4, 16, CPU)
    sequences = torch.cat([stream.batch([(0, step), (1, step)]) for step in range(40)], dim=1)
    assert sequences.shape == (2, 160, 17)
    starts = sequences[..., :1]
    assert torch.equal(sequences, starts + torch.arange(17))
    for k in range(2):
        assert starts[k].unique().tolist() == [0, 1, 2, 3]


def test_batches_depend_on_seed_and_step_alone() -> None:
    corpus = load_corpus(())
    stream = BatchStream(corpus, 4, 16, CPU)
    first = [stream.batch([(0, step), (1, step)]) for step in (0, 1, 255, 256, 1000)]
    other = BatchStream(corpus, 4, 16, CPU)
    # Asked in another order, by another pack.
    for step, batch in reversed(list(zip((0, 1, 255, 256, 1000), first, strict=True))):
        assert torch.equal(other.batch([(1, step)])[0], batch[1])
        assert not torch.equal(batch[0], batch[1])
    assert len({tuple(batch.flatten().tolist()) for batch in first}) == 5


def test_cohorts_that_leave_join_or_are_of_another_age_take_no_data_of_others_along() -> None:
    corpus = load_corpus(())
    stream = BatchStream(corpus, 4, 16, CPU)
    before = stream.batch([(5, 3), (1, 3), (7, 3)])
    assert torch.equal(stream.batch([(1, 3), (7, 3)]), before[1:])
    assert torch.equal(stream.batch([(7, 3), (5, 0), (5, 3)])[[0, 2]], before[[2, 0]])


def test_batches_are_the_same_step_by_step_and_asked_for_one_at_a_time() -> None:
    corpus = load_corpus(())
    cohorts = [(0, 230), (3, 0)]
    stream = BatchStream(corpus, 4, 16, CPU)
    for t in range(100):
        now = [(seed, step + t) for seed, step in cohorts]
        assert torch.equal(stream.batch(now), BatchStream(corpus, 4, 16, CPU).batch(now))


def test_held_out_batches_are_sequences_of_the_held_out_part(files) -> None:
    batches = held_out_batches(load_corpus((str(files),)), 3, 2, 8)
    assert batches.shape == (3, 2, 9)
    assert set(batches.unique().tolist()) == {67}


def test_held_out_batches_spread_from_the_first_held_out_byte_to_the_last() -> None:
    held_out = torch.arange(100, 150, dtype=torch.uint8)
    batches = held_out_batches(Corpus(held_out, held_out, "counting", ""), 2, 3, 9)
    assert batches[..., 0].flatten().tolist() == [100, 108, 116, 124, 132, 140]
    assert torch.equal(batches, batches[..., :1] + torch.arange(10))
