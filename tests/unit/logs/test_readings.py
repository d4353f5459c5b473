from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.logs.columns import MetricsConfig
from orchestrator.logs.streams import MetricStream

NANO_GPT = """step 0: train loss 4.28, val loss 4.29
iter 0: loss 4.27, time 12ms
iter 1: loss 4.20, time 12ms
step 2: train loss 4.10, val loss 4.15
iter 2: loss 4.10, time 12ms
"""
LINES = "".join(
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
    assert readings_of(NANO_GPT) == [(0, {"validation_loss": 4.29}), (2, {"validation_loss": 4.15})]


@pytest.mark.parametrize(
    ("text", "name"),
    [(LINES, "accuracy"), (OBJECTS, "accuracy"), (TRAINER, "eval_accuracy")],
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


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200))
def test_it_makes_no_difference_how_the_output_is_split(pieces: int) -> None:
    assert readings_of(LINES, also=["accuracy"], pieces=pieces) == readings_of(LINES, also=["accuracy"])


def test_steps_of_readings_never_decrease() -> None:
    text = "".join(f"step {i} loss {3 - i / 10:.1f}\n" for i in range(6)) + "Validation: step 2 loss 1.0\n"
    assert readings_of(text) == [(5, {"validation_loss": 1.0})]


def test_a_metric_that_was_never_printed_is_named() -> None:
    stream = MetricStream(MetricsConfig(also=["accuracy", "f1"]))
    stream.feed(LINES.encode())
    stream.finish()
    assert stream.note.endswith("never printed: f1")
