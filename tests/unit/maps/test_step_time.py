"""How long a step takes at a size that was not trained: by the packs of the sizes that were."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.space import Axis
from orchestrator.maps.ladder import Ladder, read_ladder
from orchestrator.maps.step_time import step_seconds
from orchestrator.maps.table import SweepTable


def table_of(seconds: dict[int, float], num: int = 1) -> tuple[SweepTable, Ladder]:
    """One pack of ``num`` trials at each width, whose 100 steps took so many seconds."""
    trials, packs = [], []
    for width, took in seconds.items():
        ids = [f"{width} {i}" for i in range(num)]
        trials += [
            trial_row(
                trial_id=name, cell={"lr": 0.1 * (i + 1), "width": width}, outcome="stable", pack_id=f"pack {width}"
            )
            for i, name in enumerate(ids)
        ]
        packs.append(
            SimpleNamespace(
                pack_id=f"pack {width}", trial_ids=tuple(ids), ended="done", member_steps=100 * num, seconds=took
            )
        )
    axes = [Axis("lr", "log", (0.1,)), Axis("width", "log", tuple(seconds))]
    table = replace(table_with(trials, axes), ledger=SimpleNamespace(packs=lambda: packs))
    return table, read_ladder(table, ["width"], "lr")


def test_the_time_of_a_step_goes_on_as_a_power_of_the_size() -> None:
    table, ladder = table_of({16: 1.0, 32: 4.0, 64: 16.0})
    assert step_seconds(table, ladder, {"width": 128}) == pytest.approx((0.64, 0.64))


def test_a_pack_says_between_what_a_run_alone_takes() -> None:
    table, ladder = table_of({16: 1.0, 32: 4.0, 64: 16.0}, num=8)
    assert step_seconds(table, ladder, {"width": 128}) == pytest.approx((0.64 / 8, 0.64))


@pytest.mark.parametrize(
    "seconds",
    [{16: 1.0, 64: 16.0}, {16: 1.0, 32: 20.0, 64: 2.0}],  # too few sizes, and no power of them
)
def test_a_time_that_cannot_be_fitted_is_not_known(seconds: dict[int, float]) -> None:
    table, ladder = table_of(seconds)
    assert step_seconds(table, ladder, {"width": 128}) is None


def test_a_size_that_was_trained_needs_no_fit() -> None:
    table, ladder = table_of({16: 1.0, 64: 16.0})
    assert step_seconds(table, ladder, {"width": 64}) == pytest.approx((0.16, 0.16))


def test_packs_that_never_ended_and_imports_tell_nothing() -> None:
    table, ladder = table_of({16: 1.0, 32: 4.0, 64: 16.0})
    assert step_seconds(replace(table, ledger=SimpleNamespace(packs=list)), ladder, {"width": 128}) is None
