"""Log lines as many code bases print them: each is read with no settings, live and whole alike, or asks."""

import json
import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_styles import LOSSES, NUM_STEPS, READ, Lines, batch, text_of
from tiers import examples, one_of

from orchestrator.base.errors import InputError
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import read_log, read_logs
from orchestrator.logs.point_maker import Point
from orchestrator.logs.streams import MetricStream

EVERY_THIRD = {
    "a mean over some steps",
    "a loss at a step",
    "a loss after steps",
    "a training step",
    "a trainer's step",
    "what is known at a step",
    "LLaMA-Factory",
    "Flax's examples",
}
ASKED: dict[str, Lines] = {
    "a GAN": lambda t, x, n, v: f"[0/5][{t}/{NUM_STEPS}]\tLoss_D: {x}\tLoss_G: {2 * x:.4f}\n",
    "a table of boxes": lambda t, x, n, v: f"| {t:>5} | {x} | {n:.3f} |\n",
    "a student and a teacher": lambda t, x, n, v: f"student: step {t} loss {x}\nteacher: step {t} loss {v}\n",
    "two kinds of lines that nothing tells apart": lambda t, x, n, v: (
        f"[{t}] loss {x}\n" + (f"pass {t}: loss {v}\n" if t % 2 else "")
    ),
}


def live(text: str) -> MetricStream:
    stream = MetricStream(MetricsConfig())
    content = text.encode()
    stream.points = [
        point for start in range(0, len(content), 777) for point in stream.feed(content[start : start + 777])
    ] + stream.finish()
    return stream


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "train.log"
        path.write_bytes(text.encode())
        return path

    return write


@pytest.mark.parametrize("style", READ)
def test_a_style_is_read_at_the_first_try_live_and_whole_alike(file_of, style: str) -> None:
    text = text_of(READ[style])
    stream, log = live(text), read_log(file_of(text), Columns())
    assert [point.loss for point in stream.points] == pytest.approx(LOSSES, abs=1e-4), stream.note
    assert [point.step for point in stream.points] == log.step_N.tolist()
    assert log.loss_N.tolist() == pytest.approx(LOSSES, abs=1e-4)
    assert stream.question is None
    gaps = set(np.diff(log.step_N))
    assert len(gaps) == 1, "the steps are evenly spaced"
    assert style not in EVERY_THIRD or log.step_N[-1] == 3 * (NUM_STEPS - 1)


@pytest.mark.parametrize("style", one_of(5, READ))
def test_runs_appended_to_one_file_are_runs_and_their_restart_is_no_spike(file_of, style: str) -> None:
    text = text_of(READ[style])
    twice = file_of(f"{text}\n{text}")
    first, *others = read_logs(twice, Columns())
    if any("numbered from 0" in note for note in first.notes):
        return  # nothing says where a run begins
    (second,) = others
    assert first.loss_N.tolist() == second.loss_N.tolist() == pytest.approx(LOSSES, abs=1e-4)
    assert first.step_N.tolist() == second.step_N.tolist() == read_log(file_of(text), Columns()).step_N.tolist()
    assert first.name != second.name
    last = read_log(file_of(f"{text}\n{text}"), Columns())
    assert last.loss_N.tolist() == second.loss_N.tolist()
    assert "2 runs" in last.notes[-1]


@pytest.mark.parametrize("style", ["MNIST example", "Keras", "MMEngine", "tqdm an epoch", "Lightning's bar"])
def test_a_trainer_whose_counters_and_epochs_begin_again_trains_another_run(style: str) -> None:
    text = text_of(READ[style])
    stream = live(f"{text}\n{text}")
    assert [point.loss for point in stream.points] == pytest.approx(LOSSES, abs=1e-4)
    assert "points of another run" in stream.note


def test_counters_that_begin_again_with_each_epoch_are_one_run(file_of) -> None:
    """A loss that is noisy, or flat, or that rises, does not begin another one; nor does a collapse to chance."""
    random = np.random.default_rng(0)
    noisy = 2 + 0.5 * np.exp(-np.arange(200) / 20) + 0.2 * random.standard_normal(200)
    collapsed = np.r_[2.3 * np.exp(-np.arange(100) / 4) + 0.1, np.full(100, 2.303)]
    for losses in (noisy, noisy[::-1], np.full(200, 2.3), collapsed):
        text = "".join(f"{1 + t % 20}/20 loss {loss:.6f}\n" for t, loss in enumerate(losses))
        (log,) = read_logs(file_of(text), Columns())
        assert log.step_N.tolist() == list(range(1, 201))


def test_epochs_without_a_name_that_go_on_where_the_last_one_ended_are_one_run(file_of) -> None:
    text = "".join(f"step {batch(t)} loss {loss}\n" for t, loss in enumerate(LOSSES))
    (log,) = read_logs(file_of(text), Columns())
    assert log.loss_N.tolist() == LOSSES


@pytest.mark.parametrize(
    "document",
    [
        {str(t): loss for t, loss in enumerate(LOSSES)},
        {"lm loss": {"start_step": 0, "values": {str(t): loss for t, loss in enumerate(LOSSES)}}, "zeros": {"0": 1.0}},
        {"lm loss": {"start_step": 0, "end_step": 120, "step_interval": 1, "values": LOSSES}},
    ],
)
def test_a_map_from_steps_to_losses_is_a_log(tmp_path: Path, document: dict) -> None:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(document))
    log = read_log(path, Columns())
    assert (log.step_N.tolist(), log.loss_N.tolist()) == (list(range(NUM_STEPS)), LOSSES)


@pytest.mark.parametrize("style", ASKED)
def test_what_cannot_be_told_is_asked(file_of, style: str) -> None:
    text = text_of(ASKED[style])
    stream = live(text)
    assert not stream.points or stream.question
    with pytest.raises(InputError, match=r"--loss NAME|is a log"):
        read_log(file_of(text), Columns())


def test_a_single_line_of_another_kind_at_the_start_does_not_set_what_the_training_prints(file_of) -> None:
    text = "before the first step: loss 9.9\n" + text_of(READ["a print"])
    assert [point.loss for point in live(text).points][1:] == LOSSES[1:]
    assert read_log(file_of(text), Columns()).loss_N.tolist()[-len(LOSSES) + 1 :] == LOSSES[1:]


def test_a_kind_of_line_that_was_asked_about_can_be_named(file_of) -> None:
    text = text_of(ASKED["two kinds of lines that nothing tells apart"])
    log = read_log(file_of(text), Columns(loss="loss"))
    assert log.loss_N.tolist() == LOSSES
    other = read_log(file_of(text), Columns(loss="pass/loss"))
    assert len(other.loss_N) == NUM_STEPS // 2


@pytest.mark.parametrize(
    ("style", "last"),
    [
        ("nanoGPT", 4.4 - 0.8), ("Hugging Face's Trainer", 4.4 - 1.19), ("ImageNet example", 4.4 - 1.19), ("CSV", 3.6),
        ("JSON lines with a split", 4.4 - 1.19), ("Megatron", None), ("a print", None),
    ],
)  # fmt: skip
def test_the_last_validation_loss_is_known_where_it_was_printed(style: str, last: float | None) -> None:
    found = live(text_of(READ[style])).validation_loss
    assert found == (None if last is None else pytest.approx(last, abs=1e-3))


def test_a_training_that_prints_in_another_way_from_some_line_on_is_read_on(file_of) -> None:
    before = "".join(f"phase one: loss {3 - i / 400}\n" for i in range(100))
    after = "".join(f"second part: loss {2.5 - i / 400}\n" for i in range(200))
    stream, log = live(before + after), read_log(file_of(before + after), Columns(loss="loss"))
    assert len(stream.points) == len(log.loss_N) == 300 - 49, "but for the lines that showed it"
    assert "lines of another kind or rank left out" in stream.note


def test_lines_of_any_number_of_kinds_and_losses_are_no_error() -> None:
    kinds = "".join(f"{chr(97 + i % 26) * (1 + i // 26)} q{'x' * (i % 7)} loss {i}\n" for i in range(400))
    names = "".join(f"loss_{'a' * (i % 60)}{chr(97 + i % 26)} {i}\n" for i in range(400))
    for text in (kinds, names, kinds + names + kinds):
        live(text)


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
@settings(max_examples=examples(60))
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


@pytest.mark.parametrize("style", one_of(5, READ))
def test_lines_of_a_known_shape_are_read_as_if_each_were_searched(style: str, monkeypatch) -> None:
    text = text_of(READ[style]) * 2
    monkeypatch.setattr("orchestrator.logs.line_formats.Text._NUM_UNFILTERED", 10)  # after which lines count together
    short = live(text)
    monkeypatch.setattr("orchestrator.logs.series._shape", lambda line, text: None)
    monkeypatch.setattr("orchestrator.logs.point_maker.PointMaker._lane", lambda self, names: None)
    long = live(text)
    assert repr(short.points) == repr(long.points)
    assert (short.note, short.question) == (long.note, long.question)
    assert short.taken_readings() == long.taken_readings()
