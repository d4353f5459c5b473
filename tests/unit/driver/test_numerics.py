"""The same sweep gives the same bits in every folder, whatever was measured before and however fast the machine is."""

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC, sweep_of
from tiers import one_of

from objectives.base import Rounding
from orchestrator.answers.plan import PlanQuery
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.driver.packing import compile_note, kernels_of, make_packs, rounding_of, with_numerics
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.facts import NUMERICS_FACT
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker import machine

HEAD = "name: bits\nobjective: gpt\nsteps: 9\n"
BODY = """
axes: {lr: {values: [0.001, 0.1, 30.0]}, batch_size: {values: [2, 3]}}
fixed: {width: 32, heads: 2, context: 16, depth: 1, validation_batches: 3}
telemetry: {every: 3, curvature: 4}
validate: {every: 5}
tracking: {enabled: false}
"""
COMPILE = "resources: {compile: true}\n"
EAGER = "resources: {kernels: default}\n"
NATIVE = Rounding(kernels="native")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def steady() -> Iterator[float]:
    """A clock by which every step takes a second, so that wide packs are fastest."""
    return (float(second) for second in itertools.count())


def moody() -> Iterator[float]:
    """A clock by which the first, narrowest packs are fast, the next ones slow, and all that is tried later faster."""
    return itertools.accumulate(
        itertools.chain(itertools.repeat(1.0, 9), itertools.repeat(100.0, 9), itertools.repeat(0.1))
    )


def trained(folder: Path, sweep: Sweep) -> tuple[dict, set[str]]:
    """Train ``sweep``: its results, curves and telemetry, and how its packs ran."""
    run_sweep(sweep, folder, InlineExecutor)
    with LedgerReader(folder / LEDGER) as ledger:
        rows = ledger.trials()
        assert {row.status for row in rows} == {"finished"}
        results = {
            row.trial_id: (row.outcome, row.final_loss, row.validation_loss, row.best_validation_loss, row.curve_digest)
            for row in rows
        }
        for row in rows:
            readings = {**ledger.trace(row.trial_id), **ledger.telemetry(row.trial_id)}
            results[row.trial_id] += tuple((name, str(values.tolist())) for name, values in sorted(readings.items()))
        environments = [pack.environment for pack in ledger.packs()]
    roundings = {Rounding.of_facts(environment) for environment in environments}
    assert roundings == {*sweep.roundings.values()}, "no clock chooses them"
    return results, {environment["way"].partition(",")[0] for environment in environments}


@pytest.mark.parametrize("body", one_of(2, [BODY, BODY + EAGER]), ids=["native", "eager"])
def test_one_sweep_in_many_folders_is_the_same_to_the_bit_whatever_the_clock_and_the_cache_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
) -> None:
    monkeypatch.setitem(machine._WIDTHS, "native", machine._WIDTHS["cpu"])
    sweep, found, plans = sweep_of(body, HEAD), [], []
    for number, (clock, is_cached) in enumerate([(steady, False), (moody, True), (moody, False), (steady, True)]):
        if not is_cached:
            (tmp_path / "cache" / "plans.json").unlink(missing_ok=True)
        readings = clock()
        monkeypatch.setattr(machine.time, "thread_time", lambda readings=readings: next(readings))
        results, ran = trained(tmp_path / str(number), sweep)
        found.append(results)
        plans.append(ran)
    assert plans[0] == plans[1] != plans[2] == plans[3], "the widths differ, as what was measured does"
    assert all(results == found[0] for results in found[1:])


def test_native_kernels_are_used_unless_torchs_or_compiling_is_asked_for() -> None:
    for body, rounding in (("", NATIVE), (EAGER, Rounding()), (COMPILE, Rounding(compiled=True))):
        sweep = sweep_of(BODY + body, HEAD)
        assert {pack.rounding for pack in make_packs(sweep, sweep.trials, 2)} == {rounding}
    for sweep in (sweep_of(BODY.replace("{width", "{precision: bfloat16, width"), HEAD), sweep_of(QUADRATIC, "")):
        assert {pack.rounding for pack in make_packs(sweep, sweep.trials, 2)} == {Rounding()}, "there is no kernel"
    library = sweep_of(BODY.replace("{width", "{optimizer: torch.optim.NAdam, width") + COMPILE, HEAD)
    alone = Rounding(compiled=True, is_alone=True)
    assert {pack.rounding for pack in make_packs(library, library.trials, 2)} == {alone}


@pytest.mark.parametrize(
    ("objective", "who"),
    [("quadratic", "quadratic cannot"), ("{command: [train, '{lr}']}", "a custom trainer compiles by itself")],
)
def test_compiling_is_refused_where_nothing_can_be_compiled(objective: str, who: str) -> None:
    with pytest.raises(InputError, match=rf"case.yaml:5: resources.compile: {who}"):
        sweep_of(f"axes: {{lr: {{values: [0.1]}}}}\n{COMPILE}", f"name: q\nobjective: {objective}\nsteps: 9\n")


def test_the_choice_is_frozen_when_a_sweep_first_runs(tmp_path: Path) -> None:
    eager, compiled = sweep_of(BODY + EAGER, HEAD), sweep_of(BODY + COMPILE, HEAD)
    assert compile_note(compiled) is None
    trained(tmp_path / "bits", eager)
    with LedgerReader(tmp_path / "bits" / LEDGER) as ledger:
        again = with_numerics(compiled, ledger)
        later = with_numerics(sweep_of(BODY, HEAD), ledger)
    for sweep in (again, later):
        assert {rounding_of(sweep, trial) for trial in sweep.trials} == {Rounding()}
    assert compile_note(again) is not None
    shown = "\n".join(PlanQuery().ask((compiled, tmp_path)).lines())
    assert "resources.compile has no effect on a sweep that began eager; give it another --name" in shown


def test_an_older_ledger_keeps_what_its_trials_recorded_by_structure(tmp_path: Path) -> None:
    sweep = sweep_of(BODY + EAGER, HEAD)
    trained(tmp_path / "bits", sweep)
    path = tmp_path / "bits" / LEDGER
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM facts WHERE name = ?", (NUMERICS_FACT,))
        db.execute(
            "UPDATE packs SET environment = json_set(environment, '$.kernels', 'onednn') WHERE pack_id IN"
            " (SELECT pack_id FROM trials WHERE json_extract(config, '$.batch_size') = 2)"
        )
    longer = sweep_of(BODY.replace("[2, 3]", "[2, 3, 4]") + COMPILE, HEAD)
    with LedgerReader(path) as ledger:
        opened = with_numerics(longer, ledger)
    by_size = {trial.config["batch_size"]: rounding_of(opened, trial) for trial in opened.trials}
    assert by_size == {2: Rounding(kernels="onednn"), 3: Rounding(), 4: Rounding(compiled=True)}
    run_sweep(sweep, tmp_path / "bits", InlineExecutor)
    with LedgerReader(path) as ledger:
        frozen = with_numerics(longer, ledger)
    assert {rounding_of(frozen, trial).compiled for trial in frozen.trials} == {False}, "written at its next run"
    assert rounding_of(frozen, frozen.trials[0]) == Rounding(kernels="onednn")


def test_a_sweep_that_began_by_native_kernels_goes_on_with_a_gpu_by_torchs() -> None:
    sweep = replace(sweep_of(BODY + "resources: {gpus: 1}\n", HEAD), roundings={"": NATIVE})
    assert {rounding_of(sweep, trial) for trial in sweep.trials} == {Rounding()}


def test_kernels_are_compiled_ahead_for_sweeps_that_train_by_them_alone() -> None:
    custom = sweep_of("axes: {lr: {values: [0.1]}}\n", "name: c\nobjective: {command: [train, '{lr}']}\nsteps: 9\n")
    without_curvature = sweep_of(BODY.replace(", curvature: 4", ""), HEAD)
    assert set(kernels_of(sweep_of(BODY, HEAD))) - set(kernels_of(without_curvature)) == {"hessian"}
    assert "gpt" in kernels_of(without_curvature)
    for sweep in (sweep_of(BODY + EAGER, HEAD), sweep_of(BODY + COMPILE, HEAD), sweep_of(QUADRATIC, ""), custom):
        assert not kernels_of(sweep)
