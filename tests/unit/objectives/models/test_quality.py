"""Scores of documents against their definitions, and on dirt that is planted."""

import csv
import math
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks.planted_text import found_dirt, functions
from objectives.models.facts.text import NoiseKind, Quality
from objectives.models.quality import compression_ratio, unigram_perplexity, untypical
from objectives.models.recipes import lowest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "knobs.md").read_text()
PAIR = r" \| (0\.\d+), (0\.\d+)"
STATED = re.findall(rf"^\| (\w+){PAIR * len(get_args(Quality))} \|$", PAGE, re.MULTILINE)
DOCUMENTS = [b"the cat sat on the mat", b"", b"The dog (the big one) sat", b"zz zz zz", b"\n"]


def test_perplexity_counts_the_words_of_the_other_documents() -> None:
    words = [re.findall(rb"\w+|[^\w\s]", document.lower()) for document in DOCUMENTS]
    counts = Counter(word for document in words for word in document)
    expected = []
    for document in words:
        others = counts - Counter(document)
        surprise = [math.log(counts.total() / (others[word] + 1)) for word in document]
        expected.append(math.exp(sum(surprise) / max(len(surprise), 1)))
    assert unigram_perplexity(lambda: DOCUMENTS) == pytest.approx(expected)
    assert unigram_perplexity(lambda: []).tolist() == []


def test_text_that_repeats_compresses_better_and_random_bytes_do_not_compress() -> None:
    random = np.random.RandomState(0)
    text = [b" ".join(random.choice([b"one", b"two", b"three"], 50)) for _ in range(20)]
    ratio = compression_ratio(lambda: [*text, b"one " * 60, random.bytes(240), b""])
    assert ratio[-3] < ratio[:-3].min()
    assert ratio[-2] > 1 > ratio[:-3].max()
    assert ratio[-1] == 1


def test_a_document_does_not_make_itself_typical() -> None:
    random = np.random.RandomState(1)
    documents = [random.bytes(200) for _ in range(20)]
    assert compression_ratio(lambda: documents).min() > 0.99


def test_far_above_and_far_below_the_median_of_similar_length_are_untypical_alike() -> None:
    score_D = np.tile(np.exp(np.linspace(-0.1, 0.1, 50)), 2)
    score_D[50:] *= 10  # longer documents compress otherwise
    size_D = np.repeat([10, 1000], 50)
    score_D[[7, 60]] = [math.exp(2), 10 * math.exp(-2)]
    away_D = untypical(score_D, size_D)
    assert {*np.argsort(-away_D)[:2].tolist()} == {7, 60}
    assert away_D[7] == pytest.approx(away_D[60], rel=0.05)
    assert np.median(away_D) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_lowest_have_their_share_of_the_bytes_to_the_nearest_document(share: float) -> None:
    size_D = np.arange(1, 101)
    is_lowest_D = lowest(np.arange(100)[::-1], size_D, share)
    assert size_D[is_lowest_D].sum() == pytest.approx(share * size_D.sum(), abs=50)
    assert is_lowest_D.tolist() == sorted(is_lowest_D.tolist())
    assert {0.0: is_lowest_D.sum() == 0, 1.0: is_lowest_D.sum() == 100}.get(share, True)


def test_what_the_page_says_of_planted_text_is_in_the_table() -> None:
    with (ROOT / "results/reference/planted_text.csv").open() as file:
        table = {(row["planted"], row["by"]): row for row in csv.DictReader(file) if row["first"] == "0"}
    for kind, *stated in STATED:
        found = [table[kind, quality][share] for quality in get_args(Quality) for share in ("precision", "recall")]
        assert found == stated
    of_copies = re.findall(r"in\s(\d) % of the words (0\.\d+)", PAGE)
    assert len(of_copies) == 2
    for share, stated in of_copies:
        assert table[f"copies, {share}% of words edited", "near"]["recall"] == stated


@pytest.mark.slow
def test_planted_dirt_is_found_as_the_documentation_says() -> None:
    documents = functions(3)
    assert [kind for kind, *_ in STATED] == [*get_args(NoiseKind)]
    for kind, *stated in STATED:
        found = [number for quality in get_args(Quality) for number in found_dirt(documents, kind, quality)]
        assert found == pytest.approx([*map(float, stated)], abs=0.05)
