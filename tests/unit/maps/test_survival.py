import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import finished, ledger_at, map_ledger, sweep_of, trial_row
from tiers import thinned

from orchestrator.answers.survival import SurvivalAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.intervals import Z_SCORE, wilson
from orchestrator.base.packs import Completed, Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.lifetimes import Lifetime, lifetimes
from orchestrator.maps.prediction import predict
from orchestrator.maps.survival import RowLaw, Survival, hazard_bound, kaplan_meier, survival
from orchestrator.maps.table import SweepTable, read_table
from orchestrator.render.blocks import Caution, Table
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[3]


def life(steps: int, has_onset: bool = True, **cell) -> Lifetime:
    return Lifetime(cell, steps, has_onset)


watched = st.lists(st.builds(life, st.integers(1, 30), st.booleans()), min_size=1, max_size=12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 40))
def test_without_censoring_it_is_the_share_that_lasted_with_wilson_s_interval(times: list[int], step: int) -> None:
    (found,) = kaplan_meier([life(time) for time in times], [step])
    num = sum(time > step for time in times)
    assert found is not None
    assert (found.share, found.low, found.high) == pytest.approx((num / len(times), *wilson(num, len(times))))


@given(watched, st.integers(1, 40), st.randoms())
def test_the_order_of_the_runs_does_not_matter(lives: list[Lifetime], step: int, order: random.Random) -> None:
    shuffled = order.sample(lives, len(lives))
    assert kaplan_meier(shuffled, [step]) == kaplan_meier(lives, [step])


@given(watched)
def test_the_share_falls_stays_in_its_interval_and_ends_where_nothing_was_watched(lives: list[Lifetime]) -> None:
    shares = kaplan_meier(lives, range(1, 40))
    known = [one for one in shares if one is not None]
    assert [one.share for one in known] == sorted((one.share for one in known), reverse=True)
    assert all(0 <= one.low <= one.share <= one.high <= 1 for one in known)
    last = max(lives, key=lambda each: (each.steps, not each.has_onset))
    assert (shares[-1] is None) == (not last.has_onset)


def test_the_interval_has_the_variance_of_greenwood_s_formula() -> None:
    from scipy.stats import CensoredData, ecdf

    lives = [life(5), life(7, False), life(9), life(12), life(15, False), life(20), life(30, False)]
    (found,) = kaplan_meier(lives, [13])
    assert found is not None
    of_scipy = ecdf(CensoredData(uncensored=[5, 9, 12, 20], right=[7, 15, 30])).sf.confidence_interval(method="linear")
    deviation = (found.share - of_scipy.low.evaluate(13)) / Z_SCORE
    num = found.share * (1 - found.share) / deviation**2
    assert (found.low, found.high) == pytest.approx(wilson(found.share * num, num))


def test_a_censored_run_counts_for_as_long_as_it_was_watched() -> None:
    shares = kaplan_meier([life(10, False), life(20), life(30, False)], [10, 20, 30, 31])
    assert [one and one.share for one in shares] == [1.0, 0.5, 0.5, None]


def test_the_bound_of_the_hazard_leaves_no_onset_a_chance_of_five_percent() -> None:
    lives = [life(100, False), life(100, False), life(50, False)]
    bound = hazard_bound(lives)
    assert bound is not None
    assert math.prod(math.exp(-bound * each.steps) for each in lives) == pytest.approx(0.05)
    assert hazard_bound([*lives, life(3)]) is None


EPISODES = {"episodes": ((12, 15), (18, None))}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"outcome": "stable", "steps_done": 20}, (20, False)),
        ({"outcome": "spiked", "onset_step": 12, "steps_done": 20}, (13, True)),
        ({"outcome": "diverged", "onset_step": 18, "steps_done": 20} | EPISODES, (13, True)),
        ({"outcome": "diverged", "onset_step": 3, "steps_done": 9}, (4, True)),
        ({"outcome": "stalled", "onset_step": 0, "steps_done": 20}, (1, True)),
        ({"outcome": "spiked", "onset_step": 20, "steps_done": 20}, (20, True)),  # a log that counts from one
    ],
)
def test_a_run_lives_until_its_first_onset_or_is_watched_to_its_end(fields: dict, expected: tuple) -> None:
    (found,) = lifetimes([trial_row(**fields)])
    assert (found.steps, found.has_onset) == expected


def test_runs_without_an_outcome_that_tells_are_left_out() -> None:
    rows = [trial_row(outcome=outcome, steps_done=5) for outcome in (None, "unknown")]
    assert lifetimes([*rows, trial_row(status="errored")]) == []


# --- a sweep ---------------------------------------------------------------------------------------

GRID = "seeds: [0, 1, 2]\naxes: {lr: {log: [1e-3, 1], num: 7}, clip: {values: [1.0, null]}}\n"
SCATTERED = (
    "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1]}, clip: {values: [1.0, null]}}\n"
    "sample: {method: sobol, num: 20, seed: 3}\n"
)


def fill(ledger, body: str, num_steps: int = 1000) -> None:
    """Onsets of a Weibull law: the time falls with the square of lr and does not depend on clip.

    The seeds of a cell have the middle quantiles of equal shares.
    """
    sweep = sweep_of(body, f"name: case\nobjective: quadratic\nsteps: {num_steps}\n")
    num_seeds = len({trial.seed for trial in sweep.trials})
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for trial in sweep.trials:
        luck = math.sqrt(-math.log1p(-(trial.seed + 0.5) / num_seeds))
        time = 20 / trial.cell.get("lr", 0.2) ** 2 * luck
        changes = {"onset_step": int(time) if time < num_steps else None, "steps_done": num_steps}
        result = finished(trial.trial_id, "spiked" if time < num_steps else "stable", **changes)
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        ledger.record(Report(pack.pack_id, 20, 0, 0.5, {}, (result,), Completed()))


def fill_on_a_cliff(ledger, num_steps: int = 1000) -> None:
    """The highest rate fails early, the next three near the end, the others never."""
    sweep = sweep_of(
        "axes: {lr: {log: [1e-3, 1], num: 7}}\n", f"name: case\nobjective: quadratic\nsteps: {num_steps}\n"
    )
    ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
    for trial in sweep.trials:
        lr = trial.cell["lr"]
        onset = 40 if lr > 0.5 else 900 if lr > 0.02 else None
        changes = {"onset_step": onset, "steps_done": num_steps}
        result = finished(trial.trial_id, "stable" if onset is None else "spiked", **changes)
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        ledger.record(Report(pack.pack_id, 20, 0, 0.5, {}, (result,), Completed()))


def edge_of(steps: int) -> float:
    """Where half of these runs last so long."""
    return math.sqrt(20 * math.sqrt(math.log(2)) / steps)


@pytest.fixture(scope="module", params=thinned([GRID, SCATTERED], GRID.__eq__), ids=["grid", "scattered"])
def filled(request, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepTable, Survival]:
    with ledger_at(tmp_path_factory.mktemp("filled")) as ledger:
        fill(ledger, request.param)
        table = read_table(ledger)
        return table, survival(table)


def test_a_sweep_of_any_shape_has_shares_and_a_law_that_finds_how_the_edge_falls(
    filled: tuple[SweepTable, Survival],
) -> None:
    table, found = filled
    assert (found.longest, found.until, found.along) == (1000, 4000, "lr")
    assert len(found.groups) == len({*table.by_cell()})
    assert {law.setting["clip"] for law in found.laws} == {1.0, None}
    for law in found.laws:
        assert law.edge is not None
        assert law.edge.low < edge_of(4000) < law.edge.high
        assert law.exponent is not None
        assert law.exponent.low < -0.5 < law.exponent.high


def test_the_prediction_is_that_of_predict(filled: tuple[SweepTable, Survival]) -> None:
    table, found = filled
    row = table.where("--where", {"clip": None})
    groups = [group for group in found.groups if group.setting["clip"] is None]
    shares = [group.predicted.share for group in sorted(groups, key=lambda group: group.setting["lr"])]
    assert shares == sorted(shares, reverse=True)
    for group in groups[:1]:
        asked = predict(row, {"steps": 4000}, rate=group.setting["lr"])
        assert asked.p_stable == pytest.approx(group.predicted.share)
        assert group.predicted.low <= group.predicted.share <= group.predicted.high
    (law,) = [law for law in found.laws if law.setting["clip"] is None]
    assert law.edge == asked.edge
    assert law.doubts == asked.doubts


def test_the_shares_at_the_last_step_are_those_of_the_map(filled: tuple[SweepTable, Survival]) -> None:
    from orchestrator.maps.cell_map import cell_map

    table, found = filled
    stability = cell_map(table)
    for group in found.groups:
        cell = stability.cells[group.setting["lr"], group.setting["clip"]]
        share = group.at_steps[-1]
        assert share is not None
        assert (share.share, share.low, share.high) == pytest.approx((cell.fraction_stable, *cell.interval))


def test_words_and_json_say_what_is_known_and_what_is_not(filled: tuple[SweepTable, Survival]) -> None:
    _, found = filled
    lines = SurvivalAnswer(found).lines()
    assert "Kaplan-Meier" in lines[1]
    assert lines[2].split("  ")[-1].strip() == "to 4000"
    assert any("may be as low as" in line for line in lines)
    assert any("are predicted to fail by step 4000" in line for line in lines)
    assert not any("no prediction" in line for line in lines)
    plain = SurvivalAnswer(found).to_plain()
    assert plain["laws"][0]["setting"].keys() == {"clip"}
    assert plain["laws"][0]["edge"].keys() == {"at", "low", "high"}
    assert len(plain["groups"]) == len(found.groups)


@pytest.mark.slow
def test_pooling_keeps_every_run_and_gives_the_shares_of_an_axis(filled: tuple[SweepTable, Survival]) -> None:
    table, found = filled
    pooled = survival(table, "clip")
    assert [group.setting for group in pooled.groups] == [{"clip": 1.0}, {"clip": None}]
    assert sum(group.num_runs for group in pooled.groups) == pooled.num_runs == len(table.trials)
    for group in pooled.groups:
        of_value = [run for run in table.runs if run.cell["clip"] == group.setting["clip"]]
        assert group.at_steps[-1].share == pytest.approx(np.mean([run.outcome == "stable" for run in of_value]))
        cells = [each.predicted.share for each in found.groups if each.setting["clip"] == group.setting["clip"]]
        assert group.predicted.share == pytest.approx(np.mean(cells))


def test_a_law_that_misses_a_trained_edge_gives_a_row_no_number(filled: tuple[SweepTable, Survival]) -> None:
    _, found = filled
    kept, other = found.laws
    test = kept.prediction.backtest
    assert not test.misses
    assert kept.prediction.refused == ()
    assert RowLaw.of(kept.setting, kept.prediction) == kept
    missed = replace(kept.prediction, refused=("it misses",), doubts=("it misses",))
    law = RowLaw.of(kept.setting, missed)
    assert law == RowLaw(kept.setting, None, None, ("it misses",))
    assert law.share(0.1, found.until) is None
    answer = SurvivalAnswer(replace(found, laws=(law, other)))
    (plain, _) = answer.to_plain()["laws"]
    assert (plain["edge"], plain["exponent"], plain["doubts"]) == (None, None, ["it misses"])
    assert [block.label for block in answer.blocks() if isinstance(block, Caution)] == ["no prediction"]


@pytest.mark.slow
def test_cells_of_a_row_whose_law_misses_a_trained_edge_are_not_predicted(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill_on_a_cliff(ledger)
        table = read_table(ledger)
        found = survival(table)
    asked = predict(table, {"steps": found.until})
    assert asked.backtest is not None
    assert asked.backtest.misses
    assert found.laws == (RowLaw({}, None, None, asked.doubts),)
    assert [group.predicted for group in found.groups] == [None] * 7
    answer = SurvivalAnswer(found)
    assert [block.label for block in answer.blocks() if isinstance(block, Caution)] == ["no prediction"]
    (table_of_shares,) = (block for block in answer.blocks() if isinstance(block, Table))
    assert table_of_shares.head[-1] == f"to {found.longest}"


def test_a_row_without_a_law_has_no_number_and_the_reason(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, "axes: {lr: {values: [1e-3, 2e-3, 3e-3]}, clip: {values: [1.0, null]}}\n")
        found = survival(read_table(ledger))
    assert [law.edge for law in found.laws] == [None, None]
    assert [group.predicted for group in found.groups] == [None] * 6
    assert all(group.at_steps[-1].share == 1 for group in found.groups)
    lines = SurvivalAnswer(found).lines()
    assert lines[-1] == "no prediction: each run is stable: the edge lies beyond the axis: add higher values of lr"
    assert not any("predicted to fail" in line or "to 4000" in line for line in lines)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("axes: {lr: {log: [1e-3, 1], num: 7}}\nfixed: {warmup: 100}\n", "train 1600 steps or more"),
        ("axes: {lr: {log: [1e-3, 1], num: 7}}\nfixed: {schedule: cosine}\n", "`schedule: constant`"),
        ("axes: {lr: {values: [1e-3, 1]}}\n", "2 values show no edge along lr; `sweep predict NAME --at steps=4000`"),
        ("axes: {lr: {values: [1e-3, 1]}, beta1: {values: [0.5, 0.9]}}\n", "--at steps=4000 --at beta1=VALUE`"),
        ("axes: {clip: {values: [1.0, null, 0.5]}}\n", "--where clip=VALUE"),
    ],
)
def test_where_the_law_refuses_the_shares_stand_and_the_remedy_is_said(tmp_path: Path, body: str, reason: str) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, body)
        found = survival(read_table(ledger))
    assert found.num_onsets > 0
    assert all(group.at_steps[-1] is not None for group in found.groups)
    (law, *_) = found.laws
    assert reason in law.doubts[0]


def test_without_an_onset_there_is_no_prediction(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        sweep = sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n")
        map_ledger(ledger, sweep, ["stable", "planned"])
        found = survival(read_table(ledger))
    assert (found.num_runs, found.num_left_out, found.groups[0].predicted) == (1, 1, None)
    lines = SurvivalAnswer(found).lines()
    assert "1 left out, whose outcome says nothing" in lines[0]
    assert lines[3] == "  lr=0.1  1.00  1.00   1.00 (0.21-1.00)"
    assert lines[-1].startswith("no prediction: 2 values show no edge along lr")


@pytest.mark.parametrize(("by", "num"), [(None, 4), ("lr", 40)])
def test_many_cells_are_cut_in_print(tmp_path: Path, by: str | None, num: int) -> None:
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {log: [1e-3, 1], num: 50}}\n"), ["stable"] * 50)
        lines = SurvivalAnswer(survival(read_table(ledger), by)).lines()
    assert lines[1].endswith(f"; {num} of 50, --json FILE has all:")
    assert sum(line.startswith("  lr=") for line in lines) == num


def test_what_cannot_be_answered_is_refused(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n"), ["stable", "planned"])
        with pytest.raises(InputError, match="'eps' is not an axis"):
            survival(read_table(ledger), "eps")
        with pytest.raises(InputError, match="lies within what was trained"):
            survival(read_table(ledger), None, 20)
    with ledger_at(tmp_path / "empty") as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n"), ["planned", "errored"])
        with pytest.raises(InputError, match="no trial has an outcome that tells"):
            survival(read_table(ledger))


@pytest.mark.slow
def test_failures_in_ten_times_the_steps_are_foreseen_on_a_real_sweep(train, tmp_path: Path) -> None:
    """The sweep of docs/maps.md: 300 steps predict what 3000 do, better than both guesses that need no law."""
    text = (ROOT / "docs" / "maps.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    lives = {}
    for num_steps in (300, 3000):
        name = f"fit_{num_steps}"
        sets = ("tracking.enabled=false", "fixed.warmup=10")
        train(build_sweep(parse_document(text, "fit.yaml"), Overrides(sets=sets, steps=num_steps, name=name)))
        with LedgerReader(tmp_path / name / LEDGER) as ledger:
            lives[num_steps] = lifetimes(read_table(ledger).runs)
            if num_steps == 300:
                found = survival(read_table(ledger), None, 3000)
    shares = {group.setting: group.predicted.share for group in found.groups if group.predicted is not None}
    pairs = [(a, b) for a, b in zip(lives[300], lives[3000], strict=True) if not a.has_onset]
    assert all(before.cell == after.cell for before, after in pairs)
    assert sum(after.has_onset for _, after in pairs) >= 10, "many that were stable to 300 have failed by 3000"
    assert [law.setting["beta2"] for law in found.laws if law.edge is not None] == [0.9], "the others miss their edge"
    predicted = [(before, after) for before, after in pairs if before.cell in shares]
    lasted_N = np.array([not after.has_onset for _, after in predicted], float)
    share_N = np.array([shares[before.cell] for before, _ in predicted])
    brier, of_stays, of_base_rate = (np.mean((guess - lasted_N) ** 2) for guess in (share_N, 1.0, lasted_N.mean()))
    assert len(predicted) >= 15
    assert brier < 0.8 * min(of_stays, of_base_rate)
