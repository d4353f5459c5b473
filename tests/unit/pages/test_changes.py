"""What is sent of data that has changed: as little as needed, and enough."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.pages.live import changes

LEAVES = st.none() | st.integers(0, 3) | st.sampled_from(["a", "b"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=40,
)


def applied(found: Any, news: list[dict[str, Any]]) -> Any:
    """What the page's script does with ``news``."""
    root = {"found": copy.deepcopy(found)}
    for change in news:
        way = ["found", *change["path"]]
        holder: Any = root
        for key in way[:-1]:
            holder = holder[key]
        if "at" in change:
            for place, value in zip(change["at"], change["to"], strict=True):
                holder[way[-1]][place] = value
        else:
            holder[way[-1]] = change["value"]
    return root["found"]


@given(VALUES, VALUES)
def test_changes_turn_any_data_into_any_other(before: Any, after: Any) -> None:
    assert applied(before, json.loads(json.dumps(list(changes(before, after))))) == after


def test_of_a_column_only_the_entries_that_changed_are_sent() -> None:
    before = {"columns": {"state": ["planned"] * 1000, "words": ["x"] * 1000}, "name": "case"}
    after = copy.deepcopy(before)
    after["columns"]["state"][7] = "stable"
    assert list(changes(before, after)) == [{"path": ["columns", "state"], "at": [7], "to": ["stable"]}]
    assert list(changes(before, before)) == []
