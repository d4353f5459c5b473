import itertools

import pytest
from sweep_cases import table_with, trial_row

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis
from orchestrator.maps.edge_line import MOST_LINES, edge_axes

LR = Axis("lr", "log", (1e-3, 1e-2, 1e-1), (1e-3, 1e-1))
BETA2 = Axis("beta2", "log1m", (0.9, 0.99), (0.9, 0.99))
CLIP = Axis("clip", "values", (0.5, 1.0, None))
WORDS = Axis("optimizer", "values", ("sgd", "adamw"))
ONE = Axis("width", "values", (8,))
MANY = Axis("batch_size", "values", tuple(range(1, MOST_LINES + 2)))
RANGE = Axis("eps", "log", (), (1e-8, 1e-4))


def chosen(*axes: Axis, **options):
    """The names of the axes along, across and of the facet, of a grid with a trial in each cell."""
    values = [axis.values or axis.ends for axis in axes]
    cells = [dict(zip((axis.name for axis in axes), cell, strict=True)) for cell in itertools.product(*values)]
    found = edge_axes(
        table_with([trial_row(cell=cell) for cell in cells], axes), {axis.name: axis for axis in axes}, **options
    )
    return found.along.name, found.across.name, found.facet and found.facet.name


def test_by_default_the_first_axis_is_drawn_against_the_next_one_of_numbers() -> None:
    assert chosen(LR, BETA2) == ("lr", "beta2", None)
    assert chosen(LR, WORDS, CLIP) == ("lr", "clip", "optimizer")
    assert chosen(LR, WORDS) == ("lr", "optimizer", None)
    assert chosen(LR, ONE, BETA2) == ("lr", "beta2", None), "an axis of one value is none to draw against"


def test_axes_can_be_named_and_the_others_follow() -> None:
    assert chosen(LR, BETA2, across="lr") == ("beta2", "lr", None)
    assert chosen(LR, BETA2, CLIP, along="clip") == ("clip", "lr", "beta2")
    assert chosen(LR, BETA2, WORDS, facet="beta2", across="optimizer") == ("lr", "optimizer", "beta2")
    assert chosen(LR, MANY, BETA2, facet="batch_size") == ("lr", "beta2", "batch_size")


def test_an_axis_that_advances_with_another_is_not_a_further_one() -> None:
    lr = Axis("lr", "values", (0.1, 1.0), zipped=("lr", "batch_size"))
    batch_size = Axis("batch_size", "values", (8, 32), zipped=("lr", "batch_size"))
    assert chosen(lr, batch_size, BETA2) == ("lr", "beta2", None)


def test_only_the_values_of_the_chosen_trials_have_lines() -> None:
    cells = [{"lr": lr, "beta2": 0.9, "clip": clip} for lr in LR.values for clip in (0.5, 1.0)]
    cells += [{"lr": lr, "beta2": 0.99, "clip": None} for lr in LR.values]
    axes = {axis.name: axis for axis in (LR, BETA2, CLIP)}
    found = edge_axes(table_with([trial_row(cell=cell) for cell in cells], axes.values()), axes, where={"beta2": "0.9"})
    assert (found.across.values, found.fixed, found.notes) == ((0.5, 1.0), {"beta2": 0.9}, ("beta2 = 0.9",))


def test_a_range_is_read_at_the_value_it_is_fixed_to() -> None:
    axes = {"lr": Axis("lr", "log", (), (1e-3, 1.0)), "beta2": BETA2, "eps": RANGE}
    rows = [trial_row(cell={"lr": 0.1, "beta2": beta2, "eps": 1e-6}) for beta2 in BETA2.values]
    found = edge_axes(table_with(rows, axes.values()), axes, where={"eps": "2e-6"})
    assert (found.along.name, found.across.name, found.facet) == ("lr", "beta2", None)
    assert (found.read_at["eps"], found.fixed, found.notes) == (2e-6, {}, ("eps = 2e-6",))


@pytest.mark.parametrize(
    ("axes", "options", "says"),
    [
        ((LR, BETA2), {"along": "depth"}, "--along: 'depth' is not an axis"),
        ((LR, BETA2), {"along": "lr", "across": "lr"}, "--across: 'lr' is also in --along"),
        ((LR, BETA2), {"facet": "beta2", "where": {"beta2": "0.9"}}, "--by: 'beta2' is also in --where"),
        ((LR, BETA2), {"where": {"depth": "3"}}, "--where: 'depth' is not an axis"),
        ((LR, BETA2), {"where": {"beta2": "0.5"}}, "no cell has 0.5"),
        ((LR,), {}, "no axis besides lr is free, so there is nothing to draw the edge against"),
        ((LR, BETA2), {"where": {"beta2": "0.9"}}, "no axis besides lr is free"),
        ((LR, BETA2), {"across": "lr", "facet": "beta2"}, "no axis is left along which"),
        ((LR, BETA2, MANY), {}, "batch_size is neither drawn nor fixed"),
        ((LR, BETA2, WORDS, CLIP), {}, "clip is neither drawn nor fixed\n    remedy: add --where clip=VALUE$"),
        ((LR, BETA2, MANY, WORDS), {}, "add --where batch_size=VALUE --where optimizer=VALUE, or --by batch_size"),
        ((LR, BETA2, RANGE), {"where": {"eps": "1"}}, "choose a number from 1e-08 to 0.0001"),
        ((LR, BETA2, RANGE), {"where": {"eps": "low"}}, "low is not within its range"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_remedy(axes, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        chosen(*axes, **options)
