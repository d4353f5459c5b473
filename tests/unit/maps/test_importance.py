from pathlib import Path

import pytest
from sweep_cases import ledger_at, map_ledger, sweep_of, trial_row
from tiers import one_of

from orchestrator.answers.importance import ImportanceAnswer, ImportanceQuery
from orchestrator.base.errors import InputError
from orchestrator.base.measure import FINAL_LOSS
from orchestrator.maps.importance import importance, loss_ranks, surface_shares
from orchestrator.maps.table import read_table

GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 5}, clip: {values: [1.0, 2.0, null]}}\n"
SCATTERED = (
    "seeds: [0]\naxes: {lr: {log: [1e-3, 1]}, clip: {values: [1.0, 2.0, null]}}\n"
    "sample: {method: sobol, num: 40, seed: 1}\n"
)


def fill(ledger, body: str) -> None:
    """lr alone decides what is stable, and how low the loss is; clip does nothing."""
    sweep = sweep_of(body)
    labels = ["diverged" if trial.cell["lr"] > 0.1 else "stable" for trial in sweep.trials]
    map_ledger(ledger, sweep, labels, [1 / trial.cell["lr"] for trial in sweep.trials])


@pytest.mark.parametrize("body", one_of(2, [GRID, SCATTERED]), ids=["grid", "scattered"])
def test_an_axis_that_does_nothing_has_the_lowest_share(tmp_path: Path, body: str) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, body)
        found = importance(read_table(ledger))
    for by_evaluator in found.shares.values():
        for shares in by_evaluator.values():
            assert shares is not None
            assert shares["clip"] < 0.1
    assert found.doubts == ()
    assert found.shares["loss"]["fanova"]["lr"] > 0.9


def test_diverged_trials_share_the_last_place_however_low_their_loss() -> None:
    rows = [
        trial_row(outcome="stable", final_loss=2.0),
        trial_row(outcome="diverged", final_loss=0.1),
        trial_row(outcome="spiked", final_loss=1.0),
        trial_row(outcome="diverged", final_loss=None),
    ]
    low, middle, worst = 0.0, 1 / 3, 5 / 6
    assert loss_ranks(rows, FINAL_LOSS) == pytest.approx([middle, worst, low, worst])


def test_the_words_name_the_strongest_axis_first_and_what_was_compared(tmp_path: Path) -> None:
    with ledger_at(tmp_path) as ledger:
        fill(ledger, GRID)
        lines = ImportanceAnswer(importance(read_table(ledger))).lines()
    assert "from 30 trials" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == ["lr", "clip"]
    assert lines[4].startswith("stability: 18 of 30 trials are inside the edge (stable or degraded); loss: rank of the")
    assert "these 18 trials, or of the 5 with the lowest loss" in lines[5]


@pytest.mark.parametrize(
    ("labels", "doubt"),
    [
        (["stable"] * 9, "all of the trials are inside the edge: nothing moves stability here"),
        (["diverged"] * 9, "none of the trials are inside the edge: nothing moves stability here"),
        (["stable"] * 8 + ["spiked"], "only 1 of 9 trials are over the edge: too few to compare"),
    ],
)
def test_what_cannot_be_told_is_said(tmp_path: Path, labels: list[str], doubt: str) -> None:
    with ledger_at(tmp_path) as ledger:
        body = "seeds: [0, 1, 2]\naxes: {lr: {values: [0.1, 0.2, 0.4]}}\n"
        map_ledger(ledger, sweep_of(body), labels, [float(i) for i in range(9)])
        found = importance(read_table(ledger))
    assert found.doubts == (doubt,)
    assert (found.shares["stability"]["fanova"] is None) == (len(set(labels)) == 1)
    assert ImportanceAnswer(found).lines()[-1] == f"do not trust stability: {doubt}"


def test_a_sweep_with_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "few") as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 0.2]}}\n"), ["stable", "planned"])
        with pytest.raises(InputError, match="fewer than two trials have an outcome"):
            importance(read_table(ledger))
    with ledger_at(tmp_path / "one") as ledger:
        map_ledger(ledger, sweep_of("seeds: [0, 1]\naxes: {lr: {values: [0.1]}}\n"), ["stable", "diverged"])
        with pytest.raises(InputError, match="no axis has two values"):
            importance(read_table(ledger))


LR = "lr: {log: [1e-3, 1], num: 9}"


def shares(path: Path, body: str, is_stable) -> tuple[dict[str, float] | None, str | None]:
    sweep = sweep_of(body)
    with ledger_at(path) as ledger:
        labels = ["stable" if is_stable(trial.cell) else "diverged" for trial in sweep.trials]
        map_ledger(ledger, sweep, labels, [1.0] * len(labels))
        return surface_shares(read_table(ledger))


def test_an_axis_that_does_nothing_has_no_share_on_the_surface(tmp_path: Path) -> None:
    found, _ = shares(tmp_path, f"axes: {{{LR}, clip: {{values: [1.0, 2.0, null]}}}}\n", lambda cell: cell["lr"] < 0.03)
    assert found == pytest.approx({"lr": 1.0, "clip": 0.0}, abs=0.05)


def test_axes_that_move_the_edge_only_together_share_it(tmp_path: Path) -> None:
    axes = "axes: {lr: {log: [0.01, 1], num: 9}, eps: {log: [0.01, 1], num: 9}}\n"
    found, _ = shares(tmp_path, axes, lambda cell: cell["lr"] * cell["eps"] < 0.01)
    assert found == pytest.approx({"lr": 0.5, "eps": 0.5}, abs=0.1)


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ("optimizer: {values: [sgd, adamw, lion]}", "no axis has values in an order"),
        ("lr: {log: [1e-3, 1], num: 4}", "4 trials with an outcome are too few to fit a surface to"),
    ],
)
def test_where_there_is_no_surface_the_reason_is_said(tmp_path: Path, axes: str, reason: str) -> None:
    sweep = sweep_of(f"axes: {{{axes}}}\n")
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, ["stable", *["diverged"] * (len(sweep.trials) - 1)])
        found = importance(read_table(ledger))
    assert found.shares["stability"]["surface"] is None
    assert found.no_surface == reason
    assert f"surface: none, since {reason}" in ImportanceAnswer(found).lines()


@pytest.mark.parametrize(("body", "has_surface"), [(GRID, False), (SCATTERED, True)], ids=["grid", "scattered"])
def test_a_page_leaves_the_surface_of_a_large_grid_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, has_surface: bool
) -> None:
    monkeypatch.setattr("orchestrator.maps.importance._MOST_ON_PAGE", 20)
    with ledger_at(tmp_path) as ledger:
        fill(ledger, body)
        table = read_table(ledger)
        asked, on_page = ImportanceQuery().ask(table).result, ImportanceQuery.on_page(table).ask(table).result
    assert asked.shares["stability"]["surface"] is not None
    assert (on_page.shares["stability"]["surface"] is not None) is has_surface
    assert on_page.shares["loss"] == asked.shares["loss"]


@pytest.mark.slow
def test_thousands_of_trials_have_a_surface_too(tmp_path: Path) -> None:
    axes = "axes: {lr: {log: [0.01, 1], num: 40}, eps: {log: [0.01, 1], num: 40}}\nmax_trials: 1600\n"
    found, reason = shares(tmp_path, axes, lambda cell: cell["lr"] * cell["eps"] < 0.01)
    assert found == pytest.approx({"lr": 0.5, "eps": 0.5}, abs=0.05)
    assert reason is None
