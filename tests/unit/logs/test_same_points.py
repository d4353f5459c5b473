"""A log that is complete and the same log as it grows are read by the same readers: they give the same points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import read_log
from orchestrator.logs.streams import MetricStream, Point

NAMES = (("step", "loss", "grad_norm"), ("iter", "train_loss", "gnorm"), ("num_updates", "train/loss", "norm"))
Rows = list[Mapping[str, float]]
NUMBER = st.one_of(
    st.floats(-(2.0**99), 2.0**99, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 2.0**-30, 0.0])
)


def as_table(delimiter: str) -> Callable[[Rows], bytes]:
    def written(rows: Rows) -> bytes:
        header = delimiter.join(rows[0])
        lines = [delimiter.join(repr(row[name]) if name in row else "" for name in rows[0]) for row in rows]
        return "\n".join([header, *lines]).encode()

    return written


def as_quoted_table(rows: Rows) -> bytes:
    lines = [",".join(f'"{row.get(name, "")}"' for name in rows[0]) + ',"said:\r\n""so, so"""' for row in rows]
    return "\r\n".join([*("# seed 2", ",".join([*rows[0], "sample"])), *lines, ""]).encode()


def as_json_lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_json_below_a_banner(rows: Rows) -> bytes:
    return "run 7 of größe\n\n".encode() + as_json_lines(rows)


def as_text(line: Callable[[Mapping[str, float]], str], end: str = "\n") -> Callable[[Rows], bytes]:
    return lambda rows: "".join(line(row) + end for row in rows).encode()


def piped(row: Mapping[str, float]) -> str:
    return "2025-01-02 INFO " + " | ".join(f"{name} {value!r}" for name, value in row.items()) + " | 12.5 ms"


def coloured(row: Mapping[str, float]) -> str:
    return "  ".join(f"\x1b[32m{name}: {value!r}" for name, value in row.items()) + "\x1b[39m\nsaving checkpoint"


def on_lines_of_their_own(row: Mapping[str, float]) -> str:
    step, *others = row
    return f"[{step}={row[step]}/500]\n" + "  " + "  ".join(f"{name}={row[name]!r}" for name in others)


def as_events(rows: Rows) -> bytes:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    records = [Event(file_version="brain.Event:2").SerializeToString()]
    for row in rows:
        step, *others = row
        for name in others:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=row[name])])
            records.append(Event(step=row[step], summary=summary).SerializeToString())
    return b"".join(len(r).to_bytes(8, "little") + bytes(4) + r + bytes(4) for r in records)


FORMATS = {
    "commas": (as_table(","), "csv"),
    "tabs": (as_table("\t"), "csv"),
    "semicolons": (as_table(";"), "csv"),
    "quotes": (as_quoted_table, "csv"),
    "JSON lines": (as_json_lines, "json"),
    "JSON below a banner": (as_json_below_a_banner, "json"),
    "text": (as_text(piped), "text"),
    "text in colours": (as_text(coloured), "text"),
    "text on two lines": (as_text(on_lines_of_their_own), "text"),
    "a progress bar": (as_text(piped, "\r"), "text"),
    "events": (as_events, "tensorboard"),
}  # fmt: skip


@st.composite
def curves(draw: st.DrawFn) -> Rows:
    """A curve with gaps in its gradient norms, or without them, under some of the usual names."""
    step, loss, norm = draw(st.sampled_from(NAMES))
    # One step on a line of its own may be a setting, as in `steps: 5000`, until another comes.
    gaps = draw(st.lists(st.integers(1, 10**6), min_size=2, max_size=25))
    has_norms = draw(st.booleans())
    rows: Rows = []
    for place in accumulate(gaps):
        row = {step: place, loss: draw(NUMBER)}
        # Only a log that is complete knows the first norm before it comes.
        if has_norms and (not rows or draw(st.booleans())):
            row[norm] = draw(NUMBER) if rows else 2.5
        rows.append(row)
    return rows


def fed(content: bytes, sizes: list[int], metrics: MetricsConfig) -> list[Point]:
    stream, points, at, i = MetricStream(metrics), [], 0, 0
    while at < len(content):
        points += stream.feed(content[at : at + sizes[i % len(sizes)]])
        at, i = at + sizes[i % len(sizes)], i + 1
    return points + stream.finish()


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(rows=curves(), sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6), is_named=st.booleans())
def test_a_log_gives_the_same_points_as_a_whole_and_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: Rows, sizes: list[int], is_named: bool
) -> None:
    write, format = FORMATS[name]
    content = write(rows)
    path = tmp_path_factory.getbasetemp() / "same.log"
    path.write_bytes(content)
    log = read_log(path, Columns())
    points = fed(content, sizes, MetricsConfig(format=format if is_named else "auto"))
    step, loss, *_ = rows[0]
    np.testing.assert_array_equal(log.step_N, [row[step] for row in rows])
    np.testing.assert_array_equal(log.loss_N, [row[loss] for row in rows])
    np.testing.assert_array_equal([point.step for point in points], log.step_N)
    np.testing.assert_array_equal([point.loss for point in points], log.loss_N)
    norms = [None] * len(rows) if log.grad_norm_N is None else log.grad_norm_N.tolist()
    assert repr([point.grad_norm for point in points]) == repr(norms)
