"""Lines that are read together give the points that they give one by one."""

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence

import pytest

from orchestrator.logs.columns import MetricsConfig
from orchestrator.logs.line_formats import reader_of
from orchestrator.logs.point_maker import Point, PointMaker
from orchestrator.logs.series import SeriesOfText
from orchestrator.logs.shapes import MAX_SHAPES
from orchestrator.logs.streams import MetricStream

NUM = 1600  # lines: the first 1,000 with numbers are read one by one


def plain(number: int, chance: random.Random) -> str:
    return f"step {number} | loss {9 + chance.uniform(0, 2):.4f} | grad_norm {chance.gauss(1, 0.1):.4g} | lr 3.00e-04"


def with_epochs(number: int, chance: random.Random) -> str:
    return f"epoch {number // 300} step {number} loss {chance.uniform(1, 2):.3f}"


def with_nan(number: int, chance: random.Random) -> str:
    norm = "nan" if chance.random() < 0.01 else f"{chance.uniform(1, 2):.3f}"
    return f"step {number}: loss {'nan' if chance.random() < 0.01 else 2.5} norm {norm}"


def rolled_back(number: int, chance: random.Random) -> str:
    return f"step {number - 150 * (number > 1300)} | loss {chance.uniform(1, 2):.3f} | tokens 1.5K"


def printed_twice(number: int, chance: random.Random) -> str:
    line = f"step {number // 2} loss {3 + number // 2 / NUM:.5f}"
    return f"INFO: {line}" if number % 2 else line


def with_others(number: int, chance: random.Random) -> str:
    what = chance.random()
    if what < 0.1:
        return f"[eval] step {number} val loss {chance.uniform(1, 2):.3f}"
    if what < 0.2:
        return f"loader: shard {number} of 9000 in 12 ms"
    if what < 0.22:
        return f'{{"step": {number}, "loss": 7.5}}'
    if what < 0.3:
        return f"saved checkpoint at step {number}"
    return f"step {number} loss {chance.uniform(1, 2):.3f}"


def of_processes(number: int, chance: random.Random) -> str:
    return f"[rank{number % 2}] step {number // 2} loss {chance.uniform(1, 2):.3f}"


def with_a_counter(number: int, chance: random.Random) -> str:
    return f"{number}/{NUM} loss: {chance.uniform(1, 2):.3f}"


def with_a_bar(number: int, chance: random.Random) -> str:
    line = f"Epoch {number // 800}/2: {number % 800:3d}/800 [00:{number % 60:02d}] loss={chance.uniform(1, 2):.3f}"
    return line if chance.random() < 0.9 else line.replace("/2:", "/0:")


def of_a_process_with_units(number: int, chance: random.Random) -> str:
    return (
        f"[{number:06d}] step={number} loss={chance.uniform(0.01, 2):.3g} tokens={number / 7:.1f}K mem=1,{number:03d}MB"
    )


def objects(number: int, chance: random.Random) -> str:
    split = '"split": "val", ' if chance.random() < 0.05 else ""
    return f'{{{split}"step": {number}, "loss": {chance.uniform(1, 2)}, "grad_norm": {chance.random()}}}'


def objects_of_all_kinds(number: int, chance: random.Random) -> str:
    values = {"step": number, "loss": chance.uniform(1, 2)}
    return (
        json.dumps(values | {"lr": 0.001 * (number % 3 > 0)}),
        json.dumps(values | {"time": "2026-11-26 09:00:00", "norms": {"grad": chance.random()}}),
        f"evaluation took {number} s",
        json.dumps(values | {"grad_norm": chance.choice([1, 2.5, math.nan])}),
    )[number % 97 % 4]


def without_steps(number: int, chance: random.Random) -> str:
    return f"loss {chance.uniform(1, 2):.3f} lr {1e-4 * (1 + number % 7):.2e}"


def other_kind_later(number: int, chance: random.Random) -> str:
    return f"{'train' if number < 1300 else 'warm restart'} step {number} loss {chance.uniform(1, 2):.3f}"


def without_norm_at_times(number: int, chance: random.Random) -> str:
    norm = "" if chance.random() < 0.3 else f" gnorm {chance.uniform(1, 2):.2f}"
    return f"step {number} loss {chance.uniform(1, 2):.3f}{norm}"


LOGS = [
    objects, objects_of_all_kinds, with_a_bar, of_a_process_with_units, plain, with_epochs, with_nan, rolled_back,
    printed_twice, with_others, of_processes, with_a_counter, without_steps, other_kind_later, without_norm_at_times,
]  # fmt: skip


def points_one_by_one(lines: Sequence[bytes], metrics: MetricsConfig) -> tuple[list[Point], str]:
    maker = PointMaker(metrics, goes_back=True)
    reader = reader_of(metrics, maker.is_loss, [])
    rows = itertools.chain(reader.rows(lines), reader.finish())
    points = [point for row in rows for point in maker.take(row)]
    return points + maker.finish(), maker.note()


@pytest.mark.parametrize("line_of", LOGS, ids=[line_of.__name__ for line_of in LOGS])
def test_lines_read_together_give_the_points_of_lines_read_one_by_one(
    line_of: Callable[[int, random.Random], str],
) -> None:
    chance = random.Random(line_of.__name__)
    lines = [line_of(number, chance).encode() for number in range(NUM)]
    metrics = MetricsConfig()
    stream, at, points = MetricStream(metrics, goes_back=True), 0, list[Point]()
    content = b"\n".join(lines) + b"\n"
    while at < len(content):
        end = at + chance.choice([7, 300, 20_000])
        points += stream.feed(content[at:end])
        at = end
    points += stream.finish()
    expected, note = points_one_by_one(lines, metrics)
    assert repr(points) == repr(expected)  # of NaN too
    assert len(points) > 500
    assert stream.note.startswith(note)


def test_forms_of_lines_are_forgotten_with_their_shapes() -> None:
    series = SeriesOfText()
    for number in range(2 * MAX_SHAPES + 10):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        series.row_of_line(f"step {number} {word} loss 2.5".encode())
    assert len(series._forms) <= len(series._shapes) <= MAX_SHAPES
