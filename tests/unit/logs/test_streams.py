import json
import math
import os
import re
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from orchestrator.base.errors import InputError
from orchestrator.logs import files as file_tail
from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import FileTail, read_log
from orchestrator.logs.point_maker import Point
from orchestrator.logs.streams import MetricStream

DATA = Path(__file__).parents[2] / "data" / "logs"
EVENTS = next((DATA / "tensorboard").iterdir()).read_bytes()

STEP = list(range(0, 200, 10))
LOSS = [round(2 + 9 * 0.9**i, 4) for i in range(len(STEP))]
NORM = [round(15 / (1 + i) + 0.1, 4) for i in range(len(STEP))]


def each(line: str, end: str = "\n") -> str:
    """``line`` for every point of the curve."""
    return "".join(
        line.format(step=step, loss=loss, norm=norm) + end
        for step, loss, norm in zip(STEP, LOSS, NORM, strict=True)
    )  # fmt: skip


def stream_of(content: str | bytes, size: int | None = None, **metrics) -> tuple[list[Point], MetricStream]:
    """All points of ``content``, which is fed at once or ``size`` bytes at a time."""
    data = content.encode() if isinstance(content, str) else content
    stream = MetricStream(MetricsConfig(**metrics))
    points = []
    for at in range(0, len(data), size or len(data) or 1):
        points += stream.feed(data[at : at + (size or len(data))])
    return points + stream.finish(), stream


def points_of(content: str | bytes, **metrics) -> list[Point]:
    return stream_of(content, **metrics)[0]


def steps(points: Sequence[Point]) -> list[int]:
    return [point.step for point in points]


def losses(points: Sequence[Point]) -> list[float]:
    return [point.loss for point in points]


def norms(points: Sequence[Point]) -> list[float | None]:
    return [point.grad_norm for point in points]


NANO_GPT = (
    "number of parameters: 10.65M\nstep 0: train loss 4.2874, val loss 4.2823\n"
    + each("iter {step}: loss {loss}, time 1000.01ms, mfu -100.00%").replace(
        "iter 100:", "step 100: train loss 2.1, val loss 2.2\nsaving checkpoint to out\niter 100:"
    )
)  # fmt: skip
MEGATRON = (
    " iteration {step:8}/  500000 | consumed samples: {step:12} | elapsed time per iteration (ms): 1.2 | "
    "lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm} | number of nan iterations:   0 |"
)
COLOURED = "[rank0]: \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8}  \x1b[38;2;180;60;0mgrad_norm: {norm:7}\x1b[39m"

# format (None for those that only `auto` takes), content, whether it has steps, whether it has norms
WRITTEN = {
    "text": ("text", each("step {step} loss {loss} norm {norm}"), True, True),
    "text with bars": ("text", each("step {step:4}/19560 | loss {loss} (+nanz)| norm {norm} (+1.21z)"), True, True),
    "text with equals signs": ("text", each("epoch 1: step={step}, loss={loss}, gnorm={norm}"), True, True),
    "text in colours": ("text", each(COLOURED), True, True),
    "nanoGPT": ("text", NANO_GPT, True, False),
    "Megatron": ("text", each(MEGATRON), True, True),
    "a progress bar": ("text", each("\r 7%|##   | [00:01<00:09, 9.9it/s, loss={loss}]", ""), False, False),
    "a progress bar with steps": ("text", each("{{'step': {step}, 'loss': {loss}}}", "\r"), True, False),
    "lines of Windows": ("text", each("step {step} loss {loss}", "\r\n"), True, False),
    "step and loss on lines of their own": ("text", each("[step={step}/9,epoch=0]\n  train/loss={loss}"), True, False),
    "JSON": ("json", each('{{"step": {step}, "loss": {loss}, "grad_norm": {norm}}}'), True, True),
    "nested JSON": ("json", each('{{"iter": {step}, "train": {{"loss": "{loss}", "grad_norm": {norm}}}}}'), True, True),
    "JSON below a banner": (None, "run 7\n" + each('{{"step": {step}, "loss": {loss}}}'), True, False),
    "CSV": ("csv", "step,loss,grad_norm\n" + each("{step},{loss},{norm}"), True, True),
    "CSV with quotes": ("csv", '"Step","a, b - train/loss"\n' + each('"{step}","{loss}"'), True, False),
    "CSV with a mark of its encoding": ("csv", "\ufeffstep,loss\r\n" + each("{step},{loss}", "\r\n"), True, False),
    "CSV with gaps": ("csv", "# seed 2\n\nstep,loss,val_loss\n" + each("{step},{loss},\n{step},,1.5"), True, False),
    "tabs": ("csv", "step\ttrain/loss\tnorm\n" + each("{step}\t{loss}\t{norm}"), True, True),
    "semicolons": ("csv", "step;loss;gnorm\n" + each("{step};{loss};{norm}"), True, True),
    "decimal commas": ("csv", "step;loss\n" + each("{step};{loss}").replace(".", ","), True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_the_curve_is_found_in_every_format_named_or_not(name: str) -> None:
    format, content, has_steps, has_norms = WRITTEN[name]
    for metrics in [{}, {"format": format}] if format else [{}]:
        points, stream = stream_of(content, **metrics)
        assert steps(points) == (STEP if has_steps else list(range(len(STEP)))), stream.note
        assert losses(points) == LOSS
        assert norms(points) == (NORM if has_norms else [None] * len(STEP))


LOGS = {
    "lightning_metrics.csv": "csv",
    "transformers_stdout.txt": "text",
    "tensorboard": "tensorboard",
    "tensorboard_tensors": "tensorboard",
}


@pytest.mark.parametrize("name", LOGS)
def test_points_of_a_whole_file_are_those_of_the_log(name: str) -> None:
    path = DATA / name
    path = next(path.iterdir()) if path.is_dir() else path
    log = read_log(path, Columns())
    for format in ("auto", LOGS[name]):
        points, stream = stream_of(path.read_bytes(), format=format)
        np.testing.assert_array_equal(steps(points), log.step_N)
        np.testing.assert_array_equal(losses(points), log.loss_N)
        if log.grad_norm_N is not None:
            np.testing.assert_array_equal(norms(points), log.grad_norm_N)
        assert f"loss: {log.columns.loss}" in stream.note


# --- any splitting


PIECES = ("step ", "loss ", "train loss ", "norm ", "iter ", "epoch ", ": ", "=", ",", ";", "\t", "\n", "\n", "\r", "1",
          "2", "10", "-2.5", "1e999", "nan", "inf", "INFO", '{"step": 1, "loss": 2}\n', "{", "}", '"', "#", "é", "\0",
          "\x1b[31m", "step,loss\n", "1,2\n", "3,4,5\n", "step 3 loss 4\n", "step 2 loss 1\n", "grad_norm 7\n",
          "x" * 70)  # fmt: skip
LINES = tuple(each("step {step} loss {loss} norm {norm}").splitlines(keepends=True))
TABLE = ("step,loss,norm\n", *(each("{step},{loss},{norm}").splitlines(keepends=True)))
ANY_CONTENT = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join).map(str.encode),
    st.lists(st.sampled_from((*PIECES, *LINES, *TABLE)), max_size=40).map("".join).map(str.encode),
    st.binary(max_size=300),
    st.tuples(st.integers(0, 4000), st.binary(max_size=40)).map(lambda cut: EVENTS[: cut[0]] + cut[1]),
)
ANY_METRICS = st.sampled_from([
    MetricsConfig(),
    MetricsConfig(format="text"),
    MetricsConfig(format="json"),
    MetricsConfig(format="csv"),
    MetricsConfig(format="tensorboard"),
    MetricsConfig(step="step", loss="loss"),
    MetricsConfig(loss="train loss"),
    MetricsConfig(pattern=r"step (?P<step>\d+).*?loss (?P<loss>\S+)"),
])  # fmt: skip


@settings(max_examples=examples(600))
@given(
    content=ANY_CONTENT,
    metrics=ANY_METRICS,
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8).filter(any),
    longest=st.sampled_from([20, 64 * 1024]),
)
def test_any_splitting_of_any_bytes_gives_the_same(
    content: bytes, metrics: MetricsConfig, sizes: list[int], longest: int
) -> None:
    whole, pieces = MetricStream(metrics, longest), MetricStream(metrics, longest)
    expected = whole.feed(content)
    expected += whole.finish()
    found, at, i = [], 0, 0
    while at < len(content):
        found += pieces.feed(content[at : at + sizes[i % len(sizes)]])
        at, i = at + sizes[i % len(sizes)], i + 1
    found += pieces.finish()
    assert repr(found) == repr(expected)  # nan is not equal to itself
    assert (pieces.note, pieces.num_lines) == (whole.note, whole.num_lines)
    assert list(pieces.last_lines) == list(whole.last_lines)
    assert all(later.step > earlier.step for earlier, later in pairwise(found))
    assert pieces.finish() == []


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("name", [*WRITTEN, "events"])
def test_what_comes_in_small_pieces_is_put_together(name: str, size: int) -> None:
    content = EVENTS if name == "events" else WRITTEN[name][1]
    assert repr(stream_of(content, size)[0]) == repr(points_of(content))


# --- which column is what, before the run has ended


def test_of_an_evaluation_and_a_training_loss_the_better_name_wins_once_it_came() -> None:
    stream = MetricStream(MetricsConfig())
    assert stream.feed(b"step 0: train loss 4.28, val loss 4.29\n") == []
    assert "fewer than 5 lines with a loss so far" in stream.note
    (point,) = stream.feed(b"iter 0: loss 4, time 1000.01ms, mfu -100.00%\n")
    assert point == Point(0, 4.0, None, {"time": 1000.01, "mfu": -100.0})
    assert steps(stream.feed(b"iter 1: loss 3, time 1ms\niter 2: loss 2, time 1ms\n")) == [1, 2]


def test_a_name_that_may_be_beaten_is_taken_once_five_rows_came() -> None:
    stream = MetricStream(MetricsConfig())
    for i in range(4):
        assert stream.feed(f"step {i}: train loss {4 - i}, lm_loss 7\n".encode()) == []
    points = stream.feed(b"step 4: train loss 0, lm_loss 7\n")
    assert (steps(points), losses(points)) == ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0])


def test_a_run_that_ends_early_gives_up_what_was_held_back() -> None:
    points = points_of("step 0: train loss 4.28, val loss 4.29\nstep 250: train loss 2.5, val loss 2.6")
    assert (steps(points), losses(points)) == ([0, 250], [4.28, 2.5])
    assert points[0].others == {"val_loss": 4.29}


def test_rows_with_losses_of_other_data_alone_are_not_waited_for() -> None:
    points = points_of("".join(f"step {i} val_loss {i}\n" for i in range(9)) + "step 9 loss 5\n")
    assert points == [Point(9, 5.0, None, {})]


def test_names_that_are_given_count_exactly_and_nothing_is_held_back() -> None:
    stream = MetricStream(MetricsConfig(step="global step", loss="Train-Loss", grad_norm="my.norm"))
    row = b"iter 7, global_step 3, loss 9, train loss 4.5, my_norm 2, grad_norm 1\n"
    others = {"iter": 7.0, "loss": 9.0, "grad_norm": 1.0}
    assert stream.feed(row) == [Point(3, 4.5, 2.0, others)]
    assert stream.note == "loss: Train-Loss; step: global step; gradient norm: my_norm"


def test_of_two_names_that_differ_in_case_the_given_one_is_meant() -> None:
    row = '{"LOSS": 1, "loss": 2, "Loss": 3, "step": 0}\n'
    for name, loss in (("LOSS", 1), ("loss", 2), ("Loss", 3), ("lOSS", 1)):
        assert losses(points_of(row, loss=name, step="step")) == [loss]


def test_a_given_name_is_found_in_nested_objects_after_many_other_lines() -> None:
    noise = "".join(f"worker {i} of 5000 is up\n" for i in range(2000))
    content = noise + '{"t": 4, "fit": {"Misfit": 2.5}}\n'
    assert losses(points_of(content, step="t", loss="fit/misfit")) == [2.5]
    assert losses(points_of("x 1\n" * 2000 + "Größe 4\n", loss="größe")) == [4]


@pytest.mark.parametrize(
    ("content", "step", "found"),
    [
        ("step 7 iter 0 loss 1\niter 1 loss 1\niter 2 loss 1\n", "iter", [0, 1, 2]),
        ("".join(f"i {i} loss 1 global_step {2 * i}\n" for i in range(3)), "global_step", [0, 2, 4]),
        ("step 9 acc 1\n" + "".join(f"iter {2 * i} loss 1\n" for i in range(3)), "iter", [0, 2, 4]),
        ("steps: 5000\n" + "loss 1\n" * 3, None, [0, 1, 2]),
        ("lr 3 loss 1\n" * 3, None, [0, 1, 2]),
    ],
)
def test_steps_are_the_usual_name_that_most_rows_with_the_loss_have(
    content: str, step: str | None, found: list[int]
) -> None:
    points, stream = stream_of(content)
    assert steps(points) == found
    assert (f"step: {step}" if step else "points are numbered from 0") in stream.note


def test_a_given_loss_without_steps_is_numbered_from_0() -> None:
    points = points_of("foo 7 lr 1\n" * 3, loss="foo")
    assert (steps(points), losses(points)) == ([0, 1, 2], [7, 7, 7])


@pytest.mark.parametrize("name", ["it", "i"])
def test_a_short_name_of_the_step_counts_on_lines_of_its_own_however_many_there_are(name: str) -> None:
    points = points_of("".join(f"{name} {3 * i}\nloss 1\n" for i in range(1500)))
    assert steps(points) == list(range(0, 4500, 3))


def test_of_several_losses_the_note_asks_which() -> None:
    points, stream = stream_of("".join(f"step {i} loss_a 1 loss_b 2\n" for i in range(9)))
    assert points == []
    assert stream.note == "several may be the loss: loss_a, loss_b; say which under metrics: loss"
    assert len(points_of("step 1 loss_a 1\nstep 1 loss_b 2\n" * 3 + "step 2 loss_a 1\n" * 9)) == 0
    late = points_of("step 1 loss_a 1 loss_b 2\n" * 9 + "step 9 loss_a 1 loss_b 2 loss 3\n")
    assert losses(late) == [3.0]


NO_POINTS = {
    "nothing": ("", {}, "no line with a name and a number"),
    "no numbers": ("hello\n", {}, "no line with a name and a number"),
    "no loss": ("step 3 acc 0.5\n", {}, "no line with a loss: names seen: step, acc"),
    "losses of other data": ("step 3 val_loss 5\n", {}, "no line with a loss: names seen: step, val_loss"),
    "another loss": ("step 3 loss 0.5\n", {"loss": "nll"}, "no line with 'nll': names seen: step, loss"),
    "no object": ("step 3 loss 2\n[1]\n{3}\n", {"format": "json"}, "no line with a name and a number"),
    "no table": ("step 3 loss 2\n", {"format": "csv"}, "no line with a name and a number"),
    "no events": (
        "step 3 loss 2\n" * 9,
        {"format": "tensorboard"},
        "no line .*; the file ends in bytes that are not an event",
    ),
    "no match": ("step 3 loss 2\n", {"pattern": "cost (?P<loss>.*)"}, "no line with a name and a number"),
    "a match that is no number": ("cost x\n", {"pattern": "cost (?P<loss>.*)"}, "no line with a name and a number"),
    "names for a terminal": ('{"\\u001b[2J": 1}\n', {}, r"no line .*: names seen: \\x1b\[2J"),
}


@pytest.mark.parametrize("name", NO_POINTS)
def test_where_there_are_no_points_the_note_says_why(name: str) -> None:
    content, metrics, note = NO_POINTS[name]
    points, stream = stream_of(content, **metrics)
    assert points == []
    assert len(stream.note) < 300
    assert re.fullmatch(note, stream.note), stream.note


# --- steps


def test_points_that_are_not_above_the_last_step_are_left_out_and_counted() -> None:
    points, stream = stream_of("".join(f"step {step} loss {i}\n" for i, step in enumerate([0, 10, 10, 5, 20, 0, 30])))
    assert (steps(points), losses(points)) == ([0, 10, 20, 30], [0, 1, 4, 6])
    assert stream.note.endswith("; 3 points at the same or an earlier step were left out")


def test_steps_that_are_not_whole_are_rounded_where_they_nearly_are_and_numbered_on_elsewhere() -> None:
    words = ["-5", "3", "4.0000001", "nan", "5.5", "1e300", "-inf", "20", "", "2e2"]
    points, stream = stream_of("step,loss\n" + "".join(f"{word},1\n" for word in words))
    assert steps(points) == [-5, 3, 4, 5, 6, 7, 8, 20, 21, 200]
    assert stream.note.endswith("; 5 points without an integer step were numbered")


def test_steps_that_begin_again_with_each_epoch_are_counted_on() -> None:
    rows = [(epoch, batch) for epoch in range(3) for batch in range(0, 500, 100)]
    points, stream = stream_of("".join(f"epoch {epoch} batch {batch} loss 1\n" for epoch, batch in rows))
    assert steps(points) == list(range(0, 1500, 100))
    assert stream.note.endswith("; steps begin again with each epoch: they continue from the last one")


def test_a_run_that_goes_back_for_ever_has_lost_its_loss_at_its_end() -> None:
    again = [*range(20, 40)] * 12
    text = "".join(f"step {step} loss 2\n" for step in [*range(40), *again])
    points, stream = stream_of(text)
    assert steps(points) == list(range(41))
    assert math.isnan(points[-1].loss)
    assert "it went back 12 times from step 39 and came no further" in stream.note
    further = points_of(text + "step 40 loss 2\n")
    assert [*map(math.isnan, losses(further))] == [False] * 41


def test_a_run_that_is_resumed_repeats_steps_and_no_epoch() -> None:
    rows = [(0.1 * i, 10 * i) for i in range(9)]
    rows = rows[:7] + rows[4:]
    content = "".join(json.dumps({"epoch": epoch, "step": step, "loss": 1}) + "\n" for epoch, step in rows)
    assert steps(points_of(content)) == list(range(0, 90, 10))


# --- gradient norms


def test_where_a_row_has_no_gradient_norm_the_last_finite_one_stands_for_it() -> None:
    cells = ["", "2", "", "inf", "", "nan", "", "3", ""]
    points = points_of("step,loss,grad_norm\n" + "".join(f"{i},1,{cell}\n" for i, cell in enumerate(cells)))
    np.testing.assert_array_equal(
        np.array(norms(points), dtype=float), [math.nan, 2, 2, math.inf, 2, math.nan, 2, 3, 3]
    )
    assert points[0].grad_norm is None


@pytest.mark.parametrize("metrics", [{}, {"step": "step", "loss": "loss"}])
def test_gradient_norms_on_lines_of_their_own_count_for_the_next_point(metrics: dict) -> None:
    lines = "".join(f"step {i} loss 1\ngrad_norm {'nan' if i == 2 else i}\n" for i in range(8))
    expected = [None, 0, 1, math.nan, 3, 4, 5, 6]
    assert repr(norms(points_of(lines, **metrics))) == repr([None if x is None else float(x) for x in expected])


def test_the_usual_name_of_a_gradient_norm_may_come_late() -> None:
    lines = "".join(f"step {i} loss 1\n" for i in range(8)) + "step 8 loss 1 gnorm 4 lr 2\n"
    points, stream = stream_of(lines)
    assert points[-1] == Point(8, 1.0, 4.0, {"lr": 2.0})
    assert stream.note.endswith("gradient norm: gnorm")


# --- what is not finite


@pytest.mark.parametrize(
    "content",
    [
        "step 0 loss 3\nstep 1 loss nan\nstep 2 loss inf\nstep 3 loss -Inf\n",
        "step,loss\n0,3\n1,NaN\n2,inf\n3,-Infinity\n",
        '{"step": 0, "loss": 3}\n{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1e999}\n{"step": 3, "loss": "-inf"}\n',
        "loss 3\nloss nan\nloss inf\nloss: -INF\n",
    ],
)
def test_losses_that_are_not_finite_stay_so(content: str) -> None:
    points = points_of(content)
    assert steps(points) == [0, 1, 2, 3]
    np.testing.assert_array_equal(losses(points), [3, math.nan, math.inf, -math.inf])


# --- patterns


def test_a_pattern_takes_the_place_of_a_format() -> None:
    pattern = r"it (?P<iter>\d+)\s+cost (?P<loss>\S+)(?: \[(?P<grad_norm>[^]]+)\])?(?P<lr> .*)?"
    stream = MetricStream(MetricsConfig(pattern=pattern, format="json"))
    points = stream.feed(b"\x1b[1mit 3 cost 1,234.5 [0.5] 1e-3\nit 4\nit 5 cost x\nit 6 cost nan\n")
    assert points[0] == Point(3, 1234.5, 0.5, {"lr": 1e-3})
    assert (points[1].step, points[1].grad_norm, dict(points[1].others)) == (6, 0.5, {})
    assert math.isnan(points[1].loss)


def test_groups_of_a_pattern_may_be_named_by_the_user() -> None:
    assert points_of("7 8.5\n", pattern=r"(?P<n>\d+) (?P<nll>\S+)", step="n", loss="nll") == [Point(7, 8.5, None, {})]
    assert points_of("8.5\n" * 2, pattern=r"(?P<loss>\S+)") == [Point(0, 8.5, None, {}), Point(1, 8.5, None, {})]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"pattern": "loss (?P<loss"}, "is not a valid regular expression: missing >"),
        ({"pattern": "x{99999999999999999999}"}, "is not a valid regular expression: "),
        ({"pattern": "loss (.*)"}, "has no group called loss"),
        ({"pattern": "(?P<loss>.*)", "loss": "nll"}, "has no group called nll"),
    ],
)
def test_a_pattern_without_a_loss_is_refused(metrics: dict, message: str) -> None:
    with pytest.raises(InputError) as refused:
        MetricStream(MetricsConfig(**metrics))
    (problem,) = refused.value.problems
    assert problem.key == "metrics.pattern"
    assert problem.message.startswith(message)
    assert "(?P<loss>" in problem.remedy


# --- tables


def test_a_header_that_is_repeated_is_no_row_and_one_that_changes_counts_from_there_on() -> None:
    points = points_of("step,loss\n0,1\nstep,loss\n1,2\nloss,lr,step\n3,0.1,2\n4,0.1,3\n")
    assert (steps(points), losses(points)) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_lines_among_a_table_that_are_no_rows_are_left_out() -> None:
    banner = "Loading the data, please wait\nepochs,3\n"
    rows = "step,loss\n0,1\nsaving, as it seems\n1,2,3\n1\n\n# 1,9\n1,2\nx,y\n2,3"
    points = points_of(banner + rows, format="csv")
    assert (steps(points), losses(points)) == ([0, 1, 2], [1, 2, 3])


def test_a_quoted_cell_may_have_several_lines_and_a_quote_that_never_ends_costs_its_own_row_alone() -> None:
    rows = 'step,loss,sample\n0,5,"To be, or\n\nnot ""to"" be\r\n7,7,7"\n1,4,12"\n2,3,"x"\n'
    stream = MetricStream(MetricsConfig(format="csv"))
    points = stream.feed(rows.encode())
    assert (steps(points), losses(points)) == ([0, 1, 2], [5, 4, 3])
    assert stream.feed(b'3,2,"never ended\n' + b"4,1,x\n" * 9) == [], "it may be ended yet"
    points = stream.feed(b"".join(b"%d,1,x\n" % i for i in range(5, 300))) + stream.finish()
    assert steps(points) == [3, *range(4, 300)]
    points = points_of('step,loss,sample\n0,5,"x\n1,4,x\n2,3,x')
    assert (steps(points), losses(points)) == ([0, 1, 2], [5, 4, 3])


def test_columns_of_a_table_without_a_header_are_numbered() -> None:
    for metrics in ({}, {"format": "csv"}):
        points = points_of("0,3.5\n10,2.5\n", step="column_1", loss="column_2", **metrics)
        assert (steps(points), losses(points)) == ([0, 10], [3.5, 2.5])
    assert losses(points_of(",loss\n0,3.5\n10,2.5\n")) == [3.5, 2.5], "as pandas writes a series"


def test_a_line_that_could_be_a_header_waits_for_the_next_and_is_text_otherwise() -> None:
    stream = MetricStream(MetricsConfig(step="step", loss="loss"))
    assert stream.feed(b"step,loss\n") == []
    assert steps(stream.feed(b"step 1 loss 2\n")) == [1]
    stream = MetricStream(MetricsConfig(step="step", loss="loss"))
    assert steps(stream.feed(b"step 1, loss 2, lr 1\n")) == [1], "a line with a loss is not held back"
    assert points_of("step,loss") == []


# --- event files


def event(at: int, /, **scalars: float) -> bytes:
    """A record of TensorBoard in its frame; checksums are left out."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    record = Event(step=at, summary=Summary(value=values)).SerializeToString()
    return framed(record)


def framed(record: bytes) -> bytes:
    return len(record).to_bytes(8, "little") + bytes(4) + record + bytes(4)


VERSION = EVENTS[: 12 + EVENTS[0] + 4]


def test_scalars_of_one_step_are_one_point_once_a_later_step_comes() -> None:
    stream = MetricStream(MetricsConfig(format="tensorboard", step="step", loss="loss"))
    assert stream.feed(VERSION + event(0, loss=3) + event(0, grad_norm=2, lr=0.5)) == []
    assert stream.feed(event(5, loss=2.5)) == [Point(0, 3.0, 2.0, {"lr": 0.5})]
    assert stream.feed(event(3, val=1) + event(5, grad_norm=4) + event(5, lr=9)) == []
    assert stream.finish() == [Point(5, 2.5, 4.0, {"lr": 9.0})]
    assert stream.num_lines == 0


def test_of_a_scalar_that_comes_twice_in_a_step_the_first_counts_and_the_note_says_so() -> None:
    content = VERSION + event(0, loss=3) + event(0, grad_norm=2) + event(0, loss=9) + event(1, loss=2)
    points, stream = stream_of(content, step="step", loss="loss")
    assert points == [Point(0, 3.0, 2.0, {}), Point(1, 2.0, 2.0, {})]
    assert stream.note.endswith("; 1 point at the same or an earlier step was left out")


def test_a_scalar_that_is_called_step_is_not_the_step_of_its_record() -> None:
    content = VERSION + event(0, step=7, loss=3) + event(1, loss=2, step=7) + event(0, step=5, val=1)
    assert steps(points_of(content)) == [0, 1]


def test_losses_below_the_steps_of_other_scalars_are_points() -> None:
    content = VERSION + event(1000, samples=1) + b"".join(event(i, loss=i) for i in range(8))
    assert steps(points_of(content)) == list(range(8))


def test_a_record_that_is_damaged_is_left_out_and_the_note_says_so() -> None:
    content = VERSION + event(0, loss=1) + framed(b"\xff" * 30) + event(1, loss=2)
    points, stream = stream_of(content)
    assert steps(points) == [0, 1]
    assert stream.note.endswith("; some events are damaged")
    points, stream = stream_of(content + b"step 1 loss 2\n" + event(2, loss=1))
    assert steps(points) == [0, 1]
    assert stream.note.endswith("; the file ends in bytes that are not an event")


# --- lines


def test_the_last_lines_are_kept_as_text_cut_and_without_colours() -> None:
    stream = MetricStream(MetricsConfig())
    stream.feed("".join(f"\x1b[31mline {i}\x1b[0m\r\n\n" for i in range(50)).encode() + "é".encode()[:1])
    assert stream.num_lines == 50
    assert list(stream.last_lines) == [f"line {i}" for i in range(20, 50)]
    stream.feed("é".encode()[1:] + b"\xff" + b"x" * 999)
    stream.finish()
    assert stream.num_lines == 51
    assert stream.last_lines[-1] == "é\ufffd" + "x" * 498
    assert stream.last_lines.maxlen == 30


def test_a_character_may_be_split_and_bytes_that_are_none_are_replaced() -> None:
    content = '{"step": 1, "loss": 2, "größe": 3}\n'.encode() + b'{"step": 2, "loss": 1, "\xff": 3}\n'
    points, _ = stream_of(content, 1)
    assert [dict(point.others) for point in points] == [{"größe": 3.0}, {"\ufffd": 3.0}]


def test_a_line_that_is_too_long_is_cut() -> None:
    assert points_of("step 1 loss 2 " + "x" * 200_000 + " loss 3\nstep 2 loss 1\n") == [
        Point(1, 2.0, None, {}), Point(2, 1.0, None, {})
    ]  # fmt: skip
    row = '{{"step": 1, "loss": 2, "x": "{}"}}\n'
    assert steps(points_of(row.format("x" * 1_000_000))) == [1]
    assert points_of(row.format("x" * 1_100_000), format="json") == []


def test_a_flood_of_noise_takes_little_memory_and_time() -> None:
    line = b"Downloading the shards of a tokenizer, INFO: finished some of them, and so on and so on\n"
    noises = [line * 12_000, line.replace(b"some", b"17") * 12_000, b"x" * 1_000_000, bytes(1_000_000)]
    stream = MetricStream(MetricsConfig())
    stream.feed(b"".join(f"step {i} loss 1\n".encode() for i in range(9)) + line * 2000)
    begun = time.process_time()
    for noise in noises:
        for _ in range(3):
            stream.feed(noise)
    assert time.process_time() - begun < 3.0  # for 12 MB; a tenth of it on a machine at rest
    tracemalloc.start()
    try:
        for noise in noises:
            stream.feed(noise)
        assert tracemalloc.get_traced_memory()[1] < 40e6
        assert tracemalloc.get_traced_memory()[0] < 2e6
    finally:
        tracemalloc.stop()
    assert steps(stream.feed(b"\nstep 9 loss 1\n")) == [9]


def test_names_without_end_are_not_all_remembered() -> None:
    stream = MetricStream(MetricsConfig(format="json"))
    stream.feed("".join(f'{{"m{i}": 1, "loss_{i}": 2}}\n' for i in range(3000)).encode())
    assert stream.note.startswith("several may be the loss: loss_0, ")
    assert stream.note.endswith(" and 988 more; say which under metrics: loss")


# --- files that grow


def test_a_file_that_may_not_exist_yet_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "later" / "log.txt"
    tail = FileTail(str(path))
    assert tail.read() == b""
    path.parent.mkdir()
    assert tail.read() == b""
    path.touch()
    assert tail.read() == b""
    with open(path, "ab", buffering=0) as file:
        for content in (b"step 1 lo", b"ss 2\n", "é".encode()[:1]):
            file.write(content)
            assert tail.read() == content
            assert tail.read() == b""
    path.unlink()
    assert tail.read() == b""


def test_a_large_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    content = b"0123456789abcdef" * 600_000
    path.write_bytes(content)
    tail = FileTail(str(path))
    parts = [tail.read() for _ in range(4)]
    assert b"".join(parts) == content
    assert max(map(len, parts)) <= 4 * 1024**2
    assert parts[-1] == b""


def test_a_file_that_shrinks_is_replaced_or_is_written_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    tail = FileTail(str(path))
    path.write_bytes(b"a first run\n")
    assert tail.read() == b"a first run\n"
    path.write_bytes(b"shorter\n")
    assert tail.read() == b"shorter\n"
    path.write_bytes(b"longer than before\n")
    assert tail.read() == b"longer than before\n"
    path.write_bytes(b"longer than before\nand longer\ncut o")
    assert tail.read() == b"and longer\ncut o"
    other = tmp_path / "other.txt"
    other.write_bytes(b"another\n" * 9)
    os.replace(other, path)
    assert tail.read() == b"\n" + b"another\n" * 9, "a line that was cut off is ended"
    path.unlink()
    path.write_bytes(b"at last\n")
    assert tail.read() == b"at last\n"


def test_files_of_a_glob_are_read_in_the_order_of_their_names_line_by_line(tmp_path: Path) -> None:
    tail = FileTail(str(tmp_path / "**" / "log*.txt"))
    assert tail.read() == b""
    (tmp_path / "log_b.txt").write_bytes(b"b 1\nb ")
    assert tail.read() == b"b 1\nb ", "one file alone is read as it comes"
    (tmp_path / "log_a.txt").write_bytes(b"a 1\na 2\na")
    (tmp_path / "log_c.txt").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").write_bytes(b"run 1\n")
    assert [tail.read() for _ in range(3)] == [b"\na 1\na 2\n", b"run 1\n", b""]
    with open(tmp_path / "log_b.txt", "ab") as file:
        file.write(b"2\rb 3")
    with open(tmp_path / "log_a.txt", "ab") as file:
        file.write(b" 3\n")
    assert [tail.read() for _ in range(3)] == [b"a 3\n", b"2\r", b""]


def test_a_name_with_the_marks_of_a_glob_may_be_meant_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log[1].txt"
    tail = FileTail(str(path))
    path.write_bytes(b"here\n")
    (tmp_path / "log1.txt").write_bytes(b"elsewhere\n")
    assert tail.read() == b"here\n"
    assert tail.read() == b""


def test_of_event_files_whole_records_are_read_so_that_one_that_was_cut_off_does_no_harm(tmp_path: Path) -> None:
    tail, stream = FileTail(str(tmp_path / "events*")), MetricStream(MetricsConfig())
    first, second = tmp_path / "events.1", tmp_path / "events.2"

    def news() -> list[Point]:
        points = []
        while content := tail.read():
            points += stream.feed(content)
        return points

    first.write_bytes(VERSION[:7])
    assert tail.read() == b"", "it cannot be told yet what it is"
    first.write_bytes(VERSION + b"".join(event(i, loss=i) for i in range(8)) + event(8, loss=8)[:-9])
    assert steps(news()) == list(range(7))
    second.write_bytes(VERSION + b"".join(event(i, loss=i) for i in range(5, 12)))
    assert steps(news()) == [7, 8, 9, 10]
    assert steps(stream.finish()) == [11]
    assert "damaged" not in stream.note


def test_a_record_that_is_larger_than_a_part_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.1"
    content = VERSION + event(0, loss=1) + framed(bytes(1000)) + event(1, loss=2)
    path.write_bytes(content[:-500])
    tail = FileTail(str(path), part_bytes=300)
    assert tail.read() == content[: len(VERSION + event(0, loss=1))]
    assert tail.read() == b""
    path.write_bytes(content)
    assert tail.read() == framed(bytes(1000))
    assert tail.read() == event(1, loss=2)
    assert tail.read() == b""


def test_any_growth_of_a_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    tail, stream = FileTail(str(path)), MetricStream(MetricsConfig())
    content, points = WRITTEN["CSV"][1].encode(), []
    for end in range(0, len(content), 37):
        path.write_bytes(content[:end])  # as one that writes the whole file each time
        points += stream.feed(tail.read())
    path.write_bytes(content)
    points += stream.feed(tail.read()) + stream.finish()
    assert points == points_of(content)


def test_what_is_no_file_or_may_not_be_read_is_refused_and_other_errors_are_no_news(
    tmp_path: Path, monkeypatch
) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: is not a regular file\n.*remedy: name a file"):
        FileTail(str(tmp_path)).read()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: is not a regular file"):
        FileTail(str(tmp_path / "pipe")).read()
    assert FileTail(str(tmp_path / "pip*")).read() == b""
    path = tmp_path / "log.txt"
    path.write_bytes(b"step 1 loss 2\n")
    assert FileTail(str(path / "below")).read() == b""
    assert FileTail(str(tmp_path / ("x" * 999))).read() == b""

    def refuse(error: OSError):
        def open_(*arguments):
            raise error

        monkeypatch.setattr(file_tail, "open", open_, raising=False)  # the tests may run as root, who may read all

    tail = FileTail(str(path))
    refuse(PermissionError(13, "Permission denied"))
    with pytest.raises(InputError, match=r"log\.txt: cannot be read: Permission denied\n.*remedy: "):
        tail.read()
    refuse(OSError(116, "Stale file handle"))
    assert tail.read() == b""
    monkeypatch.undo()
    assert tail.read() == b"step 1 loss 2\n"


EVALUATED = """step 0: train loss 4.28, val loss 4.29
iter 0: loss 4.27, time 12ms
iter 1: loss 4.20, time 12ms
step 2: train loss 4.10, val loss 4.15
iter 2: loss 4.10, time 12ms
"""
VALIDATED = "".join(
    f"step {i} | loss {3 - i / 10:.1f}\n"
    + (f"Validation: loss {3.5 - i / 10:.1f} accuracy 0.{i}\n" if i % 3 == 2 else "")
    for i in range(9)
)
OBJECTS = "".join(
    json.dumps({"step": i, "loss": 3 - i / 10})
    + "\n"
    + (json.dumps({"split": "val", "step": i, "loss": 3.5 - i / 10, "accuracy": i / 10}) + "\n" if i % 3 == 2 else "")
    for i in range(9)
)
TRAINER = "".join(
    f"{{'loss': '{3 - i / 10:.1f}', 'epoch': '0.{i}'}}\n"
    + (f"{{'eval_loss': '{3.5 - i / 10:.1f}', 'eval_accuracy': '0.{i}', 'epoch': '0.{i}'}}\n" if i % 3 == 2 else "")
    for i in range(9)
)
EVERY_THIRD = [(2, 3.3, 0.2), (5, 3.0, 0.5), (8, 2.7, 0.8)]


def readings_of(text: str, also: Sequence[str] = (), pieces: int = 1) -> list[tuple[int, dict[str, float]]]:
    stream, content = MetricStream(MetricsConfig(also=list(also))), text.encode()
    found = []
    for start in range(0, len(content), -(-len(content) // pieces)):
        stream.feed(content[start : start + -(-len(content) // pieces)])
        found += stream.taken_readings()
    stream.finish()
    return [(reading.step, dict(reading.values)) for reading in [*found, *stream.taken_readings()]]


def test_validation_losses_have_the_steps_that_were_printed_with_them() -> None:
    assert readings_of(EVALUATED) == [(0, {"validation_loss": 4.29}), (2, {"validation_loss": 4.15})]


@pytest.mark.parametrize(
    ("text", "name"),
    [(VALIDATED, "accuracy"), (OBJECTS, "accuracy"), (TRAINER, "eval_accuracy")],
    ids=["text", "json", "dict"],
)
def test_metrics_that_are_asked_for_are_read_from_lines_of_their_own(text: str, name: str) -> None:
    assert readings_of(text, also=[name]) == [
        (step, {"validation_loss": pytest.approx(loss), name: pytest.approx(accuracy)})
        for step, loss, accuracy in EVERY_THIRD
    ]


def test_metrics_beside_a_loss_are_read_at_its_step_and_what_is_not_finite_is_left_out() -> None:
    text = "".join(f"step {i} loss {3 - i / 10:.1f} acc {'nan' if i == 3 else i / 10}\n" for i in range(6))
    assert readings_of(text, also=["acc"]) == [(i, {"acc": i / 10}) for i in (0, 1, 2, 4, 5)]


@settings(max_examples=examples(30))
@given(st.integers(1, 200))
def test_it_makes_no_difference_how_the_output_is_split(pieces: int) -> None:
    assert readings_of(VALIDATED, also=["accuracy"], pieces=pieces) == readings_of(VALIDATED, also=["accuracy"])


def test_steps_of_readings_never_decrease() -> None:
    text = "".join(f"step {i} loss {3 - i / 10:.1f}\n" for i in range(6)) + "Validation: step 2 loss 1.0\n"
    assert readings_of(text) == [(5, {"validation_loss": 1.0})]


def test_a_metric_that_was_never_printed_is_named() -> None:
    stream = MetricStream(MetricsConfig(also=["accuracy", "f1"]))
    stream.feed(VALIDATED.encode())
    stream.finish()
    assert stream.note.endswith("never printed: f1")


def test_steps_do_not_run_ahead_of_a_progress_bar_that_lags() -> None:
    shown = {1: 0, 2: 2, 3: 2, 4: 4}  # what the bar says before the loss of a step; later the step before
    lines = "".join(f"\r{shown.get(t, t - 1)}/80 [00:01<00:09]\r{{'loss': {4 - t / 80:.3f}}}\n" for t in range(1, 81))
    found = steps(points_of(lines))
    assert len(found) == 80
    assert max(found) <= 80


def test_a_counter_that_begins_again_with_each_epoch_counts_steps_however_short_an_epoch_is() -> None:
    lines = "".join(f"| epoch {e:3d} | {b}/450 batches | loss {5 - e / 9:.2f}\n" for e in range(9) for b in (200, 400))
    assert steps(points_of(lines)) == list(range(200, 200 * 19, 200))


def test_the_loss_of_a_value_is_no_training_loss() -> None:
    assert "no line with a loss" in stream_of(each("step {step} value_loss {loss}"))[1].note


@pytest.mark.parametrize("silence", [0, 3, 30])
def test_the_lines_of_one_process_are_read_however_long_it_waits_while_another_prints(silence: int) -> None:
    def line(pid: int, i: int) -> str:
        epoch, batch = divmod(i, 10)
        return (
            f"{pid}\tTrain Epoch: {epoch + 1} [{640 * batch}/6400 ({10 * batch}%)]\tLoss: {3 - i / 40 + pid % 2:.4f}\n"
        )

    first, other = ([line(pid, i) for i in range(60)] for pid in (4000, 4001))
    alone = points_of("".join(first))
    text = [
        *first[:5],
        *other[: 5 + silence],
        *(text for pair in zip(first[5:], other[5 + silence :], strict=False) for text in pair),
    ]
    text += first[60 - silence :]
    assert points_of("".join(text)) == alone


def test_two_lines_that_processes_wrote_at_once_count_for_neither_and_move_no_step() -> None:
    def line(pid: int, i: int) -> str:
        epoch, batch = divmod(i, 10)
        return f"{pid}\tTrain Epoch: {epoch + 1} [{640 * batch}/6400 ({10 * batch}%)]\tLoss: {3 - i / 40 + pid % 2:.4f}"

    pairs = [(line(4000, i), line(4001, max(0, i - 4))) for i in range(60)]
    whole = "".join(f"{first}\n{other}\n" for first, other in pairs)
    glued = "".join(
        f"{other}{first}\n\n" if i in (24, 37) else f"{first}{other}\n\n" if i == 53 else f"{first}\n{other}\n"
        for i, (first, other) in enumerate(pairs)
    )
    alone = points_of(whole)
    assert len(alone) == 60
    assert points_of(glued) == [point for i, point in enumerate(alone) if i not in (24, 37, 53)]
