from pathlib import Path

import numpy as np
from sweep_cases import finished, ledger_at, sweep_of, trial_row

from orchestrator.answers._rows import named_rows
from orchestrator.base.packs import Completed, Report
from orchestrator.detection.relative import SHAKING
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.edges import StableRule
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.table import length_notes, read_table

RATES = "axes: {lr: {values: [0.01, 0.1, 1.0]}}\n"
STEPS = 200


def descent(end: float, noise: float = 0.0) -> np.ndarray:
    """A loss that falls to ``end``, with normal noise in its second half."""
    made = end + (4 - end) * np.exp(-np.arange(STEPS) / 20)
    made[STEPS // 2 :] += noise * np.random.default_rng(0).standard_normal(STEPS // 2)
    return made


def ledger_of(folder: Path, *curves: np.ndarray, body: str = RATES, outcomes: tuple[str, ...] = ()) -> LedgerWriter:
    """A sweep whose trials have these curves; all are stable unless ``outcomes`` says otherwise."""
    sweep, ledger = sweep_of(body), ledger_at(folder)
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for trial, curve, outcome in zip(sweep.trials, curves, outcomes or ["stable"] * len(curves), strict=True):
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        result = finished(
            trial.trial_id, outcome, initial_loss=float(curve[0]), final_loss=float(np.median(curve[-10:]))
        )
        trace = {"step": np.arange(STEPS), "loss": curve}
        ledger.record(Report(pack.pack_id, STEPS, 0, 0.5, {trial.trial_id: trace}, (result,), Completed()))
        ledger.end_pack(pack.pack_id, "done", "errored", "a bug")
    return ledger


def words(ledger: LedgerWriter) -> list[str | None]:
    return [trial.lr_health for trial in read_table(ledger).trials]


def test_a_loss_that_shakes_for_nothing_is_oscillating(tmp_path: Path) -> None:
    with ledger_of(tmp_path, descent(2.0, 0.01), descent(2.0, 0.01), descent(2.0, 0.01 * 3 * SHAKING)) as ledger:
        assert words(ledger) == ["right", "right", "oscillating"]
        assert [cell.lr_health for cell in cell_map(read_table(ledger)).cells.values()] == words(ledger)


def test_noise_that_pays_or_is_that_of_the_batches_is_right(tmp_path: Path) -> None:
    with ledger_of(tmp_path / "pays", descent(2.0), descent(1.5, 0.1), descent(2.0)) as ledger:
        assert words(ledger) == ["too slow", "right", "oscillating"]
    with ledger_of(tmp_path / "batches", *[descent(2.0, 0.1)] * 3) as ledger:
        assert words(ledger) == ["right"] * 3


def test_a_rate_that_is_too_low_to_learn_is_no_edge_and_no_end_of_the_margin(tmp_path: Path) -> None:
    curves = descent(3.99), descent(2.0), descent(2.0)
    with ledger_of(tmp_path, *curves, outcomes=("stalled", "stable", "stable")) as ledger:
        grid = GridMap(read_table(ledger))
        (row,) = grid.rows()
        assert (row.kind, row.edges, row.degraded) == ("stable throughout", (), (0.01,))
        ((_, text),) = named_rows(grid)
        assert text.startswith("inside the edge throughout; degraded at 0.01; too slow at 0.01")
        chosen = recommend(read_table(ledger)).chosen
        assert chosen is not None
        assert chosen.setting != {"lr": 0.01}
        assert all(margin.is_open for margin in chosen.margins)
        (strict,) = GridMap(read_table(ledger), StableRule(True)).rows()
        assert strict.kind == "crosses"


def test_calm_trials_that_ended_long_before_others_are_noted_and_others_are_not() -> None:
    def notes(*shares: float, **changes) -> list[str]:
        trials = [
            trial_row(
                trial_id=str(i), objective="command", status="finished", outcome="stable", steps=100,
                steps_done=round(100 * share), **changes,
            )
            for i, share in enumerate(shares)
        ]  # fmt: skip
        return list(length_notes(trials))

    (note,) = notes(1.0, 0.51, 0.95)
    assert note.startswith("1 trial ended after 51% of the steps, unlike others")
    assert notes(0.51, 0.51) == [], "they count something else, or print rarely"
    assert notes(1.0, 0.51, plateau_step=50) == [], "sweep ended it"
    assert notes(1.0, 0.91) == []
