"""Tables with a run in each row become sweeps that are marked as imported."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.answers._rows import named_rows
from orchestrator.api.importing import import_results
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.importing.collecting import collect, record
from orchestrator.importing.options import ImportOptions, import_options
from orchestrator.importing.outcomes import by_final_loss
from orchestrator.importing.runs import EMPTY, axis_of, value_of
from orchestrator.ledger.facts import imported_of, long_note
from orchestrator.ledger.reader import LedgerReader, check_not_imported, is_imported
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.grid_map import GridMap
from orchestrator.maps.table import read_table
from orchestrator.render.text import Lines

HERE = Path("results")
TABLE = "lr,warmup,loss\n1e-3,0,3.0\n1e-3,100,3.1\n1e-2,0,nan\n1e-2,100,2.9\n1e-1,0,inf\n1e-1,100,9.5\n"
BY_LOSS = import_options(axis=["lr", "warmup"], outcome="loss", diverged_above=7)


def written(folder: Path, text: str, name: str = "table.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def brought_in(folder: Path, text: str, options: ImportOptions = BY_LOSS, name: str = "table.csv") -> LedgerReader:
    """The ledger of an import, without pictures."""
    record(
        folder / "made",
        "made",
        collect([written(folder, text, name)], options, HERE),
        replaces=True,
    )
    return LedgerReader(folder / "made" / LEDGER)


def outcomes(ledger: LedgerReader) -> dict[tuple, str]:
    return {(*trial.cell.values(), trial.seed): trial.outcome for trial in ledger.trials()}


def drained(answer: Lines) -> list[str]:
    return [str(line) for line in answer]


def test_a_final_loss_that_is_not_finite_or_above_the_threshold_has_diverged(tmp_path: Path) -> None:
    with brought_in(tmp_path, TABLE) as ledger:
        assert outcomes(ledger) == {
            (1e-3, 0, 0): "stable",
            (1e-3, 100, 0): "stable",
            (1e-2, 0, 0): "diverged",
            (1e-2, 100, 0): "stable",
            (1e-1, 0, 0): "diverged",
            (1e-1, 100, 0): "diverged",
        }
        name, text = named_rows(GridMap(read_table(ledger)))[0]
        assert name == "warmup=100"
        assert text.startswith("edge near lr=0.0316")


def test_what_a_table_does_not_tell_is_null_and_said(tmp_path: Path) -> None:
    with brought_in(tmp_path, TABLE) as ledger:
        for trial in ledger.trials():
            assert (trial.num_spikes, trial.onset_step, trial.steps_done, trial.initial_loss) == (None,) * 4
            assert trial.reason.endswith(")")
        assert "spiked and recovered counts as stable" in long_note(ledger.facts())
        assert "spikes are not seen" in cell_map(read_table(ledger)).note


@given(st.floats(), st.floats(allow_nan=False, allow_infinity=False))
def test_by_final_losses_a_run_is_stable_exactly_up_to_the_threshold(loss: float, limit: float) -> None:
    is_stable = math.isfinite(loss) and loss <= limit
    assert (by_final_loss("loss", loss, limit).outcome == "stable") == is_stable


def test_the_formats_of_a_table_give_the_same_results(tmp_path: Path) -> None:
    rows = [{"lr": 0.1, "loss": 1.5}, {"lr": 1.0, "loss": math.nan}, {"lr": 10.0, "loss": 2.5}]
    table, options = pd.DataFrame(rows), import_options(axis=["lr"], outcome="loss")
    found = []
    for name in ("t.csv", "t.tsv", "t.jsonl", "t.json", "t.parquet"):
        path = tmp_path / name
        match path.suffix:
            case ".csv" | ".tsv":
                table.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False, na_rep="nan")
            case ".parquet":
                # pandas itself would write the NaN as a missing value, which is another thing.
                pq.write_table(pa.Table.from_pylist(rows), path)
            case ".json":
                path.write_text(json.dumps(rows))
            case ".jsonl":
                path.write_text("\n".join(json.dumps(row) for row in rows))
        runs = collect([str(path)], options, HERE).runs
        found.append([(dict(run.settings.cell), run.result.outcome, run.result.final_loss) for run in runs])
    assert found[0] == [({"lr": 0.1}, "stable", 1.5), ({"lr": 1}, "diverged", None), ({"lr": 10}, "stable", 2.5)]
    assert all(one == found[0] for one in found)


def test_a_missing_value_of_a_parquet_file_is_empty_and_no_nan(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"lr": 1.0, "loss": 2.0}, {"lr": 2.0, "loss": None}]), tmp_path / "t.parquet")
    found = collect([str(tmp_path / "t.parquet")], import_options(axis=["lr"], outcome="loss"), HERE)
    assert (len(found.runs), len(found.left_out)) == (1, 1)
    assert "--map diverged=empty" in found.left_out[0].reason


def test_words_that_are_no_outcomes_are_asked_about_with_their_counts(tmp_path: Path) -> None:
    text = "lr,end\n1,stable\n2,crashed\n3,OOM\n4,crashed\n5,nan\n"
    with pytest.raises(InputError, match=r"crashed \(2 rows\), oom \(1 row\), nan \(1 row\)") as error:
        brought_in(tmp_path, text, import_options(axis=["lr"], outcome="end"))
    assert "--map diverged=crashed,oom,nan" in str(error.value)


def test_a_map_says_what_words_mean_and_which_rows_are_left_out(tmp_path: Path) -> None:
    text = "lr,end\n1,Stable\n2,crashed\n3,OOM\n4,\n"
    options = import_options(axis=["lr"], outcome="end", map=("diverged=crashed", "skip=OOM,empty"))
    with brought_in(tmp_path, text, options) as ledger:
        assert outcomes(ledger) == {(1, 0): "stable", (2, 0): "diverged"}
        imported = imported_of(ledger.facts())
    assert imported.num_left_out == 2
    assert imported.left_out[0].endswith("table.csv:4: end is oom (--map skip)")


@pytest.mark.parametrize("values", ["0,1", "True,False", "yes,no"])
def test_a_column_of_flags_is_neither_losses_nor_words(tmp_path: Path, values: str) -> None:
    a, b = values.split(",")
    with pytest.raises(InputError, match="labels that are not outcomes"):
        brought_in(tmp_path, f"lr,bad\n1,{a}\n2,{b}\n", import_options(axis=["lr"], outcome="bad"))


def test_zeros_and_ones_are_losses_where_the_user_says_so(tmp_path: Path) -> None:
    for options in (
        import_options(axis=["lr"], loss="end"),
        import_options(axis=["lr"], outcome="end", diverged_above=0.5),
    ):
        runs = collect([written(tmp_path, "lr,end\n1,0\n2,1\n")], options, HERE).runs
        assert [run.result.final_loss for run in runs] == [0, 1]


def test_rows_that_cannot_be_used_are_named_with_their_line_and_a_reason(tmp_path: Path) -> None:
    text = "# a comment\nlr,loss\n1,2.0\n,2.0\n2,\n3,2.0,7\ninf,2.0\n4,3.0\n"
    found = collect([written(tmp_path, text)], import_options(axis=["lr"], outcome="loss"), HERE)
    assert [run.settings.cell["lr"] for run in found.runs] == [1, 4]
    lines = {one.where.rpartition(":")[2]: one.reason for one in found.left_out}
    assert set(lines) == {"4", "5", "6", "7"}
    assert lines["4"] == "lr is empty"
    assert "--map diverged=empty" in lines["5"]
    assert lines["6"] == "has 3 cells, and the header has 2"


def test_equal_cells_are_seeds_and_a_seed_that_stands_twice_is_left_out(tmp_path: Path) -> None:
    text = "lr,seed,loss\n1,7,2.0\n1,8,2.1\n1,7,2.2\n"
    numbered = collect([written(tmp_path, text)], import_options(axis=["lr"], outcome="loss"), HERE)
    assert [run.seed for run in numbered.runs] == [0, 1, 2]
    named = collect(
        [written(tmp_path, text)], import_options(axis=["lr"], outcome="loss", seed="seed"), Path("results")
    )
    assert [run.seed for run in named.runs] == [7, 8]
    assert "has the cell and the seed 7" in named.left_out[0].reason


def test_settings_that_differ_within_a_cell_are_told_and_constant_ones_are_kept(tmp_path: Path) -> None:
    text = "lr,optimizer,width,loss\n" + "".join(f"{lr},{o},64,{lr + 1}\n" for lr in (1, 2) for o in ("adam", "lion"))
    found = collect([written(tmp_path, text)], import_options(axis=["lr"], outcome="loss"), HERE)
    assert "differ in optimizer" in found.notes[0]
    assert found.runs[0].settings.fixed == {"width": 64}
    chosen = collect(
        [written(tmp_path, text)],
        import_options(axis=["lr"], outcome="loss", where=["optimizer=lion"]),
        Path("results"),
    )
    assert len(chosen.runs) == 2


def test_importing_the_same_again_changes_nothing_and_other_results_are_refused(tmp_path: Path) -> None:
    same = collect([written(tmp_path, TABLE)], BY_LOSS, HERE)
    assert record(tmp_path / "made", "made", same, replaces=False)
    before = (tmp_path / "made" / LEDGER).read_bytes()
    assert not record(tmp_path / "made", "made", same, replaces=False)
    assert (tmp_path / "made" / LEDGER).read_bytes() == before
    other = collect([written(tmp_path, TABLE.replace("3.0", "3.5"))], BY_LOSS, HERE)
    with pytest.raises(InputError, match="--replace"):
        record(tmp_path / "made", "made", other, replaces=False)
    assert record(tmp_path / "made", "made", other, replaces=True)
    with LedgerReader(tmp_path / "made" / LEDGER) as ledger:
        assert ledger.trials()[0].final_loss == 3.5
        assert ledger.integrity() == []


def test_imported_results_are_never_trained_on(tmp_path: Path) -> None:
    brought_in(tmp_path, TABLE).close()
    assert is_imported(tmp_path / "made")
    with pytest.raises(InputError, match="trained elsewhere"):
        check_not_imported(tmp_path / "made")


def test_a_name_that_no_sweep_may_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--name"):
        drained(import_results([written(tmp_path, TABLE)], "../up", BY_LOSS, tmp_path))


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e-4, 2e-4, 4e-4], "log"),
        ([1e-4, 1e-3, 1e-2], "log"),
        ([0.9, 0.99, 0.999], "log1m"),
        ([100, 200, 300], "linear"),
        ([0, 100, 1000], "values"),
        (["adam", "lion"], "values"),
    ],
)
def test_the_scale_of_an_axis_is_found_from_its_values(values: list, scale: str) -> None:
    assert axis_of("a", values, None, is_scattered=False).scale == scale


@given(st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_means_itself_as_a_value_and_as_a_text(number: float) -> None:
    assert value_of(number) == value_of(repr(number)) == number


def test_a_cell_without_a_text_is_empty_and_none_is_a_value() -> None:
    assert [value_of(raw) for raw in ("", "  ", None, math.nan)] == [EMPTY] * 4
    assert [value_of(raw) for raw in ("none", "True", "x")] == [None, True, "x"]


STEPS = 120
LONG = import_options(axis=["lr"], step="step", loss="loss", run=("run_id",))


def losses(lr: float, seed: int) -> np.ndarray:
    """A calm run, one that spikes at 0.1, one that diverges at 1."""
    step_N = np.arange(STEPS)
    loss_N = 1 + np.exp(-step_N / 20) + np.random.default_rng(seed).normal(0, 0.01, STEPS)
    if lr == 0.1:
        loss_N[60:66] += 5
    if lr == 1:
        loss_N[80:] = math.nan
    return loss_N


def runs() -> list[tuple[str, float, int, np.ndarray]]:
    return [(f"r{lr}_{seed}", lr, seed, losses(lr, seed)) for lr in (0.01, 0.1, 1) for seed in (0, 1)]


@pytest.fixture
def table(tmp_path: Path) -> str:
    lines = [f"{run},{lr},{t},{loss}" for run, lr, _, loss_N in runs() for t, loss in enumerate(loss_N)]
    (tmp_path / "curves.csv").write_text("\n".join(["run_id,lr,step,loss", *lines]) + "\n")
    return str(tmp_path / "curves.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for _, lr, seed, loss_N in runs():
        own = tmp_path / "runs" / f"lr{lr}_seed{seed}"
        own.mkdir(parents=True)
        (own / "config.json").write_text(json.dumps({"optim": {"lr": lr}, "seed": seed}))
        rows = [f"{t},{loss}" for t, loss in enumerate(loss_N)]
        (own / "metrics.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    return tmp_path / "runs"


def results(source: str, options: ImportOptions) -> list[tuple[float, int, str, tuple]]:
    found = collect([source], options, HERE).runs
    return [(run.settings.cell["lr"], run.seed, run.result.outcome, run.result.episodes) for run in found]


def test_spikes_are_seen_and_a_table_and_a_folder_give_the_same(table: str, folder: Path) -> None:
    found = results(table, LONG)
    assert [outcome for _, _, outcome, _ in found] == ["stable"] * 2 + ["spiked"] * 2 + ["diverged"] * 2
    assert results(str(folder), import_options(axis=["lr"], seed="seed")) == found
    named = import_options(axis=["lr"], seed="seed", from_path=r"lr(?P<lr>[^_/]+)_seed(?P<seed>\d+)")
    assert results(str(folder), named) == found


def test_the_chart_of_a_tracker_with_a_column_for_each_run_gives_the_same(table: str, tmp_path: Path) -> None:
    chart = tmp_path / "chart.csv"
    names = [f"lr={lr}, seed={seed}" for _, lr, seed, _ in runs()]
    columns = [f"{name} - train/loss{end}" for name in names for end in ("", "__MIN", "__MAX")]
    rows = np.stack([loss_N for *_, loss_N in runs()], axis=1).repeat(3, axis=1)
    lines = [",".join([str(t), *(str(loss) for loss in row)]) for t, row in enumerate(rows)]
    chart.write_text("\n".join([",".join(["Step", *(f'"{name}"' for name in columns)]), *lines]) + "\n")
    wide = import_options(axis=["lr"], step="Step", loss="train/loss")
    assert results(str(chart), wide) == results(table, LONG)
    named = import_options(
        axis=["lr"], step="Step", loss="train/loss", from_path=r"lr=(?P<lr>[^,]+), seed=(?P<seed>\d+)"
    )
    assert results(str(chart), named) == results(table, LONG)


def test_a_chart_whose_runs_name_no_setting_says_how_to_name_them(tmp_path: Path) -> None:
    chart = tmp_path / "chart.csv"
    chart.write_text("Step,proud-sun-7 - loss\n0,2.0\n1,1.9\n")
    with pytest.raises(InputError, match=r"proud-sun-7 - loss: the name of its run names no setting .see --from-path"):
        collect([str(chart)], import_options(axis=["lr"], step="Step", loss="loss"), HERE)
    with pytest.raises(InputError, match=r"--step: '_step' is not a column"):
        collect([str(chart)], import_options(axis=["lr"], step="_step", loss="loss"), HERE)


def test_the_rows_of_a_long_table_may_stand_in_any_order(table: str) -> None:
    before = results(table, LONG)
    head, *rows = Path(table).read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(rows))
    Path(table).write_text("\n".join([head, *(rows[i] for i in order)]) + "\n")
    assert sorted(outcome for _, _, outcome, _ in results(table, LONG)) == sorted(outcome for *_, outcome, _ in before)


def test_curves_are_stored_as_they_were(table: str, tmp_path: Path) -> None:
    record(tmp_path / "made", "made", collect([table], LONG, HERE), replaces=False)
    with LedgerReader(tmp_path / "made" / LEDGER) as ledger:
        for trial, (_, _, _, loss_N) in zip(ledger.trials(), runs(), strict=True):
            trace = ledger.trace(trial.trial_id)
            np.testing.assert_array_equal(trace["step"], np.arange(STEPS))
            np.testing.assert_allclose(trace["loss"], loss_N)
            assert trial.steps_done == STEPS
            assert trial.num_spikes is not None


def test_rows_of_several_runs_that_nothing_tells_apart_are_refused(table: str) -> None:
    with pytest.raises(InputError, match=r"curves\.csv:\d+: step: .*\n.*--run NAME"):
        collect([table], import_options(axis=["lr"], step="step", loss="loss"), HERE)


def test_a_run_whose_axis_changes_is_left_out_and_named(table: str) -> None:
    text = Path(table).read_text().replace("r0.01_0,0.01,7,", "r0.01_0,0.02,7,")
    Path(table).write_text(text)
    found = collect([table], LONG, HERE)
    assert len(found.runs) == 5
    assert [one.reason for one in found.left_out] == ["lr changes within the run"]


def test_a_run_with_several_logs_is_left_out_until_one_is_named(folder: Path) -> None:
    one = folder / "lr1_seed0"
    (one / "again.csv").write_text((one / "metrics.csv").read_text())
    options = import_options(axis=["lr"], seed="seed")
    found = collect([str(folder)], options, HERE)
    assert len(found.runs) == 5
    assert "log: again.csv" in found.left_out[0].reason
    assert (
        len(collect([str(folder)], import_options(axis=["lr"], seed="seed", log="metrics.csv"), Path("results")).runs)
        == 6
    )


def test_the_settings_of_weights_and_biases_stand_under_value(tmp_path: Path) -> None:
    (tmp_path / "run" / "files").mkdir(parents=True)
    (tmp_path / "run" / "files" / "config.yaml").write_text("wandb_version: 1\nlr:\n  desc: null\n  value: 0.1\n")
    (tmp_path / "run" / "log.csv").write_text("step,loss\n" + "".join(f"{t},{2 - t / 100}\n" for t in range(60)))
    (run,) = collect([str(tmp_path)], import_options(axis=["lr"]), HERE).runs
    assert run.settings.cell == {"lr": 0.1}


def test_options_of_other_sources_are_refused(table: str, folder: Path) -> None:
    for source, options in (
        (table, import_options(axis=["lr"], step="step", loss="loss", outcome="loss")),
        (table, import_options(axis=["lr"], outcome="loss", from_path="(?P<lr>.*)")),
        (str(folder), import_options(axis=["lr"], diverged_above=3)),
    ):
        with pytest.raises(InputError, match="leave it out"):
            collect([source], options, HERE)


def test_the_digest_of_an_import_is_that_of_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "lr,loss\n0.1,2.5\n1,nan\n")
    collected = collect(["table.csv"], import_options(axis=["lr"], outcome="loss"), HERE)
    record(tmp_path / "sweep", "sweep", collected, replaces=False)
    with LedgerReader(tmp_path / "sweep" / LEDGER) as ledger:
        imported = imported_of(ledger.facts())
    assert imported is not None
    assert imported.digest == "926996acae79245ecf52da03142a93fed3368808292e2dd5d370ba5f6eb1a567"


@pytest.mark.parametrize(("labels", "outcome"), [({}, "diverged"), ({"outcome": "state", "loss": "loss"}, "stable")])
def test_a_label_of_the_source_stands_where_first_losses_look_like_a_blow_up(
    tmp_path: Path, labels: dict[str, str], outcome: str
) -> None:
    text = "lr,state,first,loss\n1,stable,15,9\n10,stable,15.2,6\n100,stable,14.8,6.5\n1000,stable,60,49\n"
    options = import_options(axis=["lr"], initial_loss="first", **(labels or {"outcome": "loss"}))
    with brought_in(tmp_path, text, options) as ledger:
        assert [trial.outcome for trial in read_table(ledger).trials] == ["stable"] * 3 + [outcome]


def test_how_a_run_ended_and_where_it_ran_is_not_one_of_its_settings(tmp_path: Path) -> None:
    ends = "finished,done,60,0,node1,64\n"
    text = f"lr,loss,Status,state,runtime,exit_code,hostname,width\n0.1,1.5,{ends}0.2,1.4,{ends}"
    found = collect([written(tmp_path, text)], import_options(axis=["lr"], outcome="loss"), HERE)
    assert found.runs[0].settings.fixed == {"width": 64}
