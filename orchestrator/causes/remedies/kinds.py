"""Kinds of remedies: what a remedy acts on, for counts over many cells and for colours on a map."""

from __future__ import annotations

from orchestrator.causes.remedies.remedy import Entry, Remedy

# In the order of a legend, with what each changes.
KINDS: dict[str, str] = {
    "lr": "learning rate",
    "beta1": "beta1",
    "beta2": "beta2",
    "eps": "eps",
    "clip": "clipping",
    "skip": "batches skipped",
    "reset": "moments reset or rescaled",
    "other": "another field, or several",
}
_CLIPPING = ("clip", "zclip", "adagc")


def kind_of(remedy: Remedy) -> str:
    """The one of KINDS that a remedy acts on; ``other`` where there are several."""
    found = set().union(*map(_kinds, remedy.entries))
    return found.pop() if len(found) == 1 else "other"


def _kinds(entry: Entry) -> set[str]:
    names = ("clip" if name in _CLIPPING else name for name in entry.get("set", {}))
    found = {name if name in KINDS else "other" for name in names}
    if entry.get("skip"):
        found.add("skip")
    if entry.get("reset") or entry.get("rescale") is not None:
        found.add("reset")
    return found
