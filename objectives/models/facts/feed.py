"""Fields of what a member is fed: several texts by weight, and their order from easy to hard; free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from objectives.fields import Condition, per_member, structural, unless
from objectives.models.facts.text import ORDERS, RECIPE_FIELDS, Recipe, TextConfig

MIX_READINGS = ("domain_loss/text", "domain_loss/mix_text")
Curriculum = Literal["length", "compression", "loss", "noise", "domains"]
_HAS_DOMAINS = Condition("domains is not empty", lambda settings: bool(settings["domains"]))
_HAS_NO_DOMAINS = Condition("domains is empty", lambda settings: not settings["domains"])
_HAS_CURRICULUM = unless("curriculum", None)
_HAS_ORDER = Condition(
    "curriculum is compression, loss, noise or domains", lambda settings: settings["curriculum"] in (*ORDERS, "domains")
)

# The fields that a member's batches follow from, besides its seed.
DATA_FIELDS = (
    "batch_size",
    "context",
    "text",
    *RECIPE_FIELDS,
    "corrupted",
    "burst_at",
    "burst_length",
    "shift_at",
    "shift_text",
    "mix_share",
    "mix_text",
    "domains",
    "domain_temperature",
    "curriculum_from",
    "curriculum_to",
    "curriculum_steps",
    "curriculum_reversed",
)


def _as_pairs(domains: Any) -> Any:
    """Read a mapping of texts to weights as pairs, which are hashable and keep their order."""
    pairs = domains.items() if isinstance(domains, Mapping) else domains
    if not isinstance(pairs, Sequence) and not isinstance(domains, Mapping):
        return domains
    is_pair = [isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs]
    return tuple((pair[0], _as_weight(pair[1])) for pair in pairs) if all(is_pair) else domains


def _as_weight(weight: Any) -> Any:
    return float(weight) if isinstance(weight, int) and not isinstance(weight, bool) else weight


class FeedFields(TextConfig):
    """The configuration of an objective that reads texts: one, or several by weight, and their dirt and order."""

    context: int = structural(32, "bytes", "length of a training sequence", ge=2, le=65_536)
    text: tuple[str, ...] = structural(
        (),
        "paths",
        "text files, folders, globs or names (python_docs, licences, tables); empty for Python's standard library",
        acts=_HAS_NO_DOMAINS,
    )
    domains: Annotated[tuple[tuple[str, float], ...], BeforeValidator(_as_pairs)] = structural(
        (), "weights", "texts and their weights in place of text, as {python: 2, licences: 1}", off=True
    )
    domain_temperature: float = per_member(
        1.0,
        "1",
        "a domain's share of the sequences goes by weight^(1 / temperature)",
        acts=_HAS_DOMAINS,
        off=True,
        changes=True,
        gt=0,
        le=1e6,
    )
    curriculum: Curriculum | None = structural(
        None,
        "kind",
        "part that grows: the length of sequences, or the share of the text that is drawn from, easy documents first"
        " (by compression, or by the loss of bytes after two others), clean ones (noise) or the first domains",
        off=True,
    )
    curriculum_from: float = per_member(
        0.1, "1", "share of the text, or of the context, at the start", acts=_HAS_CURRICULUM, gt=0, le=1
    )
    curriculum_to: float = per_member(
        1.0, "1", "share of the text, or of the context, in the end", acts=_HAS_CURRICULUM, gt=0, le=1
    )
    curriculum_steps: int = per_member(
        100, "steps", "steps from curriculum_from to curriculum_to", acts=_HAS_CURRICULUM, ge=1
    )
    curriculum_reversed: bool = structural(
        False, "switch", "hard documents, noise, or the last domains first", acts=_HAS_ORDER, off=True
    )

    corrupted: float = per_member(0.0, "1", "share of the batches to replace by random bytes", off=True, ge=0, le=1)
    burst_at: int | None = per_member(
        None, "step", "first batch of a burst of random bytes; null for none", off=True, ge=0
    )
    burst_length: int = per_member(1, "steps", "batches of the burst", acts=unless("burst_at", None), ge=0)
    shift_at: int | None = per_member(
        None, "step", "first step with shift_text as the text; null for never", off=True, ge=0
    )
    shift_text: tuple[str, ...] = structural(
        (), "paths", "text files, folders or globs to train on after shift_at", acts=unless("shift_at", None)
    )
    mix_share: float = per_member(
        0.0, "1", "share of the sequences that are from mix_text", off=True, changes=True, ge=0, le=1
    )
    mix_text: tuple[str, ...] = structural(
        (), "paths", "text files, folders or globs to mix in", acts=unless("mix_share", 0.0)
    )
    validation_batches: int = structural(8, "batches", "held-out batches per validation loss", ge=1, le=10_000)

    @model_validator(mode="after")
    def _feed_fits_together(self) -> Self:
        names = [name for name, _ in self.domains]
        weights = [weight for _, weight in self.domains]
        if names and self.text:
            raise ValueError("domains replace text: leave one out")
        if len({*names}) < len(names):
            raise ValueError("domains name a text twice: add up its weights")
        if names and (min(weights) < 0 or not 0 < math.fsum(weights) < math.inf):
            raise ValueError("domains need weights of 0 or more, and one above 0")
        if self.curriculum == "domains" and len(names) < 2:
            raise ValueError("curriculum = domains needs domains: two or more texts with their weights")
        if self.curriculum == "noise" and self.noise_share == 0:
            raise ValueError("curriculum = noise needs noise_share above 0")
        if self.shift_at is not None and self.shift_text == self.text:
            raise ValueError(f"shift_at = {self.shift_at} needs a shift_text other than text")
        if self.mixes and self.mix_text in ((), self.text):
            raise ValueError(f"mix_share = {self.mix_share:g} needs a mix_text other than text")
        return self

    @property
    def mixes(self) -> bool:
        """Whether a second text is mixed in, at once or by an intervention or a rule."""
        return self.mix_share > 0 or any(values.get("mix_share") for values in self.later_values)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts that are trained on and validated: each domain, or the one text."""
        return self.domain_texts or (self.text,)

    @property
    def lengths(self) -> tuple[int, int, int]:
        """The length of sequences at the start and in the end, and the steps between."""
        if self.curriculum != "length":
            return self.context, self.context, 0
        ends = [max(int(share * self.context), 1) for share in (self.curriculum_from, self.curriculum_to)]
        return ends[0], ends[1], self.curriculum_steps

    @property
    def tokens_per_step(self) -> int:
        """Bytes per step."""
        return self.batch_size * self.context

    @property
    def recipe(self) -> Recipe:
        """How the text is made, which includes the order of its documents."""
        order = self.curriculum if self.curriculum in ORDERS else None
        return self.recipe_in(order)

    @property
    def domain_texts(self) -> tuple[tuple[str, ...], ...]:
        """The texts of ``domains``, each as ``text`` has them."""
        return tuple((name,) for name, _ in self.domains)

    @property
    def domain_shares(self) -> tuple[float, ...]:
        """The share of the sequences that each domain has, in the order of ``domains``."""
        weights = [weight for _, weight in self.domains]
        largest = max(weights, default=1.0)
        powers = [(weight / largest) ** (1 / self.domain_temperature) if weight else 0.0 for weight in weights]
        total = math.fsum(powers)
        return tuple(power / total for power in powers)


def domain_names(texts: Sequence[str]) -> list[str]:
    """Return what the readings of domains are called: the last part of a path, numbered where two are alike."""
    names = [PurePath(text).name or text for text in texts]
    return [f"{name}-{place}" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]


def domain_readings(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the readings that a trial with these ``settings`` has of the loss on each of its texts."""
    if domains := settings.get("domains"):
        texts = [domain[0] if isinstance(domain, list | tuple) else domain for domain in domains]
        return tuple(f"domain_loss/{name}" for name in domain_names(texts))
    return MIX_READINGS if settings.get("mix_text") else ()
