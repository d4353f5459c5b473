"""Fields of a text to train on: its documents, and what is planted among them or taken out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pydantic import field_validator

from objectives.fields import Condition, structural, unless
from objectives.training_config import TrainingConfig

NAMED_TEXTS = ("python", "python_docs", "licences", "tables")  # in place of a path
HELD_OUT = 0.1  # of the bytes, the last ones
LEAST_DOCUMENTS = 10  # for noise, copies, deduplication, a filter or an order
NoiseKind = Literal["shuffled", "foreign", "markup", "repeated"]
Dedup = Literal["exact", "near"]
Quality = Literal["compression", "perplexity", "model"]
Order = Literal["compression", "loss", "noise"]
ORDERS: tuple[Order, ...] = get_args(Order)

_TELLS_DOCUMENTS_APART = Condition(
    "duplicated_share, noise_share, dedup or quality is set, or a curriculum of documents",
    lambda settings: bool(
        settings["duplicated_share"]
        or settings["noise_share"]
        or settings["dedup"]
        or settings["quality"]
        or settings.get("curriculum") in ORDERS
    ),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the training part of a text is made from its documents; by default it is left as it is.

    ``curriculum`` is what its documents are ordered by, from easy to hard.
    """

    separator: str | None = None
    duplicated_share: float = 0.0
    duplicated_times: int = 1
    noise_share: float = 0.0
    noise_kind: NoiseKind = "shuffled"
    dedup: Dedup | None = None
    quality: Quality | None = None
    quality_keep: float = 1.0
    curriculum: Order | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the text stays as it is."""
        has_copies = self.duplicated_share > 0 and self.duplicated_times > 1
        return not (has_copies or self.noise_share > 0 or self.dedup or self.quality or self.curriculum)

    @property
    def is_slow(self) -> bool:
        """Whether it reads all documents, which is worth keeping for the next pack."""
        return self.dedup is not None or self.quality is not None or self.curriculum in ("compression", "loss")


# The fields that a text is made by, from its files.
RECIPE_FIELDS = tuple(field.name for field in fields(Recipe))


class TextConfig(TrainingConfig):
    """The configuration of an objective that trains on a text."""

    separator: str | None = structural(
        None,
        "text",
        'what ends a document within a file, such as "\\n" for lines; null for one document a file',
        acts=_TELLS_DOCUMENTS_APART,
        off=True,
        min_length=1,
        max_length=100,
    )
    duplicated_share: float = structural(
        0.0, "1", "share of the text, in whole documents, that is repeated", off=True, ge=0, le=1
    )
    duplicated_times: int = structural(
        10, "times", "how often that share is in the text", acts=unless("duplicated_share", 0.0), ge=1, le=10_000
    )
    noise_share: float = structural(
        0.0, "1", "share of the text, in whole documents, that is replaced by noise", off=True, ge=0, le=1
    )
    noise_kind: NoiseKind = structural(
        "shuffled",
        "kind",
        "noise: the document's bytes shuffled, its letters as Cyrillic ones, its words in tags, or one word repeated",
        acts=unless("noise_share", 0.0),
    )
    dedup: Dedup | None = structural(
        None, "kind", "keep the first of equal documents, or of near ones by MinHash; null for all", off=True
    )
    quality: Quality | None = structural(
        None,
        "kind",
        "drop the documents whose compression ratio, unigram perplexity or loss by a small trained model is least"
        " typical; null for none",
        off=True,
    )
    quality_keep: float = structural(
        0.8, "1", "share of the text that quality keeps", acts=unless("quality", None), gt=0, le=1
    )

    @field_validator("separator", mode="before")
    @classmethod
    def _typed(cls, value: Any) -> Any:
        """Read \\n and \\t as YAML does within double quotes, which are easily forgotten."""
        return value.replace("\\n", "\n").replace("\\t", "\t") if isinstance(value, str) else value

    @property
    def recipe(self) -> Recipe:
        """How the text is made from its documents; equal for settings that make the same one."""
        return self.recipe_in(None)

    def recipe_in(self, order: Order | None) -> Recipe:
        """Return how the text is made from its documents, and their order."""
        recipe = Recipe(
            self.separator,
            self.duplicated_share,
            self.duplicated_times if self.duplicated_share > 0 else 1,
            self.noise_share,
            self.noise_kind if self.noise_share > 0 else "shuffled",
            self.dedup,
            self.quality,
            self.quality_keep if self.quality else 1.0,
            order,
        )
        return Recipe() if recipe.is_plain else recipe
