"""A planted collapse of a router: it is named, and one remedy saves it."""

from pathlib import Path

import pytest
from diagnosis_cases import calm
from remedy_cases import find_remedies
from sweep_cases import sweep_of

from orchestrator.base.files import LEDGER
from orchestrator.causes.advice import advise
from orchestrator.causes.diagnosis import diagnose, explain, rank
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.proofs.training import plan_for, read_proofs, train_proofs
from orchestrator.causes.remedies.request import RemedyRequest, usual_remedies
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table

PLANTED = (
    "objective: router\nsteps: 120\naxes: {beta: {values: [1, 16]}}\nseeds: [0]\n"
    "fixed: {lr: 0.2, experts: 8}\ntracking: {enabled: false}\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "routers"
    run_sweep(sweep_of(PLANTED, base="name: routers\n"), folder, InlineExecutor)
    return folder


def test_a_planted_collapse_is_named_and_no_other_cause(folder: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        table = read_table(ledger)
        found = diagnose(table)
        assert found is not None
        assert found.cause is not None
        assert found.trial.cell["beta"] == 16
        assert (found.cause.mechanism, found.cause.began_step) == ("router_collapse", found.trial.collapsed_step)
        stable = next(trial for trial in table.trials if trial.cell["beta"] == 1)
        balanced = diagnose(table, stable.trial_id)
        assert balanced is not None
        verdicts = {finding.mechanism: finding.verdict for finding in balanced.findings}
        assert (balanced.cause, verdicts["router_collapse"]) == (None, "excluded")
        explained = explain(table)
        assert [cause.mechanism for cause in explained.causes.values()] == ["router_collapse"]


@pytest.mark.parametrize("column", ["router_dead", "router_gini"])
def test_one_of_the_two_readings_is_enough(column: str) -> None:
    evidence = calm("stable", None, collapsed_step=100).reading(**{column: 0.9}).evidence()
    cause = rank(evidence, "case", "made up").cause
    assert cause is not None
    assert cause.mechanism == "router_collapse"


def test_what_is_usually_tried_on_a_collapsed_transformer_is_what_advice_names() -> None:
    config = {"experts": 8, "balance_weight": None, "router_lr": 1.0, "router_z_loss": 0.0, "router_noise": 0.0}
    evidence = calm(config=config, collapsed_step=0).reading(router_gini=0.9).evidence()
    tried = usual_remedies(evidence)[:5]
    assert [remedy.name for remedy in tried] == [
        "router_lr x0.3", "router_lr x0.1", "balance_weight 1", "router_z_loss 0.01", "router_noise 1",
    ]  # fmt: skip
    moves = {(move.setting, move.direction) for move in MECHANISMS["router_collapse"].moves}
    assert set().union(*(remedy.moves(evidence.config) for remedy in tried)) <= moves


def test_a_larger_weight_of_the_balance_counts_as_a_raise_from_null() -> None:
    case = calm(config={"experts": 8, "balance_weight": None}, collapsed_step=0).reading(router_gini=0.9)
    case = case.sister("stable", seed=0, balance_weight=1.0)
    (advice,) = (
        one for one in advise(case.evidence(), "router_collapse", Path()) if one.move.setting == "balance_weight"
    )
    assert advice.stable is not None
    assert (advice.stable.value, advice.standing) == (1.0, "suggested")


def test_one_remedy_saves_it(folder: Path) -> None:
    request = RemedyRequest(tried=("b=x4", "clip=0.01"), at=("0",), replicates=2, pairs=False)
    found = find_remedies(folder, None, {}, request)
    assert (found.cause, found.control_repeats) == ("router_collapse", True)
    saved = {tally.name: tally.saved for tally in found.tallies}
    best = found.best
    assert best is not None
    assert best.remedy.moves(found.trial.config) == {("b", "raise")}
    assert saved[best.name] == best.tried
    assert saved["clip 0.01"] == 0


def test_forks_confirm_it_by_scores_that_do_not_grow_with_use(folder: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        found = diagnose(read_table(ledger))
        assert found is not None
        plan = plan_for(folder, found, 4)
        train_proofs(folder, found, plan, InlineExecutor, [])
        proofs = read_proofs(ledger, found, plan)
    assert proofs.confirmed == ("router_collapse",)
    assert (proofs.num_missing, proofs.control_repeats) == (0, True)
