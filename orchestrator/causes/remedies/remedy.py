"""A remedy: changes of a run while it trains, counted from the step at which the run is forked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.interventions import Number, change_in_words, factor_of, length_in_words, plain
from orchestrator.base.space import canonical_json, format_value, is_number

# An entry of `interventions`, with what is off left out.
Entry = Mapping[str, Any]
NO_CHANGE = "no change"
# The setting of a sweep that a change stands for, by the names of moves, where it is no setting of its own.
BATCH = "corrupted"
_CLIPPING = ("clip", "zclip", "adagc")


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes of a run in training. ``at`` of its ``entries`` counts from the fork; none leave the run alone."""

    entries: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        """What it does in few words, such as ``lr x0.25 for 50, back over 50 + skip 5``."""
        return name_of(self.entries)

    @property
    def last_start(self) -> int:
        """Steps from the fork to the start of its last entry."""
        return max((entry["at"] for entry in self.entries), default=0)

    def beside(self, other: Remedy) -> Remedy | None:
        """Both together; None where they change the same thing."""
        mine, theirs = (set().union(*map(_touched, one.entries)) for one in (self, other))
        return None if mine & theirs else Remedy((*self.entries, *other.entries))

    def stands_for(self, config: Mapping[str, Any]) -> set[tuple[str, str]]:
        """The moves that it makes in a run of ``config``: setting and direction, as advice names them.

        Skipped batches stand for fewer bad ones, any clipping for a lower ``clip``, a lower learning rate that returns
        for a longer warmup, and a larger second moment for smaller steps. A reset stands for no setting.
        """
        found = set()
        for entry in self.entries:
            for name, value in entry.get("set", {}).items():
                if (direction := _direction(config.get(name), value)) is not None:
                    found.add(("clip" if name in _CLIPPING else name, direction))
            if entry.get("skip"):
                found.add((BATCH, "lower"))
            if entry.get("rescale", 0) > 1:
                found.add(("lr", "lower"))
        if _returns(self.entries):
            found -= {("lr", "raise")}
        return found | ({("warmup", "raise")} if ("lr", "lower") in found else set())


@dataclass(frozen=True, slots=True)
class Fork:
    """A remedy from a step on, in one replicate: 0 has the data of the original, others have other batches."""

    remedy: Remedy
    step: int
    replicate: int

    def interventions(self, own: Sequence[Entry] = ()) -> list[dict[str, Any]]:
        """The ``interventions`` of the forked run, ``own`` ones of the original included."""
        entries = [{**entry, "at": entry["at"] + self.step} for entry in self.remedy.entries]
        if self.replicate:
            first = entries[0] if entries and entries[0]["at"] == self.step else {"at": self.step}
            entries = [{**first, "data": self.replicate}, *(one for one in entries if one is not first)]
        return [*map(plain, own), *map(plain, entries)]


def fork_of(interventions: Iterable[Entry], own: Iterable[Entry] = ()) -> Fork | None:
    """The fork that gave a run its ``interventions``, without the original's ``own``; None for the control."""
    before = [canonical_json(plain(entry)) for entry in own]
    added = []
    for entry in map(plain, interventions):
        if (text := canonical_json(entry)) in before:
            before.remove(text)
        else:
            added.append(entry)
    if not added:
        return None
    step = min(entry["at"] for entry in added)
    replicate = max(entry.get("data", 0) for entry in added)
    bare = [{name: value for name, value in entry.items() if name != "data"} for entry in added]
    kept = [{**entry, "at": entry["at"] - step} for entry in bare if entry.keys() - {"at"}]
    return Fork(Remedy(tuple(kept)), step, replicate)


def name_of(entries: Sequence[Entry]) -> str:
    """Changes in few words."""
    if not entries:
        return NO_CHANGE
    rest, words = list(entries), []
    while rest:
        entry = rest.pop(0)
        back = next((one for one in rest if _undoes(one, entry)), None)
        text = _entry_text(entry)
        if back is not None:
            rest.remove(back)
            text += f" for {back['at'] - entry['at']}, back over {back.get('over', 0)}"
        words.append(text)
    return " + ".join(words)


def _entry_text(entry: Entry) -> str:
    text = change_in_words(entry, _value_text) + length_in_words(entry)
    return f"{text} after {entry['at']}" if entry["at"] else text


def _value_text(value: Number) -> str:
    """In fewer digits than an intervention is known by: names stand in tables."""
    times = factor_of(value)
    return format_value(value) if times is None else f"x{format_value(times)}"


def _touched(entry: Entry) -> set[str]:
    return {*entry.get("set", {}), *(name for name in ("reset", "rescale", "skip") if entry.get(name))}


def _undoes(later: Entry, entry: Entry) -> bool:
    """Whether ``later`` takes back the factors of ``entry``."""
    there, here = later.get("set", {}), entry.get("set", {})
    if not here or there.keys() != here.keys() or later["at"] <= entry["at"]:
        return False
    pairs = [(factor_of(here[name]), factor_of(there[name])) for name in here]
    return all(a is not None and b is not None and math.isclose(a * b, 1) for a, b in pairs)


def _returns(entries: Sequence[Entry]) -> bool:
    return any(_undoes(later, entry) for entry in entries for later in entries)


def _direction(own: Any, value: Any) -> str | None:
    times = factor_of(value)
    if times is not None:
        return None if times == 1 else "lower" if times < 1 else "raise"
    own, value = (math.inf if one is None else one for one in (own, value))
    if not (is_number(own) and is_number(value)) or own == value:
        return None
    return "lower" if value < own else "raise"
