"""A prediction says the edge and the best rate at a new size, tests itself, and refuses what sizes cannot carry."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from sweep_cases import table_with, trial_row
from tiers import thinned

from orchestrator.base.errors import InputError
from orchestrator.base.space import Axis, Cell
from orchestrator.maps.ladder import bracket, read_ladder
from orchestrator.maps.prediction import predict
from orchestrator.maps.table import SweepTable

RATES = [float(rate) for rate in np.geomspace(1e-4, 0.1, 19)]


def power_law(width: float) -> float:
    """An edge that falls as 1 / width."""
    return 0.4 / width


def table_of(
    widths: Sequence[float], edge: Callable[[float], float] = power_law, rates: Sequence[float] = RATES
) -> SweepTable:
    """One run at each width and rate, stable below the edge, with the best loss at a fourth of it."""
    trials = []
    for width in widths:
        for rate in rates:
            is_stable = rate < edge(width)
            loss = 2 + 0.02 * math.log(4 * rate / edge(width)) ** 2
            cell = {"lr": rate, "width": width}
            trials.append(
                trial_row(
                    trial_id=str(cell),
                    cell=cell,
                    status="finished",
                    outcome="stable" if is_stable else "diverged",
                    final_loss=loss if is_stable else None,
                )
            )
    return table_with(trials, [Axis("lr", "log", tuple(rates)), Axis("width", "log", tuple(widths))])


def test_edge_best_rate_and_exponent_of_a_known_law_are_found_and_the_backtest_passes() -> None:
    found = predict(table_of([16, 32, 64, 128]), {"width": 256}, rate=1e-5)
    assert found.edge.low < power_law(256) < found.edge.high
    assert found.edge.at == pytest.approx(power_law(256), rel=0.25)
    assert found.best_lr is not None
    assert found.best_lr.at == pytest.approx(power_law(256) / 4, rel=0.3)
    assert found.take <= found.edge.low
    assert -1.0 in found.exponents["width"].theories
    assert 0.0 not in found.exponents["width"].theories
    assert found.backtest is not None
    assert found.backtest.at == {"width": 128}
    assert found.backtest.factor < 1.4 < found.backtest.copied < found.backtest.no_effect
    assert found.backtest.num_inside == 1
    assert found.doubts == ()
    assert found.regret is not None
    assert found.regret < min(0.01, found.backtest.copied_regret)
    assert found.p_stable is not None
    assert found.p_stable > 0.95


def test_the_loss_of_the_best_rate_follows_a_law_of_its_own() -> None:
    plain = table_of([16, 32, 64, 128])
    trials = [
        replace(trial, final_loss=None if trial.final_loss is None else trial.final_loss * trial.cell["width"] ** -0.07)
        for trial in plain.trials
    ]
    found = predict(replace(plain, trials=tuple(trials)), {"width": 256})
    assert found.best_loss is not None
    assert found.best_loss.low < 2 * 256**-0.07 < found.best_loss.high
    assert found.best_loss.high / found.best_loss.low < 1.1
    assert found.headroom is not None
    assert found.headroom.low < 4 < found.headroom.high
    without = predict(replace(plain, trials=tuple(replace(trial, final_loss=None) for trial in trials)), {"width": 256})
    assert (without.best_loss, without.headroom) == (None, None)


def test_what_else_moves_the_edge_is_named_where_all_runs_share_it() -> None:
    plain = table_of([16, 32, 64])
    trials = [
        replace(trial, config={"warmup": 10, "clip": None, "beta2": 0.9 if i else 0.95, "width": trial.cell["width"]})
        for i, trial in enumerate(plain.trials)
    ]
    assert predict(replace(plain, trials=tuple(trials)), {"width": 128}).settings == {"warmup": 10, "clip": None}
    assert predict(plain, {"width": 128}).settings == {}


def test_an_edge_that_does_not_move_has_the_exponent_zero() -> None:
    found = predict(table_of([16, 32, 64, 128], lambda width: 0.02), {"width": 256})
    assert 0.0 in found.exponents["width"].theories
    assert -1.0 not in found.exponents["width"].theories
    assert found.edge.low < 0.02 < found.edge.high


def cliff(width: float) -> float:
    """An edge that drops at width 128."""
    return power_law(width) / (5 if width == 128 else 1)


def test_an_edge_that_falls_off_a_cliff_at_the_largest_size_is_refused() -> None:
    found = predict(table_of([16, 32, 64, 128], cliff), {"width": 256}, rate=1e-4)
    assert found.backtest is not None
    assert found.backtest.factor > found.backtest.at_least > 1.5
    assert found.backtest.misses
    assert "width=128" in found.refused[0]
    assert found.doubts[0] == found.refused[0]
    shown = found.withheld()
    assert shown.is_withheld
    assert not shown.is_void
    assert [shown.edge, shown.best_lr, shown.headroom, shown.take, shown.p_stable] == [None] * 5
    assert shown.backtest == found.backtest
    assert found.edge is not None, "the law still says one, to whoever wants it anyway"


def test_a_naive_rule_that_is_nearer_though_the_law_excludes_it_is_refused() -> None:
    found = predict(table_of([16, 32, 64, 128], lambda width: max(power_law(width), power_law(64))), {"width": 256})
    assert found.backtest is not None
    assert found.backtest.loses
    assert found.backtest.copied == pytest.approx(1.0)
    assert "copying" in found.refused[-1]
    tie = replace(found.backtest, factor=found.backtest.copied * (1 + 1e-12))
    assert not tie.loses, "a tie is no loss"
    assert not replace(found.backtest, sees_effect=False).loses, "a law that allows for no effect agrees with it"
    assert replace(found.backtest, sees_effect=False).is_beaten


def test_a_best_rate_that_is_better_copied_is_a_doubt() -> None:
    """The best rate stays at 0.001 from width 64 on, and fell before."""
    table = table_of([16, 32, 64, 128])
    trials = [
        replace(trial, final_loss=2 + 0.06 * math.log(trial.cell["lr"] / max(1e-3, 0.064 / trial.cell["width"])) ** 2)
        if trial.outcome == "stable"
        else trial
        for trial in table.trials
    ]
    found = predict(replace(table, trials=tuple(trials)), {"width": 256})
    assert found.backtest is not None
    assert found.backtest.copies_better
    assert found.refused == ()
    assert any("copying the best rate" in doubt for doubt in found.doubts)


def test_a_miss_that_the_bracket_explains_is_a_doubt_and_not_refused() -> None:
    """The edge may lie at the near end of its bracket."""
    found = predict(
        table_of([16, 32, 64, 128], lambda width: power_law(width) / (1.9 if width == 128 else 1)), {"width": 256}
    )
    assert found.backtest is not None
    assert found.backtest.factor > 1.5 > found.backtest.at_least > 1
    assert found.backtest.is_off
    assert len(found.doubts) == 1
    assert found.refused == ()
    assert found.withheld() == found


@pytest.mark.parametrize(
    ("widths", "at", "remedy"),
    [
        ([16, 64], {"width": 128}, "--assume -1"),
        ([16, 24, 32], {"width": 64}, "--assume -1"),
        ([16, 32, 64], {"width": 512}, "--far"),
        ([16, 32, 64], {"depth": 8}, "axes: lr, width"),
        ([16, 32, 64], {"lr": 8}, "--at width"),
    ],
)
def test_what_sizes_cannot_carry_is_refused_with_the_remedy(
    widths: list[float], at: dict[str, float], remedy: str
) -> None:
    with pytest.raises(InputError) as refused:
        predict(table_of(widths), at)
    assert remedy in str(refused.value)


def test_axes_that_grow_together_share_the_exponent_that_the_remedy_assumes() -> None:
    plain = table_of([16, 24, 32])
    depth = Axis("depth", "log", (2, 3, 4))
    trials = [replace(trial, cell=Cell({**trial.cell, "depth": trial.cell["width"] // 8})) for trial in plain.trials]
    with pytest.raises(InputError) as refused:
        predict(table_with(trials, [*plain.axes, depth]), {"width": 64, "depth": 8})
    assert [problem.remedy.endswith("--assume -0.5") for problem in refused.value.problems] == [True, True]


def test_an_assumed_exponent_and_far_lift_the_refusals() -> None:
    assumed = predict(table_of([16, 24, 32]), {"width": 64}, assume=-1)
    assert assumed.exponents["width"].is_assumed
    assert assumed.edge.at == pytest.approx(power_law(64), rel=0.25)
    near, far = (predict(table_of([16, 32, 64]), {"width": width}, is_far=True) for width in (128, 1024))
    assert far.edge.high / far.edge.low > near.edge.high / near.edge.low


def test_an_assumption_about_the_edge_says_that_the_best_rate_falls_faster() -> None:
    found = predict(table_of([16, 24, 32]), {"width": 64}, assume=-1)
    edge, best = found.exponents["width"], found.best_exponents["width"]
    assert best.is_assumed
    assert best.at < edge.at == pytest.approx(-1, abs=0.01)
    assert best.low < -1.375 < best.high


def test_where_the_edge_is_assumed_not_to_move_the_best_rate_does_not() -> None:
    found = predict(table_of([16, 24, 32], lambda width: 0.02), {"width": 64}, assume=0)
    assert found.best_exponents["width"].at == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("edge", [1e-5, 1.0])
def test_outcomes_that_are_all_alike_are_refused(edge: float) -> None:
    with pytest.raises(InputError, match="beyond the axis"):
        predict(table_of([16, 32, 64], lambda width: edge), {"width": 128})


def test_an_axis_whose_high_values_are_stable_is_refused() -> None:
    """Such as a warmup: the law knows no edge with the stable side above it."""
    turned = {"stable": "diverged", "diverged": "stable"}
    table = table_of([16, 32, 64])
    trials = [replace(trial, outcome=turned[trial.outcome]) for trial in table.trials]
    with pytest.raises(InputError, match="above its edge"):
        predict(table_with(trials, table.axes), {"width": 128})


def test_an_axis_that_varies_and_is_no_size_is_refused() -> None:
    plain = table_of([16, 32, 64])
    other = Axis("optimizer", "categorical", ("adam", "sgd"))
    trials = [
        trial_row(trial_id=f"{trial.trial_id}{name}", cell={**trial.cell, "optimizer": name}, outcome=trial.outcome)
        for trial in plain.trials
        for name in other.values
    ]
    with pytest.raises(InputError, match="--where optimizer=VALUE"):
        predict(table_with(trials, [*plain.axes, other]), {"width": 128})


def scattered(num: int, edge: Callable[[float], float], curvature: float | None = None, seed: int = 0) -> SweepTable:
    """Runs at sizes and rates that are all different; the best rate is a fourth of the edge where loss is curved."""
    rng = np.random.default_rng(seed)
    cells = zip(10 ** rng.uniform(-3.5, -1.5, num), 2 ** rng.uniform(4, 7, num), strict=True)
    trials = [
        trial_row(
            trial_id=str(i),
            cell={"lr": rate, "width": width},
            status="finished",
            outcome="stable" if rate < edge(width) else "diverged",
            final_loss=None if curvature is None else loss_at(4 * rate / edge(width), width, curvature, rng),
        )
        for i, (rate, width) in enumerate(cells)
    ]
    axes = [Axis(name, "log", (), ends) for name, ends in (("lr", (1e-4, 0.1)), ("width", (16.0, 128.0)))]
    return table_with(trials, axes)


def loss_at(factor: float, width: float, curvature: float, rng: np.random.Generator) -> float:
    """A loss at a factor of the best rate: flat below, steeper above, and lower in larger models."""
    distance = math.log(factor)
    return 2 * width**-0.05 * (1 + curvature * distance**2 * (2 if distance > 0 else 1)) * (1 + 0.003 * rng.normal())


def test_scattered_cells_have_a_best_rate_by_the_loss_that_is_fitted_to_them() -> None:
    found = predict(scattered(120, power_law, 0.02), {"width": 256})
    assert found.best_lr is not None
    assert found.best_lr.low < power_law(256) / 4 < found.best_lr.high
    assert found.best_lr.at == pytest.approx(power_law(256) / 4, rel=0.3)
    assert found.best_exponents["width"].low < -1 < found.best_exponents["width"].high
    assert found.take <= found.best_lr.at
    assert found.regret is not None
    assert found.regret < 0.05


@pytest.mark.parametrize("curvature", thinned([None, 0.0], lambda curvature: curvature == 0.0))
def test_scattered_cells_without_a_curved_loss_have_no_best_rate(curvature: float | None) -> None:
    found = predict(scattered(120, power_law, curvature), {"width": 256})
    assert found.best_lr is None
    assert found.take < found.edge.low


@pytest.mark.slow
def test_scattered_sizes_have_a_backtest_too() -> None:
    right = predict(scattered(120, power_law), {"width": 256})
    assert right.backtest is not None
    assert 64 < right.backtest.at["width"] < 128
    assert right.backtest.factor < 1.4
    assert right.doubts == ()
    assert right.edge.low < power_law(256) < right.edge.high
    wrong = predict(scattered(120, lambda width: power_law(width) / (8 if width > 90 else 1)), {"width": 256})
    assert wrong.backtest is not None
    assert wrong.backtest.factor > 1.5
    assert wrong.doubts != ()


@pytest.mark.parametrize(
    ("unstable", "expected"),
    [
        ([False, False, True, True], (2.0, 3.0)),
        ([False, True, False, True], (1.0, 2.0)),
        ([False] * 4, (4.0, None)),
        ([True] * 4, (None, 1.0)),
        ([True, False, False, False], (4.0, None)),
    ],
)
def test_the_bracket_explains_most_outcomes(unstable: list[bool], expected: tuple[float | None, float | None]) -> None:
    assert bracket([1.0, 2.0, 3.0, 4.0], unstable) == expected


def test_an_optimum_at_the_end_of_its_axis_is_known_to_lie_beyond() -> None:
    rates = [rate for rate in RATES if rate > 0.005]
    sizes = read_ladder(table_of([16, 64], rates=rates), ["width"], "lr").sizes
    found = [None if size.optimum is None else size.optimum.beyond for size in sizes]
    assert found == [-1, None]  # at width 64 no rate is stable
    low = [rate for rate in RATES if rate < 0.001]
    (size,) = read_ladder(table_of([16], rates=low), ["width"], "lr").sizes
    assert size.optimum is not None
    assert size.optimum.beyond == 1


def over_time(**config: object) -> SweepTable:
    """Runs of 320 steps whose edge falls as the square root of the steps: one above it left its trend that early."""
    trials = []
    for rate in RATES:
        onset = 320 * (0.01 / rate) ** 2
        cell = {"lr": rate}
        trials.append(
            trial_row(
                trial_id=str(cell),
                cell=cell,
                config={"schedule": "constant", "warmup": 4, **config},
                status="finished",
                steps=320,
                steps_done=min(320, math.ceil(onset) + 40),
                outcome="stable" if onset > 320 else "diverged",
                episodes=() if onset > 320 else ((int(onset), None),),
                onset_step=None if onset > 320 else int(onset) + 5,
            )
        )
    return table_with(trials, [Axis("lr", "log", tuple(RATES))])


@pytest.mark.slow
def test_one_length_shows_how_the_edge_falls_over_steps() -> None:
    found = predict(over_time(), {"steps": 1280}, rate=1e-3)
    assert found.edge.low < 0.005 < found.edge.high
    assert found.edge.at == pytest.approx(0.005, rel=0.25)
    assert found.exponents["steps"].low < -0.5 < found.exponents["steps"].high
    assert found.ladder.lengths == (20, 40, 80, 160, 320)
    assert found.best_lr is None
    assert found.take < found.edge.low
    assert found.p_stable is not None
    assert found.p_stable > 0.95
    assert found.backtest is not None
    assert found.backtest.at == {"steps": 320}
    assert found.backtest.num_inside == 1


@pytest.mark.slow
def test_the_edge_of_a_trained_length_is_that_of_the_sweep() -> None:
    assert predict(over_time(), {"steps": 320}).edge.at == pytest.approx(0.01, rel=0.2)


UNKNOWN: dict[str, object] = {"schedule": ""}


@pytest.mark.parametrize("config", [{"schedule": "cosine"}, {"warmup": 100}, UNKNOWN])
def test_the_first_half_of_a_run_that_is_no_shorter_run_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InputError) as error:
        predict(over_time(**config), {"steps": 1280})
    assert error.value.problems[0].key == "steps"


@pytest.mark.slow
def test_a_custom_trainer_states_its_schedule_as_a_fact() -> None:
    table = over_time()
    trials = tuple(replace(trial, config={"warmup": 4}) for trial in table.trials)
    with pytest.raises(InputError, match="schedule"):
        predict(replace(table, trials=trials), {"steps": 1280})
    stated = replace(table, trials=trials, facts={"trainer_facts": '{"schedule": "constant"}'})
    assert predict(stated, {"steps": 1280}).edge == predict(table, {"steps": 1280}).edge
