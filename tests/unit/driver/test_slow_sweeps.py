"""Sweeps whose slow trials are pruned or that are validated, from their file to their map, page and audit."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from driver_cases import Dying
from sweep_cases import numbers, sweep_of, trial_row

from orchestrator.answers.audit import AuditAnswer
from orchestrator.api.results import load
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.base.packs import Pack, ReferenceTrial
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.slow import rung_thresholds, rungs_of
from orchestrator.driver.packing import make_packs
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.health import examine_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.audit import PlateauAudit, audit
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.recommendation import recommend
from orchestrator.maps.replay import replay_sweep
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import map_table
from orchestrator.mirrors.records import log_columns, trial_record
from orchestrator.pages.data import report_data
from orchestrator.pages.report import export_all
from orchestrator.sweepfile.spec import Sweep, build_sweep, load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

# Below 0.5 the slower the smaller; at 3 it is lost.
SLOW = """
name: {name}
objective: quadratic
steps: 60
seeds: [0, 1]
axes:
  lr: {{values: [0.5, 0.02, 0.3, 0.01, 3.0, 0.4, 0.005, 0.2]}}
fixed: {{optimizer: sgd, beta1: 0.0}}
stopping:
  audit: {audit}
  slow: {slow}
resources: {{pack: 2}}
checkpoint: {{every_steps: 5}}
tracking: {{enabled: false}}
"""
MEDIAN = "{method: median, startup_trials: 2, warmup_steps: 6}"
HALVING = "{method: halving, startup_trials: 2, warmup_steps: 10, reduction: 2}"


def slow_sweep(slow: str = MEDIAN, name: str = "slow", audit: float = 0.0) -> Sweep:
    return build_sweep(parse_document(SLOW.format(name=name, slow=slow, audit=audit), "slow.yaml"))


class Noting(InlineExecutor):
    """Keeps the packs that it gets."""

    packs: list[Pack]

    def submit(self, pack: Pack) -> None:
        self.packs.append(pack)
        super().submit(pack)


@pytest.mark.parametrize("slow", [MEDIAN, HALVING])
def test_slow_trials_are_pruned_beside_those_that_ended_before_their_pack_was_sent(
    train, rows, tmp_path: Path, monkeypatch, slow: str
) -> None:
    monkeypatch.setattr(Noting, "packs", [], raising=False)
    sweep = slow_sweep(slow)
    assert train(sweep, Noting).exit_code == 0
    found: dict[str, TrialResult] = {row.trial_id: row for row in rows("slow")}
    assert {"pruned", "stable", "diverged"} == {row.outcome for row in found.values()}
    so_far: list[ReferenceTrial] = []
    for pack in Noting.packs:
        assert sweep.stopping.slow is not None
        assert pack.rung_thresholds == rung_thresholds(sweep.stopping.slow, 60, so_far)
        ended = [found[trial_id] for trial_id in pack.trial_ids]
        so_far += [
            ReferenceTrial(row.rung_losses, row.outcome != "pruned") for row in ended if row.outcome != "diverged"
        ]
    assert len(Noting.packs) == 8
    for row in found.values():
        if row.outcome == "pruned":
            assert row.cell["lr"] < 0.5, "the fastest is not"
            assert row.steps_done is not None
            assert row.steps_done in rungs_of(sweep.stopping.slow, 60)
            assert row.saved_steps == 60 - row.steps_done
            assert (row.learned_share, row.validation_loss) == (None, None)
            assert row.final_loss == row.rung_losses[-1]
        else:
            assert row.slow_step is None


def test_a_map_counts_pruned_seeds_apart_and_recommends_none(train, tmp_path: Path) -> None:
    train(slow_sweep())
    with LedgerReader(tmp_path / "slow" / LEDGER) as ledger:
        stability, chosen = cell_map(read_table(ledger)), recommend(read_table(ledger), 1.0).candidates
        again = replay_sweep(ledger, slow_sweep().stopping)
    table = map_table(stability)
    pruned = table[table["state"] == "pruned"]
    assert len(pruned)
    assert set(pruned["num_pruned"] + pruned["num_finished"]) == {2}
    assert pruned[pruned["num_finished"] == 0]["fraction_stable"].isna().all()
    for cell in stability.cells.values():
        assert cell.state != "pruned" or not stability.is_over_edge((cell.x, cell.y))
    assert not set(pruned["lr"]) & {candidate.setting["lr"] for candidate in chosen}
    assert not [trial for trial in again if trial.is_changed]


@pytest.mark.parametrize("slow", [MEDIAN, HALVING])
def test_a_sweep_whose_packs_die_ends_as_if_undisturbed(train, rows, slow: str) -> None:
    dying = Dying(3, after_checkpoint=True)
    train(slow_sweep(slow, "calm"))
    assert train(slow_sweep(slow, "disturbed"), lambda: dying).exit_code == 0
    assert not dying.deaths
    assert numbers(rows("disturbed")) == numbers(rows("calm"))


def test_audited_trials_that_are_slow_train_to_their_end_and_say_how_often_that_was_wrong(train, rows) -> None:
    train(slow_sweep())
    train(slow_sweep(name="audited", audit=1.0))
    pruned = {row.trial_id for row in rows("slow") if row.outcome == "pruned"}
    found = rows("audited")
    slow = [row for row in found if row.slow_step is not None]
    assert pruned
    assert {row.outcome for row in found} == {"stable", "diverged"}
    assert all(row.steps_done == 60 for row in slow)
    balance = audit(found, None).slow
    assert (balance.num_pruned, balance.num_judged) == (0, len(slow))
    assert balance.steps_audited == sum(59 - (row.slow_step or 0) for row in slow)
    others = sorted(row.final_loss or 0.0 for row in found if row.slow_step is None and row.outcome == "stable")
    assert balance.middle == pytest.approx((others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2)
    assert [row.trial_id for row in balance.wrong] == [r.trial_id for r in slow if (r.final_loss or 0) < balance.middle]


def ended(outcome: str, loss: float, slow_step: int | None = None) -> TrialResult:
    """A row of a sweep of 100 steps."""
    steps_done = 40 if outcome == "pruned" else 100
    return trial_row(
        status="finished", steps=100, outcome=outcome, final_loss=loss, slow_step=slow_step, steps_done=steps_done,
        is_audited=slow_step is not None and outcome != "pruned",
    )  # fmt: skip


def test_a_slow_trial_was_wrongly_found_so_if_it_ends_in_the_better_half_of_those_that_were_not() -> None:
    table = [
        *(ended("stable", loss) for loss in (1.0, 2.0, 3.0)),
        ended("stable", 1.5, 39),  # wrongly
        ended("stable", 2.5, 39),
        ended("diverged", 0.5, 39),
        *[ended("pruned", 4.0, 39)] * 4,
    ]
    balance = audit(table, None)
    assert balance.slow.wrong == (table[3],)
    assert (balance.slow.num_pruned, balance.slow.num_judged, balance.slow.middle) == (4, 3, 2.0)
    assert (balance.steps_saved, balance.steps_audited, balance.num_stopped) == (240, 180, 4)
    text = str(AuditAnswer("", balance))
    assert "4 finished trials were pruned, and 3 slow ones trained on, for 180 member-steps" in text
    assert "1 of these ended in the better half: 33% (95 % interval 6% to 79%)" in text
    without = AuditAnswer("", audit([ended("stable", 1.0), ended("pruned", 4.0, 39)], None))
    assert "no slow trial trained on" in str(without)
    assert audit([ended("stable", 1.0)], None).slow is None


def test_packs_are_of_one_round_where_slow_trials_are_pruned() -> None:
    axes = "axes: {lr: {linear: [0.1, 0.9], num: 64}}\nresources: {pack: 8}\n"
    for stopping, sizes in (("", [16, 8, 8, 8, 8, 8, 8]), (f"stopping: {{slow: {MEDIAN}}}\n", [8] * 8)):
        sweep = sweep_of(axes + stopping)
        assert [len(pack.members) for pack in make_packs(sweep, sweep.trials, 2)] == sizes


def test_a_rule_that_is_off_leaves_trials_what_they_were_and_one_that_is_on_makes_new_ones() -> None:
    def ids(body: str) -> list[str]:
        return [trial.trial_id for trial in sweep_of(body).trials]

    assert "slow" not in sweep_of().stopping.rules()
    assert ids("stopping: {slow: null}\n") == ids("")
    rules = [
        ids(f"stopping: {{slow: {slow}}}\n")[0]
        for slow in ("{method: median}", "{method: halving}", "{method: median, startup_trials: 6}")
    ]
    assert len({*rules, ids("")[0]}) == 4


def test_the_bar_of_a_median_is_among_those_that_ran_to_their_end() -> None:
    slow = slow_sweep().stopping.slow
    assert slow is not None
    trials = [ReferenceTrial((1.0,) * 9, True), ReferenceTrial((3.0,) * 9, True), ReferenceTrial((9.0,), False)]
    assert [threshold.loss for threshold in rung_thresholds(slow, 60, trials)] == [2.0] * 9
    assert all(math.isinf(threshold.loss) for threshold in rung_thresholds(slow, 60, trials[:1]))


# With few points to fit, those in between are soon fitted worse.
FIT = """
name: held_out
objective: function_fit
steps: 400
seeds: [0, 1]
axes:
  lr: {values: [1.0e-3, 3.0e-3]}
fixed: {num_points: 8, width: 64}
resources: {pack: 2}
tracking: {enabled: false}
"""
EVERY = "validate: {every: 10}\n"


def trained(folder: Path, body: str = "") -> Path:
    sweep = sweep_of(body, FIT)
    run_sweep(sweep, folder, InlineExecutor)
    (folder / "sweep.yaml").write_text(sweep.text)
    return folder


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("validated"), EVERY)


def test_the_curve_is_in_the_ledger_beside_the_readings_under_the_update_before_it(validated: Path) -> None:
    results = load(validated)
    row = results.trials.iloc[0]
    curve = results.telemetry(row.trial_id).dropna(subset=["validation_loss"])
    assert curve["step"].tolist() == list(range(9, 400, 10))
    assert curve["validation_loss"].iloc[-1] == np.float32(row.validation_loss)
    assert row.best_validation_loss == pytest.approx(curve["validation_loss"].min(), rel=1e-6)
    assert row.best_validation_step == curve["step"].iloc[curve["validation_loss"].to_numpy().argmin()]
    assert not [finding for finding in examine_sweep(validated) if finding.level == "fault"]


def test_maps_the_page_and_trackers_have_it(validated: Path) -> None:
    export_all(validated)
    table = pd.read_csv(validated / "map.csv")
    trials = load(validated).trials
    for name in ("validation_loss", "best_validation_loss", "best_validation_step"):
        assert table[f"median_{name}"].tolist() == pytest.approx(trials.groupby("lr")[name].median().tolist())
    with LedgerReader(validated / LEDGER) as ledger:
        assert cell_map(read_table(ledger), metric="best_validation_step").metric == "best_validation_step"
        data = report_data(read_table(ledger))
        logs = log_columns(read_table(ledger).axes)
        points = trial_record(ledger, ledger.trials()[0], "auto", logs, "held_out").points
    assert data["curve_titles"]["validation_loss"] == "validation loss"
    assert all("validation_loss" in curve for curve in data["curves"])
    assert len([point for point in points if point.name == "validation_loss"]) == 40 + 1
    assert {"best_validation_loss", "best_validation_step"} <= {point.name for point in points}


def test_a_sweep_that_is_validated_at_its_end_alone_has_no_such_curve(tmp_path: Path, validated: Path) -> None:
    folder = trained(tmp_path)
    with LedgerReader(folder / LEDGER) as ledger:
        assert "validation_loss" not in report_data(read_table(ledger))["curve_titles"]
    columns = ["trial_id", "outcome", "final_loss", "validation_loss", "steps_done"]
    assert load(folder).trials[columns].equals(load(validated).trials[columns]), "validating changes nothing"


def test_trials_that_have_stopped_improving_end_and_keep_their_outcome(tmp_path: Path, validated: Path) -> None:
    folder = trained(tmp_path, EVERY + "stopping: {validation_patience: 5}\n")
    with LedgerReader(folder / LEDGER) as ledger:
        rows, replayed = ledger.trials(), replay_sweep(ledger, load_sweep(folder / "sweep.yaml").stopping)
        plateaus = audit(rows, None).plateaus
    ended = [row for row in rows if row.plateau_step is not None]
    assert ended
    for row in ended:
        assert (row.outcome, row.steps_done) == ("stable", (row.plateau_step or 0) + 1)
        assert row.saved_steps == 400 - row.steps_done
        assert "ended at step" in (row.reason or "")
    assert not [one for one in replayed if one.is_changed]
    assert not [finding for finding in examine_sweep(folder) if finding.level == "fault"]
    assert plateaus == PlateauAudit(len(ended), 0, 0, None, None)


def test_the_audit_counts_those_that_would_have_improved_later(tmp_path: Path) -> None:
    folder = trained(tmp_path, EVERY + "stopping: {validation_patience: 1, audit: 1.0}\n")
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        plateaus = audit(rows, None).plateaus
    met = [row for row in rows if row.plateau_step is not None]
    better = [row for row in met if (row.best_validation_step or 0) > (row.plateau_step or 0)]
    assert met
    assert all(row.steps_done == 400 for row in met)
    assert (plateaus.num_ended, plateaus.num_judged, plateaus.num_wrong) == (0, len(met), len(better))


def test_when_trials_are_validated_is_part_of_what_they_are_only_where_that_may_end_them() -> None:
    def ids(body: str) -> list[str]:
        return [trial.trial_id for trial in sweep_of(body, FIT).trials]

    assert ids(EVERY) == ids("") == ids("stopping: {validation_patience: null}\n")
    patient = "stopping: {validation_patience: 5}\n"
    assert len({ids(EVERY)[0], ids(EVERY + patient)[0], ids("validate: {every: 20}\n" + patient)[0]}) == 3


PLAIN = "name: case\nobjective: quadratic\nsteps: 20\n"
CUSTOM = "name: case\nobjective: {command: [train]}\nsteps: 20\n"
REFUSED = {
    (PLAIN, "stopping:\n  slow: {startup_trials: 5}\n"): ("case.yaml:5", "stopping.slow.method", "is missing"),
    (PLAIN, "stopping:\n  slow: {method: best}\n"): ("case.yaml:5", "stopping.slow.method", "'best'", "median"),
    (PLAIN, "stopping:\n  slow: {method: median, reduction: 2}\n"): (
        "case.yaml:5",
        "stopping.slow",
        "reduction",
        "median",
    ),
    (PLAIN, "stopping:\n  slow: {method: halving, interval_steps: 2}\n"): (
        "case.yaml:5",
        "interval_steps",
        "remove it",
    ),
    (PLAIN, "stopping:\n  slow: {method: halving, reduction: 1}\n"): (
        "case.yaml:5",
        "stopping.slow.reduction",
        "1",
    ),
    (PLAIN, "stopping:\n  slow: {method: median, warmup: 1}\n"): ("case.yaml:5", "warmup", "warmup_steps"),
    (FIT, "validate: {each: 10}\n"): ("case.yaml:11", "validate.each", "known keys: every"),
    (FIT, "validate: {every: 0}\n"): ("validate.every", "0"),
    (FIT, "stopping: {validation_patience: 5}\n"): ("stopping.validation_patience", "say validate: {every: STEPS}"),
    (PLAIN, EVERY): ("case.yaml:4", "validate.every", "quadratic has no held-out data", "remove it"),
    (CUSTOM, EVERY): ("case.yaml:4", "validate.every", "validates by itself", "metrics.validation_loss"),
    (CUSTOM, "stopping: {validation_patience: 5}\n"): ("stopping.validation_patience", "decides when it ends"),
}


@pytest.mark.parametrize(("base", "body"), REFUSED)
def test_settings_that_do_not_fit_are_refused_where_they_stand(base: str, body: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep_of(body, base)
    assert all(word in str(refused.value) for word in REFUSED[base, body]), str(refused.value)


@pytest.mark.parametrize(
    ("rule", "why"),
    [("slow={method: median}", "a replay judges each run alone"), ("validation_patience=5", "stopping")],
)
def test_a_replay_refuses_a_rule_that_needs_other_trials_or_validations(
    command_line: Callable[..., tuple[int, str]], rule: str, why: str
) -> None:
    code, said = command_line("replay", "log.csv", "--set", f"stopping.{rule}")
    assert code == 2
    assert f"stopping.{rule.partition('=')[0]}" in said
    assert why in said
