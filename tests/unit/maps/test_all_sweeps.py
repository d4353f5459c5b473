from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sweep_cases import ledger_at, map_ledger, sweep_of
from tiers import examples

from orchestrator.answers.status import StatusQuery
from orchestrator.base.vocabulary import OUTCOMES, is_known
from orchestrator.maps.all_sweeps import EdgeRange, all_sweeps
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.comparison import compare
from orchestrator.maps.edges import StableRule
from orchestrator.maps.table import read_table
from orchestrator.mirrors.sweep_records import sweep_record
from orchestrator.pages.index import SweepIndex
from orchestrator.sweepfile.strict_yaml import question_of

AXES = "axes: {lr: {log: [0.01, 1], num: 3}, beta1: {values: [0.0, 0.5]}}\n"


def listed(folder: Path, unstable: dict[float, float], question: str = ""):
    """A sweep whose rows, by beta1, are unstable from these learning rates on."""
    sweep = sweep_of(AXES)
    with ledger_at(folder / "case") as ledger:
        labels = [
            "diverged" if trial.cell["lr"] >= unstable[trial.cell["beta1"]] else "stable" for trial in sweep.trials
        ]
        map_ledger(ledger, sweep, labels)
    (folder / "case" / "sweep.yaml").write_text(question + sweep.text)
    (found,) = all_sweeps(folder)
    return found


def test_the_edge_of_a_list_goes_from_the_lowest_to_the_highest_row(tmp_path: Path) -> None:
    found = listed(tmp_path, {0.0: 0.05, 0.5: 0.5})
    assert found.edge == EdgeRange("lr", pytest.approx(10**-1.5), pytest.approx(10**-0.5))
    assert found.edge.text == "lr 0.0316 .. 0.316"


def test_the_edges_of_an_island_are_left_out_where_other_rows_have_one_edge(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {beta1: {values: [0.0, 0.5]}, lr: {log: [1e-3, 10], num: 5}}\n")
    assert [trial.cell["lr"] for trial in sweep.trials[:5]] == [1e-3, 1e-2, 1e-1, 1, 10]
    with ledger_at(tmp_path / "case") as ledger:
        one_edge, island = ["stable"] * 2 + ["diverged"] * 3, ["stable"] * 2 + ["diverged", "stable", "diverged"]
        map_ledger(ledger, sweep, [*one_edge, *island])
    (found,) = all_sweeps(tmp_path)
    assert found.edge.text == "lr 0.0316"


def test_the_edges_of_an_island_are_left_out_where_no_row_has_one_edge(tmp_path: Path) -> None:
    sweep = sweep_of("axes: {lr: {log: [1e-3, 10], num: 5}}\n")
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep, ["stable"] * 2 + ["diverged", "stable", "diverged"])
    (found,) = all_sweeps(tmp_path)
    assert found.edge == EdgeRange("lr", pytest.approx(10**-1.5), pytest.approx(10**-1.5))


def test_trials_that_learned_too_little_are_counted_apart_from_stable_ones(tmp_path: Path) -> None:
    sweep = sweep_of(AXES)
    num = len(sweep.trials)
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep, ["degraded", *["stable"] * (num - 1)])
    (found,) = all_sweeps(tmp_path)
    assert found.outcomes == {"stable": num - 1, "degraded": 1}


LABELS = (*["stable"] * 3, "degraded", "spiked", "diverged", "pruned", "planned")


@settings(deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LABELS), min_size=12, max_size=12), st.booleans())
def test_all_that_states_the_stable_share_of_a_sweep_leaves_degraded_trials_out(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str], counts_degraded: bool
) -> None:
    folder = tmp_path_factory.mktemp("share")
    sweep = sweep_of("seeds: [0, 1]\n" + AXES)
    with ledger_at(folder / "case") as ledger:
        map_ledger(ledger, sweep, labels)
        table, record = read_table(ledger), sweep_record(read_table(ledger))
        status = StatusQuery().ask(table)
    (listed,) = all_sweeps(folder)
    shown = [trial.label for trial in table.trials]
    of_cells = [[label for label in shown[i : i + 2] if label in (*OUTCOMES, "degraded")] for i in range(0, 12, 2)]
    shares = [labels.count("stable") / len(labels) for labels in of_cells if labels]
    share = pytest.approx(sum(shares) / len(shares)) if shares else None
    assert listed.stable_share == record.metrics.get("stable_fraction") == share
    assert record.metrics["num_stable"] == status.outcomes.get("stable", 0) == listed.outcomes.get("stable", 0)
    assert record.metrics["num_stable"] == sum(cell.metrics["num_stable"] for cell in record.cells)
    drawn = [cell.fraction_stable for cell in cell_map(table).cells.values()]
    assert sorted(fraction for fraction in drawn if fraction is not None) == sorted(shares)
    if all(map(is_known, table.states().values())):
        assert compare([table, table], rule=StableRule(counts_degraded)).sides[0].area == share


def test_where_all_is_stable_there_is_no_edge_and_where_rows_agree_it_is_one_number(tmp_path: Path) -> None:
    assert listed(tmp_path / "a", {0.0: 9, 0.5: 9}).edge is None
    assert listed(tmp_path / "b", {0.0: 0.5, 0.5: 0.5}).edge.text == "lr 0.316"


def test_the_question_of_the_sweep_file_is_listed(tmp_path: Path) -> None:
    found = listed(tmp_path, {0.0: 0.5, 0.5: 0.5}, "# Does <momentum> move the edge?\n")
    assert found.question == "Does <momentum> move the edge?"
    assert "Does &lt;momentum&gt; move the edge?" in SweepIndex(tmp_path).html()


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("# How far\n# is the edge? And why?\nname: a\n", "How far is the edge?"),
        ("# No question.\n#\n# Or is it?\nname: a\n", ""),
        ("name: a\n# What?\n", ""),
        ("", ""),
    ],
)
def test_a_question_is_the_first_one_of_the_first_comment_s_first_paragraph(text: str, question: str) -> None:
    assert question_of(text) == question


def test_a_sweep_keeps_its_question_in_the_file_that_it_was_run_with() -> None:
    body = "# What moves\n# the edge?\n#\n# More.\nname: case\nobjective: quadratic\nsteps: 20\n"
    sweep = sweep_of(AXES, body)
    assert sweep.text.startswith("# What moves\n# the edge?\nname: case\n")
    assert sweep_of("", sweep.text).text == sweep.text
    assert [t.trial_id for t in sweep.trials] == [
        t.trial_id for t in sweep_of(AXES, body.partition("More.\n")[2]).trials
    ]
