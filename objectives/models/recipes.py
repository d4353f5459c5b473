"""What a recipe makes of a text's documents: copies, noise, what is taken out, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from objectives.models.documents import Documents, contents
from objectives.models.duplicates import first_equal, first_near
from objectives.models.facts.text import LEAST_DOCUMENTS, Recipe
from objectives.models.files import Source, few_documents
from objectives.models.noise import mixed
from objectives.models.quality import SCORES, byte_loss, compression_ratio, untypical

_NOISE, _COPIES = 1, 2  # purposes of a draw


def cooked(sources: Sequence[Source], documents: Documents, recipe: Recipe, source: str) -> Documents:
    """Return the documents that training reads: with noise and copies, without duplicates and the untypical, in order.

    Raises ValueError if there are too few documents for that.
    """
    if recipe.is_plain:
        return documents
    if len(documents) < LEAST_DOCUMENTS:
        few = few_documents(source, len(documents))
        raise ValueError(f'{few}; set separator, such as "\\n\\n" for paragraphs')
    last_number, has_last_break = documents.number_D[-1], documents.has_break_D[-1]
    documents = replace(documents, is_noise_D=chosen(documents, recipe.noise_share, _NOISE))
    if recipe.duplicated_times > 1:
        copied = np.flatnonzero(chosen(documents, recipe.duplicated_share, _COPIES))
        documents = documents.followed_by(np.tile(copied, recipe.duplicated_times - 1))
    if recipe.dedup is not None:
        find = first_equal if recipe.dedup == "exact" else first_near
        first_D = find(contents(sources, documents, recipe.noise_kind))
        documents = documents.at(first_D == np.arange(len(documents)))
    if recipe.quality is not None and recipe.quality_keep < 1:
        score_D = SCORES[recipe.quality](lambda: contents(sources, documents, recipe.noise_kind))
        is_dropped_D = lowest(-untypical(score_D, documents.size_D), documents.size_D, 1 - recipe.quality_keep)
        if is_dropped_D.all():
            problem = f"keeps none of the {len(documents)} documents of text {source}: choose a larger share"
            raise ValueError(f"quality_keep = {recipe.quality_keep:g} {problem}")
        documents = documents.at(~is_dropped_D)
    if documents.number_D[-1] == last_number:  # so that a text without duplicates is the same with dedup
        documents.has_break_D[-1] = has_last_break
    return documents if recipe.curriculum is None else ordered(sources, documents, recipe)


def ordered(sources: Sequence[Source], documents: Documents, recipe: Recipe) -> Documents:
    """Return the documents from easy to hard; alike ones keep their order. Each begins in a new line."""
    if recipe.curriculum == "noise":
        score_D = documents.is_noise_D.astype(np.float64)
    else:
        score = compression_ratio if recipe.curriculum == "compression" else byte_loss
        score_D = score(lambda: contents(sources, documents, recipe.noise_kind))
    has_break_D = documents.has_break_D.copy()
    has_break_D[-1] = True  # the last is cut where the held-out part begins
    return replace(documents, has_break_D=has_break_D).at(np.argsort(score_D, kind="stable"))


def chosen(documents: Documents, share: float, purpose: int) -> np.ndarray:
    """Return a mask of documents with a ``share`` of the bytes, which includes the documents of a smaller share."""
    return lowest(mixed(documents.number_D, purpose), documents.size_D, share)


def lowest(value_D: np.ndarray, size_D: np.ndarray, share: float) -> np.ndarray:
    """Return a mask of the documents with the lowest values that have ``share`` of the bytes, to the nearest one."""
    order = np.argsort(value_D, kind="stable")
    middle = np.cumsum(size_D[order]) - size_D[order] / 2
    is_lowest_D = np.zeros(len(size_D), dtype=np.bool_)
    is_lowest_D[order] = middle < share * size_D.sum()
    return is_lowest_D
