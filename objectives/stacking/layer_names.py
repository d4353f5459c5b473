"""Which layer group, and which part of the depth, a weight belongs to by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def longest_beginning(name: str, beginnings: Iterable[str]) -> str | None:
    """The longest of ``beginnings`` with which ``name`` begins, so that block10 is not in block1; None for none."""
    return max((start for start in beginnings if name.startswith(start)), key=len, default=None)


def third_of_depth(block: int, depth: int) -> str:
    """``shallow``, ``middle`` or ``deep``: the third that has the middle of ``block``, one of ``depth`` from 0 on."""
    place = 3 * (2 * block + 1)  # in units of a sixth of a block, of 6 * depth
    return "shallow" if place < 2 * depth else "middle" if place <= 4 * depth else "deep"


def refuse_idle_beginnings(groups: Collection[str], blocks: Collection[str], names: Collection[str]) -> None:
    """Raise ValueError where no name begins with one of ``groups`` or ``blocks``: it is misspelt."""
    for kind, beginnings in (("groups", groups), ("blocks", blocks)):
        for start in beginnings:
            if not any(name.startswith(start) for name in names):
                raise ValueError(f"{kind}: no weight begins with {start!r}; there are {', '.join(names)}")
