"""Facts about a sweep as a whole in its ledger: the source of imported results, and custom packed objectives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from objectives.base import Objective, Rounding
from objectives.fields import is_feature
from orchestrator.base.packs import Trace
from orchestrator.base.space import canonical_text, to_hashable
from orchestrator.base.trial_result import MemberResult

# Names of facts.
IMPORTED_FACT, PACKED_FACT, NUMERICS_FACT, TRAINER_FACT = "imported", "packed_objective", "numerics", "trainer_facts"
INTENSITY_FACT = "grams_per_kwh"  # of carbon dioxide, from the sweep file
BY_WORDS, BY_FINAL_LOSSES, BY_FINAL_SCORES, BY_CURVES = "words", "final losses", "final scores", "curves"


@dataclass(frozen=True, slots=True)
class Imported:
    """The source of imported results, and what is not known about them.

    ``sources`` are files, folders or stores. ``judged_by`` says what the outcomes follow from: labels in the source,
    its final losses, or curves. ``columns`` maps columns of the source to their meaning. ``left_out`` lists rows or
    runs that could not be used, with the reason, up to a limit; ``num_left_out`` counts all. ``digest`` is a hash of
    everything imported, ``imported_at`` is in seconds since 1970.
    """

    sources: tuple[str, ...]
    judged_by: str
    columns: Mapping[str, str]
    num_runs: int
    num_left_out: int
    left_out: tuple[str, ...]
    digest: str
    imported_at: float

    @property
    def has_curves(self) -> bool:
        """Whether all logged losses are known."""
        return self.judged_by == BY_CURVES

    @property
    def source_text(self) -> str:
        """The first source, and the number of others."""
        first, *others = self.sources
        return f"{first} and {len(others)} more" if others else first


@dataclass(frozen=True, slots=True)
class ImportedTrial:
    """A run that was trained elsewhere: its identity, settings and result, and its curve if known.

    ``steps`` is its length, or 0 if unknown. ``curve`` reads its curve, so that one at a time is in memory.
    """

    trial_id: str
    cell: Mapping[str, Any]
    seed: int
    config: Mapping[str, Any] = field(repr=False)
    steps: int
    result: MemberResult
    curve: Callable[[], Trace] | None = field(default=None, repr=False)


def imported_fact(imported: Imported) -> str:
    """Return the text of the fact ``IMPORTED_FACT``."""
    return canonical_text(asdict(imported))


def imported_of(facts: Mapping[str, str]) -> Imported | None:
    """Return the record of an import, or None for a sweep that was trained here."""
    if IMPORTED_FACT not in facts:
        return None
    values: dict[str, Any] = json.loads(facts[IMPORTED_FACT])
    return Imported(**{**values, "sources": tuple(values["sources"]), "left_out": tuple(values["left_out"])})


def short_note(facts: Mapping[str, str]) -> str | None:
    """Return the mark of an imported map, for a caption, or None for a sweep that was trained here."""
    imported = imported_of(facts)
    if imported is None:
        return None
    return "imported" if imported.has_curves else "imported without curves: spikes are not seen"


def long_note(facts: Mapping[str, str]) -> str | None:
    """Return the source of imported results and how they were judged, or None for a sweep that was trained here."""
    imported = imported_of(facts)
    if imported is None:
        return None
    head = f"imported from {imported.source_text}, not trained by sweep"
    if imported.has_curves:
        return f"{head}; the detector judged its curves"
    if imported.judged_by in (BY_FINAL_LOSSES, BY_FINAL_SCORES):
        return (
            f"{head}; judged by {imported.judged_by}: without curves a run that spiked and recovered counts as stable"
        )
    return f"{head}; outcomes are the source's own labels; without curves, spikes and onsets are unknown"


@dataclass(frozen=True, slots=True)
class PackedObjective:
    """Facts of a custom packed objective, so that a diagnosis need not import its code.

    ``features`` are the fields whose default switches them off, with this default. ``layer_groups`` is empty if the
    objective names none: then telemetry has the groups in the order of the weights. With ``is_full_batch`` every step
    sees the same data unless a field says otherwise.
    """

    layer_groups: tuple[str, ...]
    has_logits: bool
    data_fields: tuple[str, ...]
    features: Mapping[str, Any]
    is_full_batch: bool = False


def packed_fact(objective: Objective) -> str:
    """Return the text of the fact ``PACKED_FACT``."""
    fields = objective.config_class.model_fields
    features = {name: field.default for name, field in fields.items() if is_feature(field)}
    is_full_batch = objective.is_full_batch({name: field.get_default() for name, field in fields.items()})
    packed = PackedObjective(
        objective.layer_groups, objective.has_logits, objective.data_fields, features, bool(is_full_batch)
    )
    return canonical_text(asdict(packed))


def numerics_fact(roundings: Mapping[str, Rounding]) -> str:
    """Return the text of the fact ``NUMERICS_FACT``: what fixes the results of each structure bit for bit."""
    return canonical_text({structure: rounding.facts for structure, rounding in roundings.items()})


def roundings_from_fact(fact: str) -> dict[str, Rounding]:
    """Return the roundings of a ``numerics_fact``. Raises ValueError or TypeError if the text is damaged."""
    found = {structure: Rounding.of_facts(dict(facts)) for structure, facts in dict(json.loads(fact)).items()}
    return {structure: rounding for structure, rounding in found.items() if rounding is not None}


def packed_from_fact(fact: str) -> PackedObjective:
    """Return the objective of a ``packed_fact``. Raises ValueError, TypeError or LookupError if the text is damaged."""
    values = json.loads(fact)
    return PackedObjective(
        layer_groups=tuple(map(str, values["layer_groups"])),
        has_logits=bool(values["has_logits"]),
        data_fields=tuple(map(str, values["data_fields"])),
        features={name: to_hashable(value) for name, value in dict(values["features"]).items()},
        is_full_batch=bool(values.get("is_full_batch", False)),
    )


def trainer_facts(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a custom trainer that all trials share, as the sweep file says."""
    found: dict[str, Any] = json.loads(facts.get(TRAINER_FACT, "{}"))
    return found
