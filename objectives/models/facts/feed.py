"""Fields of what a member is fed: several texts by weight, and their order from easy to hard; free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from objectives.fields import Condition, per_member, structural, unless
from objectives.models.facts.text import ORDERS, Recipe, TextConfig

MIX_READINGS = ("domain_loss/text", "domain_loss/mix_text")
Curriculum = Literal["length", "compression", "loss", "noise", "domains"]
_HAS_DOMAINS = Condition("domains is not empty", lambda settings: bool(settings["domains"]))
HAS_NO_DOMAINS = Condition("domains is empty", lambda settings: not settings["domains"])
_HAS_CURRICULUM = unless("curriculum", None)
_HAS_ORDER = Condition(
    "curriculum is compression, loss, noise or domains", lambda settings: settings["curriculum"] in (*ORDERS, "domains")
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
    """The texts of a member by weight, and their order."""

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

    @model_validator(mode="after")
    def _feed_fits_together(self) -> Self:
        names = [name for name, _ in self.domains]
        weights = [weight for _, weight in self.domains]
        if names and vars(self).get("text"):
            raise ValueError("domains replace text: leave one out")
        if len({*names}) < len(names):
            raise ValueError("domains name a text twice: add up its weights")
        if names and (min(weights) < 0 or not 0 < math.fsum(weights) < math.inf):
            raise ValueError("domains need weights of 0 or more, and one above 0")
        if self.curriculum == "domains" and len(names) < 2:
            raise ValueError("curriculum = domains needs domains: two or more texts with their weights")
        if self.curriculum == "noise" and self.noise_share == 0:
            raise ValueError("curriculum = noise needs noise_share above 0")
        return self

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
