"""Duplicates by MinHash, against similarities that are counted, and on duplicates that are planted."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.planted_text import found_copies, functions
from objectives.models.duplicates import first_equal, first_near, signatures
from objectives.models.noise import mixed
from objectives.models.words import words_of

PAGE = " ".join((Path(__file__).parents[4] / "docs" / "knobs.md").read_text().split())
TEXTS = [
    b"", b" \n", b"one", b"ONE word_2 and\tthree.four", b"a(b, c)[0] == 'x'", b"caf\xc3\xa9 \xff\xfe end\n",
    b"last one", b"one", b"word_2",
]  # fmt: skip


def split(document: bytes) -> list[bytes]:
    return re.findall(rb"[\w\x80-\xff]+|[^\w\s\x80-\xff]", document.lower())


def random_documents(count: int, length: int, seed: int) -> list[bytes]:
    """Documents in pairs: the second of a pair has more and more of its words changed."""
    random = np.random.RandomState(seed)
    documents = []
    for number in range(count):
        words = [b"w%d" % word for word in random.randint(0, 500, length)]
        other = [word if random.rand() > number / count * 0.15 else b"changed" for word in words]
        documents += [b" ".join(words), b" ".join(other)]
    return documents


def similarity(one: bytes, other: bytes) -> float:
    """The Jaccard similarity of the sets of five words in a row."""
    sets = [{tuple(split(each)[i : i + 5]) for i in range(max(len(split(each)) - 4, 1))} for each in (one, other)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_equal_words_have_equal_hashes_and_others_have_others() -> None:
    expected = [(number, word) for number, document in enumerate(TEXTS) for word in split(document)]
    (words,) = words_of(TEXTS)
    assert words.document_W.tolist() == [number for number, _ in expected]
    hash_of = dict(zip((word for _, word in expected), words.hash_W.tolist(), strict=True))
    assert words.hash_W.tolist() == [hash_of[word] for _, word in expected]
    assert len({*hash_of.values()}) == len(hash_of)


def test_the_share_of_equal_hashes_is_the_similarity() -> None:
    documents = random_documents(40, 200, 3)
    signature_DH, is_empty_D = signatures(documents)
    assert not is_empty_D.any()
    for one in range(0, len(documents), 2):
        expected = similarity(documents[one], documents[one + 1])
        found = (signature_DH[one] == signature_DH[one + 1]).mean()
        assert found == pytest.approx(expected, abs=4 * np.sqrt(0.25 / signature_DH.shape[1]))


def test_the_bias_of_the_estimate_is_below_its_noise() -> None:
    documents = random_documents(150, 80, 5)
    signature_DH, _ = signatures(documents)
    errors = [
        (signature_DH[one] == signature_DH[one + 1]).mean() - similarity(documents[one], documents[one + 1])
        for one in range(0, len(documents), 2)
    ]
    assert abs(np.mean(errors)) < 4 * np.sqrt(0.25 / signature_DH.shape[1] / len(errors))


def test_documents_are_near_where_their_similarity_is_clearly_above_the_threshold_and_not_below() -> None:
    documents = random_documents(60, 200, 4)
    first_D = first_near(documents)
    for one in range(0, len(documents), 2):
        of_pair = similarity(documents[one], documents[one + 1])
        if abs(of_pair - 0.7) > 0.13:
            assert (first_D[one + 1] == one) == (of_pair > 0.7)
    assert (first_D[::2] == np.arange(len(documents))[::2]).all()


@pytest.mark.parametrize("find", [first_equal, first_near])
def test_the_first_of_equal_documents_stays_and_empty_ones_are_all_different(find) -> None:
    documents = [b"a b c d e f", b"", b"x y", b" a b c d e f\n", b"\n\n", b"x y", b"a b c d e g"]
    assert find(documents).tolist() == [0, 1, 2, 0, 4, 2, 6]
    assert find([]).tolist() == []
    assert find([b"", b"\n"]).tolist() == [0, 1]


def test_the_groups_in_which_documents_are_read_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [*random_documents(20, 50, 1), *TEXTS, b"x" * 5000]
    whole, _ = signatures(documents)
    for size in (1, 300):
        monkeypatch.setattr("objectives.models.words._GROUP", size)
        monkeypatch.setattr("objectives.models.duplicates._AT_ONCE", 7)
        assert np.array_equal(signatures(documents)[0], whole)


def test_hashes_of_integers_are_those_of_splitmix64() -> None:
    # The first outputs of its generator with seed 0, from the reference implementation.
    step = 0x9E3779B97F4A7C15
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mixed(np.array([step * n % 2**64 for n in range(3)], dtype=np.uint64)).tolist() == expected


@pytest.mark.slow
def test_planted_duplicates_are_found_as_the_documentation_says() -> None:
    documents = functions(3)
    assert found_copies(documents, near=False, share_of_words=0) == (1, 1)
    assert found_copies(documents, near=True, share_of_words=0) == (1, 1)
    for share, stated in re.findall(r"in (\d) % of the words (0\.\d+)", PAGE):
        found = found_copies(documents, near=True, share_of_words=float(share) / 100)
        assert found.precision == 1
        assert found.recall == pytest.approx(float(stated), abs=0.05)
