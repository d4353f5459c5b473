"""What the ledger knows of a custom packed objective, so that a diagnosis need not import its code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from objectives.base import Objective
from objectives.fields import is_feature
from orchestrator.base.space import canonical_json, to_hashable

FACT = "packed_objective"  # its name among the facts of a sweep


@dataclass(frozen=True, slots=True)
class PackedObjective:
    """Facts of a custom packed objective; ``features`` are its fields that a default switches off, with this default.

    ``layer_groups`` is empty where the objective names none: then telemetry has them in the order of the weights.
    """

    layer_groups: tuple[str, ...]
    has_logits: bool
    data_fields: tuple[str, ...]
    features: Mapping[str, Any]


def fact_of(objective: Objective) -> str:
    """The facts of ``objective`` as text."""
    fields = objective.config_class.model_fields
    features = {name: field.default for name, field in fields.items() if is_feature(field)}
    facts = PackedObjective(objective.layer_groups, objective.has_logits, objective.data_fields, features)
    return canonical_json(asdict(facts))


def from_fact(text: str) -> PackedObjective:
    """The objective of ``fact_of``. Raises ValueError, TypeError or LookupError where the text is damaged."""
    found = json.loads(text)
    return PackedObjective(
        layer_groups=tuple(map(str, found["layer_groups"])),
        has_logits=bool(found["has_logits"]),
        data_fields=tuple(map(str, found["data_fields"])),
        features={name: to_hashable(value) for name, value in dict(found["features"]).items()},
    )
