"""A remedy: changes of a run while it trains, counted from the step of the fork; and its kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.entries import HELD, SAME, Number, change_in_words, factor_of, length_in_words, plain
from orchestrator.base.space import canonical_text, format_value, is_number
from orchestrator.base.trial_result import TrialResult
from orchestrator.maps.neighbours import null_of
from orchestrator.sweepfile.entries import INTERVENTIONS

# An entry of `interventions`, without the features that are off.
Entry = Mapping[str, Any]
NO_CHANGE = "no change"
FIRST_FRESH = 1000  # the number of the first replicate that chooses nothing
# The setting that moves name for the quality of batches: skipping batches amounts to lowering it.
BATCH = "corrupted"
_CLIPPING = ("clip", "zclip", "adagc")
# Kinds of remedies and what they change, in the order of a legend.
KINDS: dict[str, str] = {
    "lr": "learning rate",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "clip": "clipping",
    "skip": "batches skipped",
    "mean": "mean of earlier weights",
    "reset": "moments reset or rescaled",
    "other": "another field, or several",
}


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes of a run in training; ``at`` of its ``entries`` counts from the fork. No entries leave the run alone."""

    entries: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        """A short description such as ``lr x0.25 for 50, back over 50 + skip 5``."""
        return name_of(self.entries)

    @property
    def last_start(self) -> int:
        """Steps from the fork to the start of its last entry."""
        return max((entry["at"] for entry in self.entries), default=0)

    @property
    def reach(self) -> int:
        """Steps before the fork that it reads: the states of a mean."""
        means = [entry for entry in self.entries if "mean" in entry]
        return max([0, *((entry["mean"] - 1) * entry.get("apart", 10) - entry["at"] for entry in means)])

    @property
    def kind(self) -> str:
        """The kind of KINDS that it acts on; ``other`` for several."""
        kinds = set().union(*map(_kinds, self.entries))
        return kinds.pop() if len(kinds) == 1 else "other"

    def combined_with(self, other: Remedy) -> Remedy | None:
        """Both together; None if they change the same thing."""
        mine, theirs = (set().union(*map(_touched, remedy.entries)) for remedy in (self, other))
        return None if mine & theirs else Remedy((*self.entries, *other.entries))

    def moves(self, config: Mapping[str, Any]) -> set[tuple[str, str]]:
        """The moves that it amounts to in a run of ``config``: setting and direction, as advice names them.

        Skipped batches amount to fewer bad ones, any clipping to a lower ``clip``, a lower learning rate also to a
        longer warmup, and a larger second moment to smaller steps. A reset is not a move.
        """
        moves = set()
        for entry in self.entries:
            for name, value in entry.get("set", {}).items():
                if (direction := _direction(name, config.get(name), value)) is not None:
                    moves.add(("clip" if name in _CLIPPING else name, direction))
            if entry.get("skip"):
                moves.add((BATCH, "lower"))
            if entry.get("rescale", 0) > 1:
                moves.add(("lr", "lower"))
        if _returns(self.entries):
            moves -= {("lr", "raise")}
        return moves | ({("warmup", "raise")} if ("lr", "lower") in moves else set())

    def in_numbers(self, config: Mapping[str, Any], own: Sequence[Entry] = ()) -> Remedy:
        """Replace factors by numbers, as in a run of ``config``.

        Keeps factors of fields that the run's ``own`` interventions set: their numbers depend on the step.
        """
        changed = {name for entry in own for name in entry.get("set", {})}
        values = {name: value for name, value in config.items() if name not in changed}
        entries = []
        for entry in self.entries:
            changes = {name: _number(values.get(name), value) for name, value in entry.get("set", {}).items()}
            values |= changes
            entries.append({**entry, "set": changes} if changes else entry)
        return Remedy(tuple(entries))


def distinct(remedies: Iterable[Remedy], config: Mapping[str, Any], own: Sequence[Entry] = ()) -> list[Remedy]:
    """Remove the second name of a value in a run of ``config``: a factor, if one of ``remedies`` says the number."""
    remedies = list(remedies)
    kept: dict[str, Remedy] = {}
    for remedy in remedies:
        numbers = remedy.in_numbers(config, own)
        if numbers.name not in kept or remedy == numbers:
            kept[numbers.name] = remedy
    return [remedy for remedy in remedies if remedy in kept.values()]


@dataclass(frozen=True, slots=True)
class Fork:
    """A remedy from a step, in one replicate: 0 has the data of the original, the others have other batches.

    Those from FIRST_FRESH on are trained after they were chosen by the others.
    """

    remedy: Remedy
    step: int
    replicate: int

    @property
    def is_fresh(self) -> bool:
        """Whether the replicate has no part in choosing a remedy."""
        return self.replicate >= FIRST_FRESH

    def interventions(self, own: Sequence[Entry] = ()) -> list[dict[str, Any]]:
        """The ``interventions`` of the forked run, including the original's ``own``."""
        entries = [{**entry, "at": entry["at"] + self.step} for entry in self.remedy.entries]
        if self.replicate:
            first = entries[0] if entries and entries[0]["at"] == self.step else {"at": self.step}
            # The other data go on when an entry ends.
            first = {"at": self.step} if "lasts" in first or "data" in first else first
            entries = [{**first, "data": self.replicate}, *(entry for entry in entries if entry is not first)]
        return [*map(plain, own), *map(plain, entries)]


def own_interventions(trial: TrialResult) -> list[Entry]:
    """The interventions in the configuration of a trial."""
    return list(trial.config.get(INTERVENTIONS) or ())


def fork_of(interventions: Iterable[Entry], own: Iterable[Entry] = ()) -> Fork | None:
    """The fork whose run has these ``interventions``, given the original's ``own``; None for the control."""
    before = [canonical_text(plain(entry)) for entry in own]
    added = []
    for entry in map(plain, interventions):
        if (text := canonical_text(entry)) in before:
            before.remove(text)
        else:
            added.append(entry)
    if not added:
        return None
    step = min(entry["at"] for entry in added)
    replicate = max(0 if entry.get("data") == SAME else entry.get("data", 0) for entry in added)
    bare = [{name: value for name, value in entry.items() if name != "data" or value == SAME} for entry in added]
    kept = [{**entry, "at": entry["at"] - step} for entry in bare if entry.keys() - {"at"}]
    return Fork(Remedy(tuple(kept)), step, replicate)


def name_of(entries: Sequence[Entry]) -> str:
    """A short description of changes."""
    if not entries:
        return NO_CHANGE
    rest, words = list(entries), []
    while rest:
        entry = rest.pop(0)
        back = next((later for later in rest if _undoes(later, entry)), None)
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
    """A value in few digits, for tables."""
    times = factor_of(value)
    return format_value(value) if times is None else f"x{format_value(times)}"


def held_by(entry: Entry) -> set[str]:
    """The keys of an entry that hold weights or states, or change the precision or the data."""
    held = (name for name in HELD if entry.get(name) is not None)
    return {*held, *(name for name in ("precision", "data") if entry.get(name))}


def _touched(entry: Entry) -> set[str]:
    others = (name for name in ("reset", "rescale", "skip", "mean") if entry.get(name))
    return {*entry.get("set", {}), *others, *held_by(entry)}


def _undoes(later: Entry, entry: Entry) -> bool:
    """Whether ``later`` takes back the factors of ``entry``."""
    back, changes = later.get("set", {}), entry.get("set", {})
    if not changes or back.keys() != changes.keys() or later["at"] <= entry["at"]:
        return False
    pairs = [(factor_of(changes[name]), factor_of(back[name])) for name in changes]
    return all(a is not None and b is not None and math.isclose(a * b, 1) for a, b in pairs)


def _number(own: Any, value: Number) -> Number:
    """A factor times the run's ``own`` value, if it has one."""
    times = factor_of(value)
    return value if times is None or not is_number(own) else own * times


def _returns(entries: Sequence[Entry]) -> bool:
    return any(_undoes(later, entry) for entry in entries for later in entries)


def _direction(name: str, own: Any, value: Any) -> str | None:
    times = factor_of(value)
    if times is not None:
        return None if times == 1 else "lower" if times < 1 else "raise"
    own, value = (null_of(name) if number is None else number for number in (own, value))
    if not (is_number(own) and is_number(value)) or own == value:
        return None
    return "lower" if value < own else "raise"


def _kinds(entry: Entry) -> set[str]:
    names = ("clip" if name in _CLIPPING else name for name in entry.get("set", {}))
    kinds = {name if name in KINDS else "other" for name in names}
    if entry.get("skip"):
        kinds.add("skip")
    if entry.get("mean"):
        kinds.add("mean")
    if entry.get("reset") or entry.get("rescale") is not None:
        kinds.add("reset")
    if held_by(entry):
        kinds.add("other")
    return kinds
