"""Several sweeps pool into one ladder: what differs as a constant is an axis, other training is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis
from orchestrator.maps.ladder import read_ladder
from orchestrator.maps.pooling import pooled_table
from orchestrator.maps.prediction import predict
from orchestrator.maps.table import SweepTable

RATES = [float(rate) for rate in np.geomspace(1e-4, 0.1, 19)]


def of_width(width: int, *, is_axis: bool = False, steps: int = 20, **config: object) -> SweepTable:
    """A sweep along lr at one width, whose edge is 0.4 / width."""
    axes = [Axis("lr", "log", tuple(RATES)), *([Axis("width", "values", (width,))] if is_axis else [])]
    trials = [
        trial_row(
            trial_id=f"{width} {steps} {rate}",
            cell={"lr": rate, **({"width": width} if is_axis else {})},
            config={"lr": rate, "width": width, "optimizer": "adam", **config},
            objective="command",
            status="finished",
            steps=steps,
            outcome="stable" if rate < 0.4 / width else "diverged",
        )
        for rate in RATES
    ]
    return replace(table_with(trials, axes), facts={"name": f"w{width}"})


def test_a_size_that_is_constant_in_each_file_becomes_a_size() -> None:
    widths = (16, 32, 64, 128)
    pooled = pooled_table([of_width(width) for width in widths])
    assert [axis.name for axis in pooled.axes] == ["lr", "width"]
    assert pooled.axes[0].values == pytest.approx(RATES)
    assert pooled.axes[1].values == widths
    of_axes = pooled_table([of_width(width, is_axis=width > 20) for width in widths])
    ladders = [read_ladder(table, ["width"], "lr") for table in (pooled, of_axes)]
    assert ladders[0] == ladders[1]
    assert [size.setting["width"] for size in ladders[0].sizes] == [*widths]
    assert all(math.exp(size.low) < 0.4 / size.setting["width"] < math.exp(size.high) for size in ladders[0].sizes)


def test_a_trial_of_two_sweeps_counts_once() -> None:
    table = of_width(16)
    assert len(pooled_table([table, of_width(32), table]).trials) == 2 * len(RATES)


@pytest.mark.parametrize(
    ("other", "key", "values"),
    [
        (of_width(32, schedule="cosine"), "schedule", ("none", "cosine")),
        (of_width(32, optimizer="sgd"), "optimizer", ("adam", "sgd")),
        (replace(of_width(32), facts={"name": "w32", "score": '{"name": "f1"}'}), "score", ("none", "f1")),
        (replace(of_width(32), facts={"name": "w32", "trainer_facts": '{"clip": 1}'}), "clip", ("none", "1")),
    ],
)
def test_other_training_is_refused_with_the_key_and_both_values(
    other: SweepTable, key: str, values: tuple[str, str]
) -> None:
    with pytest.raises(InputError) as refused:
        pooled_table([of_width(16), other])
    (problem,) = refused.value.problems
    assert problem.key == key
    assert problem.where == "w32"
    assert all(value in problem.message for value in values)


def test_a_sweep_without_an_axis_of_the_others_is_refused() -> None:
    depths = replace(of_width(32), axes=(*of_width(32).axes, Axis("depth", "values", (2,))))
    depths = replace(depths, trials=tuple(replace(t, cell=type(t.cell)({**t.cell, "depth": 2})) for t in depths.trials))
    with pytest.raises(InputError, match="depth"):
        pooled_table([of_width(16), depths])


def test_lengths_that_differ_are_a_size_which_the_target_must_name() -> None:
    pooled = pooled_table([of_width(16), of_width(32), of_width(64, steps=40)])
    assert [axis.values for axis in pooled.axes if axis.name == "steps"] == [(20, 40)]
    with pytest.raises(InputError, match="--at steps=VALUE"):
        predict(pooled, {"width": 128})


def test_an_axis_that_is_off_in_some_cells_pools_too() -> None:
    clip = Axis("clip", "values", (1.0, None))
    tables = []
    for width in (16, 32):
        table = of_width(width)
        trials = [
            replace(t, trial_id=f"{t.trial_id}{c}", cell=type(t.cell)({**t.cell, "clip": c}))
            for t in table.trials
            for c in clip.values
        ]
        tables.append(replace(table, axes=(*table.axes, clip), trials=tuple(trials)))
    assert pooled_table(tables).axes[1].values == clip.values
