"""What differs between the data that a page has and what there is now, so that only that is sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

_MOST_CHANGED = 0.5  # of the entries of a column: beyond that all of it is sent
_LEAST = 16  # entries of a list that is compared entry by entry

# {"path", "value"}, or of a column {"path", "at", "to"}: the places that changed and what is there now.
Change = dict[str, Any]


def changes(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[Change]:
    """What turns ``before`` into ``after``, two values of JSON; ``path`` leads to them."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in after:
            yield from changes(before[key], after[key], (*path, key))
        return
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        if after and all(isinstance(entry, dict) for entry in itertools.chain(before, after)):
            for i, entry in enumerate(after):
                yield from changes(before[i], entry, (*path, i))
            return
        at = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if len(after) >= _LEAST and len(at) <= _MOST_CHANGED * len(after):
            yield {"path": list(path), "at": at, "to": [after[i] for i in at]}
            return
    yield {"path": list(path), "value": after}
