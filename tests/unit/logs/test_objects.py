"""JSON objects that are read together give what they give one by one."""

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from orchestrator.logs.columns import MetricsConfig
from orchestrator.logs.line_formats import Mixed, reader_of
from orchestrator.logs.lines import MAX_NAME, Row, Rows
from orchestrator.logs.objects import JsonLines

NAMES = st.sampled_from(["loss", "step", "lr", "grad_norm", "split", "a/b", "val_loss", "x" * (MAX_NAME + 1), ""])
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(0, 10), st.floats(), st.booleans(), st.none(), st.just(10**400), st.just([1.5]),
    st.sampled_from(["train", "val", "0.5", "1,000", "nan", "2026-11-26 09:00:00", "step 3 loss 2.5", "\u00e9"]),
)  # fmt: skip
OBJECTS = st.dictionaries(NAMES, st.one_of(VALUES, st.dictionaries(NAMES, VALUES, max_size=2)), max_size=4)
NUMBERS = st.fixed_dictionaries({"step": st.integers(0, 9), "loss": st.floats() | st.integers(0, 9)})
LINES = st.one_of(
    NUMBERS.map(json.dumps),
    OBJECTS.map(json.dumps),
    NUMBERS.map(json.dumps).map(lambda text: f"{text} "),
    st.sampled_from(
        [
            "step 3 | loss 2.5", '{"step": 1, "loss": 2', "} {", '{"step": 1} {"loss": 2}', "[1, 2]", " ", "{}",
            '{"loss": 1, "step": 3, "loss": 2}', '{"loss": 007, "step": 1}', '\x1b[32m{"loss": 1.0}\x1b[0m',
            '{"loss": "\\u0031.5"}', f'{{"loss": {"9" * 5000}}}', f'{{"loss": {"[" * 3000}',
        ]
    ),
)  # fmt: skip


def each_row(parts: list[Row | Rows]) -> list[dict[str, float]]:
    return [dict(row) for part in parts for row in (part.each() if isinstance(part, Rows) else [part]) if row]


@given(st.lists(LINES, max_size=12), st.lists(st.integers(1, 5), min_size=1))
@settings(max_examples=examples(200))
def test_objects_read_together_give_the_rows_of_objects_read_one_by_one(texts: list[str], sizes: list[int]) -> None:
    lines = [text.encode() for text in texts]
    for make in (JsonLines, with_enough_read):
        together, alone = make(), make()
        found, at = list[Row | Rows](), 0
        for size in itertools.cycle(sizes):
            if at >= len(lines):
                break
            found += together.parts(lines[at : at + size])
            at += size
        expected = [dict(row) for line in lines for row in alone.rows([line])]
        assert repr(each_row(found)) == repr(expected)  # of NaN too
        assert together.num_odd == alone.num_odd
        assert together.num_left_out() == alone.num_left_out()


def with_enough_read() -> Mixed:
    """A reader of text that no longer reads each line one by one."""
    reader = Mixed()
    reader._num_read = reader._NUM_UNFILTERED
    return reader


def test_successive_objects_of_numbers_are_one_part() -> None:
    reader = reader_of(MetricsConfig(format="json"), lambda name: name == "loss", [])
    lines = [json.dumps({"step": step, "loss": step / 7}).encode() for step in range(100)]
    first, *others = reader.parts(lines)
    assert first == {"step": 0.0, "loss": 0.0}  # the losses are in objects
    assert [len(part.values) for part in others if isinstance(part, Rows)] == [99]
