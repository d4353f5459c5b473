import itertools

import pytest
import torch

from objectives.base import OBJECTIVES, GptConfig, QuadraticConfig
from objectives.models.data import BatchStream, Corpus, Corruption, held_out_batches, load_corpus
from objectives.models.drawn import corruption_draw, random_bytes
from objectives.models.facts.text import Recipe
from objectives.models.origins import batch_origin, batch_text
from objectives.models.texts import load_text

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
        ("short.txt", r"short\.txt has 5 bytes"),
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


def test_a_corpus_remembers_where_each_file_begins(tmp_path) -> None:
    contents = {"a.txt": b"first\n" * 1000, "b/c.txt": b"", "b/d.txt": b"second" * 1500}
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    text = load_text((str(tmp_path),), Recipe())
    assert text.names == tuple(str(tmp_path / name) for name in contents)
    assert text.documents.start_D.tolist() == [0, 6001, 6002]
    assert text.documents.size_D.tolist() == [6000, 0, 13_501 - 6002]  # of 15 002 bytes, the last tenth is held out
    assert text.held_out_documents.size_D.tolist() == [15_002 - 13_501]
    assert text.held_out_documents.offset_D.tolist() == [13_501 - 6002]


def test_files_of_the_standard_library_are_named_as_they_are_in_it() -> None:
    text = load_text((), Recipe())
    assert "json/decoder.py" in text.names
    assert len(text.names) == len(set(text.names))


# Batches of random bytes.

SHARES = [0.0, 0.1, 0.5, 1.0]
STEPS = range(600)


def corrupted(shares: list[float], cohorts: list[tuple[int, int]], members: list[int], tokens_SBT: torch.Tensor):
    member_K = torch.tensor(members)
    return Corruption(shares, CPU).apply(tokens_SBT[member_K], cohorts, member_K)


def corrupted_steps(share: float, seed: int) -> list[int]:
    text_SBT = torch.full((1, 2, 9), 300)  # no byte is 300
    return [t for t in STEPS if (corrupted([share], [(seed, t)], [0], text_SBT) != 300).all()]


def test_a_share_of_the_batches_is_replaced_as_a_whole_by_bytes_of_all_values() -> None:
    for share in SHARES:
        assert len(corrupted_steps(share, 3)) == pytest.approx(share * len(STEPS), abs=40)
    text_SBT = torch.full((1, 2, 9), 300)
    batches = [corrupted([0.5], [(3, t)], [0], text_SBT) for t in STEPS]
    # A batch is random from its first byte to its last or not at all.
    assert all(bool((batch == 300).all()) or bool((batch < 256).all()) for batch in batches)
    replaced = torch.cat([batch.flatten() for batch in batches if bool((batch < 256).all())])
    assert replaced.unique().tolist() == list(range(256))


def test_a_smaller_share_corrupts_some_of_the_steps_of_a_larger_one_with_the_same_bytes() -> None:
    found = [set(corrupted_steps(share, 3)) for share in SHARES]
    for smaller, larger in itertools.pairwise(found):
        assert smaller < larger
    assert set(corrupted_steps(0.5, 4)) != found[2]
    step = min(found[1])
    text_SBT = torch.full((1, 2, 9), 300)
    together = corrupted([0.1, 0.5, 1.0], [(3, step)], [0, 0, 0], text_SBT)
    assert torch.equal(together[0], together[1])
    assert torch.equal(together[1], together[2])


def test_corruption_of_a_member_depends_on_its_seed_its_step_and_its_share_alone() -> None:
    cohorts = [(3, 17), (0, 17), (3, 255), (3, 256), (8, 4000)]
    text_SBT = torch.arange(5 * 2 * 9).view(5, 2, 9) + 300
    members, shares = [0, 1, 2, 3, 4, 0, 2, 4, 1], [0.7, 0.7, 0.7, 0.7, 0.7, 0.2, 0.4, 0.0, 1.0]
    together = corrupted(shares, cohorts, members, text_SBT)
    assert together.dtype == text_SBT.dtype
    for k, (share, s) in enumerate(zip(shares, members, strict=True)):
        alone = corrupted([share], [cohorts[s]], [0], text_SBT[s : s + 1])
        assert torch.equal(alone[0], together[k])
        expected = (
            torch.from_numpy(random_bytes(*cohorts[s], (2, 9))).long()
            if corruption_draw(*cohorts[s]) < share
            else text_SBT[s]
        )
        assert torch.equal(together[k], expected)


def test_where_nobody_is_corrupted_the_batch_is_the_very_same_tensor() -> None:
    tokens = torch.zeros(2, 2, 9, dtype=torch.int64)
    member_K = torch.tensor([0, 1])
    spared = [t for t in STEPS if min(corruption_draw(0, t), corruption_draw(1, t)) >= 0.5]
    for shares, step in (([0.0, 0.0], 0), ([0.0, 0.5], spared[0])):
        assert Corruption(shares, CPU).apply(tokens, [(0, step), (1, step)], member_K) is tokens


# Where a batch came from.


def test_the_origin_of_a_batch_is_where_its_bytes_are_found() -> None:
    config = GptConfig(steps=10, batch_size=4, context=16)
    corpus = load_corpus(())
    stream = BatchStream(corpus, 4, 16, CPU)
    text = load_text((), Recipe())
    for seed, step in ((0, 0), (5, 255), (5, 256), (1, 10_000)):
        origins = batch_origin(config, seed, step)
        for origin, sequence in zip(origins, stream.batch([(seed, step)])[0], strict=True):
            assert origin.length == len(sequence) == 17
            assert torch.equal(corpus.training[origin.start : origin.start + 17].long(), sequence)
            index = text.names.index(origin.file)
            assert text.documents.start_D[index] + origin.offset == origin.start
            assert origin.offset <= text.documents.size_D[index]
            assert origin.excerpt == " ".join(bytes(sequence.tolist()).decode(errors="replace").split())
            assert not origin.is_corrupted


def test_the_origin_of_a_batch_says_whether_it_was_replaced_by_random_bytes() -> None:
    config = GptConfig(steps=10, batch_size=2, context=8, corrupted=0.5)
    text_SBT = torch.full((1, 2, 9), 300)
    for step in range(20):
        was_replaced = bool((corrupted([0.5], [(7, step)], [0], text_SBT) != 300).all())
        assert [origin.is_corrupted for origin in batch_origin(config, 7, step)] == [was_replaced] * 2


@pytest.fixture
def counted(tmp_path) -> str:
    """20 000 bytes in two files; the first has 4, so that nearly all begins in the second."""
    (tmp_path / "a.txt").write_bytes(b"head")
    (tmp_path / "b.txt").write_bytes(b"0123456789" * 2000)
    return str(tmp_path)


def test_a_batch_is_told_in_one_line(counted: str, tmp_path) -> None:
    config = GptConfig(steps=10, batch_size=6, context=9, text=(counted,), corrupted=0.5)
    spared = next(t for t in STEPS if corruption_draw(0, t) >= 0.5)
    replaced = next(t for t in STEPS if corruption_draw(0, t) < 0.5)
    for step, ending in (
        (spared, " and 2 more sequences"),
        (replaced, " and 2 more sequences, replaced by random bytes"),
    ):
        offsets = [origin.offset for origin in batch_origin(config, 0, step)]
        spans = [f"bytes {offset:,}-{offset + 9:,} of {tmp_path / 'b.txt'}" for offset in offsets[:4]]
        assert batch_text(config, 0, step) == ", ".join(spans) + ending


def test_an_objective_of_text_tells_where_a_batch_came_from_and_others_have_nothing_to_tell() -> None:
    config = GptConfig(steps=10, batch_size=2, context=8)
    assert OBJECTIVES["gpt"].batch_text(config, 3, 7) == batch_text(config, 3, 7)
    assert OBJECTIVES["quadratic"].batch_text(QuadraticConfig(steps=10), 3, 7) is None


def test_a_sequence_that_leaves_its_file_is_told_to_go_on(tmp_path) -> None:
    for i in range(1500):
        (tmp_path / f"{i:04}.txt").write_bytes(b"1234567")
    config = GptConfig(steps=10, batch_size=64, context=4, text=(str(tmp_path),))
    origins = batch_origin(config, 0, 0)
    for origin in origins:
        # Of offsets 0 to 7, the last of which is the line break, a sequence of 5 bytes fits in at 0, 1 and 2.
        assert origin.is_cut_short == (origin.offset > 2)
    k = next(k for k in range(4) if origins[k].is_cut_short)
    span = batch_text(config, 0, 0).split(", ")[k]
    assert span == f"bytes {origins[k].offset} to the end of {origins[k].file} and on"
