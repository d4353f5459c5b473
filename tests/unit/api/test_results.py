import html
import inspect
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sweep_cases import ledger_at, record, sweep_of

import orchestrator
from orchestrator.answers.map import MapQuery
from orchestrator.api.results import SweepResults
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.mirrors.records import log_columns, trial_record
from orchestrator.mirrors.sweep_records import sweep_record

GRID = "seeds: [0, 1, 2]\naxes:\n  lr: {values: [0.1, 0.2]}\n  clip: {values: [1.0, null]}\n"
LABELS = ["stable"] * 3 + ["stable", "diverged", "spiked"] + ["diverged"] * 3 + ["planned"] * 3


@pytest.fixture
def results(tmp_path: Path) -> SweepResults:
    with ledger_at(tmp_path / "grid") as ledger:
        record(ledger, sweep_of(GRID), LABELS)
    return orchestrator.load(tmp_path / "grid")


def test_a_sweep_is_a_table_of_trials_with_curves_on_demand(results) -> None:
    trials = results.trials
    assert len(trials) == 12
    assert {"trial_id", "lr", "beta2", "seed", "outcome", "onset_step", "num_spikes", "final_loss"} <= set(trials)
    assert {"validation_loss", "saved_steps"} <= set(trials)
    curve = results.trace(trials.trial_id[0])
    assert curve.step.tolist() == list(range(20))
    assert np.isfinite(curve.loss).all()
    assert repr(results) == "<sweep case: 12 trials, axes lr (2), clip (2)>"


def test_the_map_takes_values_as_they_are_or_as_they_are_written(results) -> None:
    one, other = (results.map("lr", where={"clip": value}) for value in (None, "none"))
    assert one.equals(other)
    assert one.fraction_stable.tolist()[0] == pytest.approx(1 / 3)
    assert one.attrs["note"] == "clip = none"
    assert results.map("clip", where={"lr": 0.1}).fraction_stable.tolist() == [1.0, pytest.approx(1 / 3)]


def test_the_distance_to_the_edge_of_a_quadratic_is_what_theory_says_in_every_table(train, tmp_path: Path) -> None:
    """lambda_max lr / 2 = h (1 - beta1) / (1 + beta1) lr / 2 for gradient descent with averaged momentum."""
    body = """
seeds: [0, 1]
axes: {lr: {values: [0.1, 0.4, 0.8]}, beta1: {values: [0.0, 0.5]}}
fixed: {optimizer: sgd, curvature: 2.0, dimension: 1}
telemetry: {every: 5, curvature: 5}
tracking: {enabled: false}
"""
    train(sweep_of(body, "name: known\nobjective: quadratic\nsteps: 40\n"))
    known = orchestrator.load(tmp_path / "known")
    expected = 2.0 * (1 - known.trials.beta1) / (1 + known.trials.beta1) * known.trials.lr / 2
    for name in ("late_edge_ratio", "last_edge_ratio"):
        np.testing.assert_allclose(known.trials[name].astype(float), expected, rtol=1e-6)
    cells = known.map("lr", "beta1")
    np.testing.assert_allclose(
        cells.median_late_edge_ratio, (1 - cells.beta1) / (1 + cells.beta1) * cells.lr, rtol=1e-6
    )
    assert (known.trials.edge_crossings == 0).all()
    assert known.trials.late_v_lag.isna().all(), "gradient descent has no v"
    assert (known.trials.late_update_over_lr > 0).all()
    with LedgerReader(tmp_path / "known" / LEDGER) as ledger:
        rows, logs = ledger.trials(), log_columns(read_table(ledger).axes)
        points = [{p.name: p.value for p in trial_record(ledger, row, "auto", logs, "known").points} for row in rows]
        of_cells = [cell.metrics["late_edge_ratio"] for cell in sweep_record(read_table(ledger)).cells]
    assert [point["late_edge_ratio"] for point in points] == known.trials.late_edge_ratio.tolist()
    assert of_cells == cells.median_late_edge_ratio.tolist()
    exported = pd.read_csv(io.StringIO(known.ask(MapQuery(metric="late_edge_ratio")).rendered("csv")))
    np.testing.assert_allclose(exported.median_late_edge_ratio, cells.median_late_edge_ratio, rtol=1e-12)


def test_boundary_recommendation_and_sensitivity_are_at_hand(results) -> None:
    assert [row["kind"] for row in results.boundary("lr", "clip").rows] == ["crosses", "not stable throughout"]
    assert results.recommend(1.0).chosen.setting == {"lr": 0.1, "clip": 1.0}
    assert len(results.sensitivity().settings) == 2


def test_what_is_no_sweep_or_no_trial_is_refused(results, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no sweep"):
        orchestrator.load(tmp_path)
    with pytest.raises(InputError, match="no trial 'x'"):
        results.trace("x")


def test_a_sweep_is_loaded_by_its_name_or_its_folder_and_what_is_not_there_is_told(results, monkeypatch) -> None:
    folder = results.folder
    assert orchestrator.load(folder.name, results=folder.parent).folder == folder
    monkeypatch.chdir(folder.parent)
    assert orchestrator.load("grid", results=".").name == orchestrator.load(folder).name == "case"
    with pytest.raises(InputError, match="existing sweeps: grid"):
        orchestrator.load("gird", results=folder.parent)


def test_only_public_names_are_listed(results) -> None:
    assert set(dir(orchestrator)) == set(orchestrator.__all__)
    assert not [name for name in dir(results) if name.startswith("_")]
    assert {"plot", "trials", "recommend", "name", "folder"} <= set(dir(results))
    assert all(hasattr(results, name) for name in dir(results))
    assert all(hasattr(orchestrator, name) for name in dir(orchestrator))


def test_a_plot_has_the_panels_of_the_exported_picture_and_a_notebook_shows_it(results) -> None:
    figure = results.plot()
    assert [axes.get_title() for axes in figure.axes[:2]] == ["fraction of stable seeds", "median final loss"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_fractions_are_drawn_into_axes_of_ones_own(results) -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert results.plot(x="clip", y="lr", ax=right) is right
    assert (right.get_xlabel(), right.get_ylabel()) == ("clip", "lr")
    assert right.get_title() == "fraction of stable seeds"
    assert not left.get_title()


def test_a_notebook_shows_a_sweep_with_its_outcomes_its_map_and_what_to_call(results) -> None:
    page = results._repr_html_()
    assert "<b>case</b>" in page
    assert "4 stable, 4 diverged, 1 spiked" in page
    assert "data:image/" in page
    for call in re.findall(r"<code>\.(\w+)", page):
        assert hasattr(results, call)


def test_answers_are_those_of_the_commands(results, tmp_path: Path) -> None:
    with ledger_at(tmp_path / "wider") as ledger:
        record(ledger, sweep_of(GRID, "name: wider\nobjective: quadratic\nsteps: 20\n"), ["stable"] * 12)
    (difference,) = results.compare(orchestrator.load(tmp_path / "wider")).result.differences
    assert difference.area_change > 0
    assert results.compare("wider").result.differences == (difference,), "a name, of the same folder of results"
    unstable = results.trials[results.trials.outcome == "diverged"].trial_id.iloc[0]
    assert results.diagnose(unstable[:8]).trial.trial_id == unstable
    assert len(results.explain().result.causes) == 2
    assert results.recommend(margin=1).chosen.setting == {"lr": 0.1, "clip": 1.0}


def test_a_notebook_shows_an_answer_as_its_lines_and_as_html_with_figures(results) -> None:
    for answer in (results.recommend(margin=1), results.front(), results.boundary(), results.diagnose()):
        shown: list[str] = []
        # IPython looks for it in the class itself before it takes the repr of a dataclass.
        vars(type(answer))["_repr_pretty_"](answer, SimpleNamespace(text=shown.append), False)
        assert shown == [str(answer)] == ["\n".join(answer.lines())]
    page = results.diagnose()._repr_html_()
    assert "data:image/" in page
    assert html.escape(results.diagnose().lines()[0]) in page


def test_a_method_takes_the_options_of_the_command_by_place_or_name_and_says_what_they_are(results) -> None:
    assert results.recommend(1.0).to_plain() == results.recommend(margin=1.0).to_plain()
    assert list(inspect.signature(results.recommend).parameters)[-5:] == [
        "margin", "metric", "degraded", "maximize", "paste",
    ]  # fmt: skip
    assert "how far from every edge" in inspect.getdoc(results.recommend)
    with pytest.raises(TypeError, match="too many positional arguments"):
        results.survival(*[None] * 20)
    with pytest.raises(TypeError, match="margins"):
        results.recommend(margins=1.0)
    with pytest.raises(AttributeError, match="recomend"):
        results.recomend()
