"""How a loss that blows up or is no number is printed: live and whole alike, and never as a harmless number."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from orchestrator.logs.columns import Columns, MetricsConfig
from orchestrator.logs.files import read_log
from orchestrator.logs.streams import MetricStream

# ruff: noqa: E501 - a line of a log is as long as it is

LOSSES = [*(10.0 - 0.1 * t for t in range(60)), *(4.0 * 2.0**t for t in range(12)), *[math.nan] * 8]
Lines = Callable[[int, float], str]


def human(number: float) -> str:
    power = sum(abs(number) >= limit for limit in (1e3, 1e6))
    return f"{number / 1000**power:6.3g}{'KM'[:power][-1:]}"


def number_or(word: str, loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else word


BLOWN_UP: dict[str, Lines] = {
    "nanotron": lambda t, x: f"12/31/2024 12:00:00 [INFO|DP=0]: iteration: {t + 1} / 80 | consumed_tokens: {human(4096 * (t + 1))} | lm_loss: {human(x)} | lr: 1e-05 | grad_norm: {human(10 * x)}\n",
    "thousands": lambda t, x: f"step {t} loss {x:,.3f}\n",
    "decimal commas": lambda t, x: f"Schritt {t}: loss {x:.4f}\n".replace(".", ","),
    "a percentage before the counter": lambda t, x: f"\rSteps: {100 * t // 160:3d}%|###  | {t + 1}/160 [00:01<00:09, 10.0it/s, lr=1e-5, step_loss={x}]",
    "JSON null": lambda t, x: json.dumps({"step": t, "loss": x if math.isfinite(x) else None, "lr": 0.1}) + "\n",
    "None": lambda t, x: f"step {t} loss {number_or('None', x)}\n",
    "n/a": lambda t, x: f"step {t} | loss: {number_or('n/a', x)} | lr: 0.1\n",
    "an old C library": lambda t, x: f"step {t} loss {number_or('1.#QNAN', x)}\n",
    "an empty cell": lambda t, x: ("" if t else "step,loss,lr\n") + f"{t},{number_or('', x)},0.1\n",
    "Megatron, iterations that are nan": lambda t, x: (
        f" iteration {t + 1:8d}/      80 | learning rate: 1.5E-04 |"
        + (f" lm loss: {x:.6E} |" if math.isfinite(x) else "")
        + f" loss scale: 1.0 | number of nan iterations: {int(math.isnan(x)):3d} |\n"
    ),
    "a message in JSON": lambda t, x: json.dumps({"level": "INFO", "line": 3 + t % 7, "message": f"step {t} loss {x:.4f}"}) + "\n",
}  # fmt: skip


def both(text: str, folder: Path) -> tuple[list[float], list[float], str, str]:
    """The losses of ``text`` live and as a whole, and the notes."""
    (folder / "train.log").write_bytes(text.encode())
    stream = MetricStream(MetricsConfig())
    points = stream.feed(text.encode()) + stream.finish()
    log = read_log(folder / "train.log", Columns())
    assert [point.step for point in points] == log.step_N.tolist()
    return [point.loss for point in points], log.loss_N.tolist(), stream.note, "; ".join(log.notes)


@pytest.mark.parametrize("style", BLOWN_UP)
def test_a_loss_that_blows_up_and_is_no_number_in_the_end_is_read_so(tmp_path: Path, style: str) -> None:
    live, whole, *_ = both("".join(BLOWN_UP[style](t, loss) for t, loss in enumerate(LOSSES)), tmp_path)
    np.testing.assert_array_equal(live, whole)
    assert live[:72] == pytest.approx(LOSSES[:72], rel=0.01)
    assert math.isnan(live[72])


def test_lines_that_say_their_step_and_no_loss_any_more_are_one_loss_that_is_not_finite(tmp_path: Path) -> None:
    text = "".join(BLOWN_UP["JSON null"](t, loss) for t, loss in enumerate(LOSSES))
    live, whole, *notes = both(text, tmp_path)
    assert len(live) == len(whole) == 73
    for note in notes:
        assert "8 steps from 72 on have no loss: taken as not finite" in note


@pytest.mark.parametrize(
    ("others", "num", "every"),
    [
        pytest.param({}, 4, 1, id="a few"),
        pytest.param({}, 19, 10, id="a loss in ten lines"),
        pytest.param({"val_loss": 2.0}, 30, 1, id="a validation of many checkpoints"),
        pytest.param({"d_loss": 2.0}, 30, 1, id="another phase of the training"),
    ],
)
def test_lines_without_a_loss_that_may_be_something_else_are_no_blow_up(
    tmp_path: Path, others: dict[str, float], num: int, every: int
) -> None:
    rows = [{"step": t, **({"loss": 3 - t / 100} if t % every == 0 else {"lr": 0.1})} for t in range(101)]
    rows += [{"step": 101 + t, "lr": 0.1, **others} for t in range(num)]
    live, whole, *_ = both("".join(json.dumps(row) + "\n" for row in rows), tmp_path)
    assert live == whole == [3 - t / 100 for t in range(0, 101, every)]


def test_a_few_losses_do_not_say_how_often_one_comes(tmp_path: Path) -> None:
    rows = [{"step": t, **({"loss": 3.0 - t / 10} if t < 3 else {"lr": 0.1})} for t in range(90)]
    live, whole, *_ = both("".join(json.dumps(row) + "\n" for row in rows), tmp_path)
    assert live == whole == [3.0, 2.9, 2.8]


def test_a_message_with_a_loss_among_objects_with_losses_is_none_of_them(tmp_path: Path) -> None:
    rows = [{"step": t, "loss": 3 - t / 100} for t in range(100)]
    lines = [
        f"{json.dumps(row)}\n" + ('{"msg": "epoch over, loss 2.5"}\n' if row["step"] % 5 == 4 else "") for row in rows
    ]
    live, whole, *_ = both("".join(lines), tmp_path)
    assert live == whole == [row["loss"] for row in rows]
