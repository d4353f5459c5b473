"""A new number of a trial is one field, from which every table, file and tracker has it."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import record, sweep_of

from orchestrator.ledger.writer import LedgerWriter

FIELD = """    num_kinks: int | None = column(
        "times that the loss changed its slope",
        title="median number of kinks",
        is_tracked=True,
        since=7,
        of_losses=True,
    )
"""
SWEEP = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2]}}\n"
# The product with one more field, and its computation: an outcome has three kinks.
SCRIPT = f"""
import json, sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

import orchestrator.base

path, name = Path(orchestrator.base.__path__[0]) / "trial_result.py", "orchestrator.base.trial_result"
module = sys.modules[name] = module_from_spec(ModuleSpec(name, None, origin=str(path)))
exec(compile(path.read_text().replace("    num_spikes:", {FIELD!r} + "    num_spikes:", 1), path, "exec"), vars(module))

import numpy as np

import orchestrator.detection.outcomes as outcomes
computed = outcomes.member_result
outcomes.member_result = lambda *args, **options: replace(computed(*args, **options), num_kinks=3)

from sweep_cases import finished, sweep_of

from orchestrator.base.columns import METRICS, TRIAL_COLUMNS, markdown_table
from orchestrator.base.packs import Report
from orchestrator.detection.config import StoppingConfig
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import replay_logs
from orchestrator.maps.cell_map import cell_map
from orchestrator.maps.table import read_table
from orchestrator.maps.tables import as_csv, map_table, trial_table
from orchestrator.mirrors.records import log_columns, trial_record

old, sweep = Path(sys.argv[1]), sweep_of({SWEEP!r})
with LedgerReader(old) as ledger:
    read = [trial.num_kinks for trial in ledger.trials()]
with LedgerWriter(old) as ledger:
    last = ledger.trials()[-1]
    (pack,) = make_packs(sweep, [sweep.trials[-1]], 1)
    ledger.start_pack(pack, "test")
    curve = {{"step": np.arange(20), "loss": np.linspace(2, 1, 20)}}
    result = finished(last.trial_id, "stable", num_kinks=7)
    ledger.record(Report(pack.pack_id, 20, 0, 1.0, {{last.trial_id: curve}}, (result,)))
    row = ledger.trial(last.trial_id)
    logs = log_columns(sweep.axes)
    shown = {{
        "version": ledger.version,
        "columns": [line[1] for line in ledger._db.execute("PRAGMA table_info(trials)")],
        "read": read,
        "round trip": [trial.num_kinks for trial in ledger.trials()],
        "table": list(trial_table(read_table(ledger))["num_kinks"])[-1],
        "csv": as_csv(trial_table(read_table(ledger))),
        "map": list(map_table(cell_map(read_table(ledger)))["median_num_kinks"])[-1],
        "metric": METRICS["num_kinks"],
        "docs": markdown_table(TRIAL_COLUMNS),
        "tracker": [list(p) for p in trial_record(ledger, row, "auto", logs, "case").points if p.name == "num_kinks"],
    }}
log = Log("run.csv", Columns("step", "loss"), np.arange(50), np.linspace(2, 1, 50), None)
shown["json"] = replay_logs([log], StoppingConfig())[0].summary()["num_kinks"]
print(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What the product with a new field shows of a ledger that knows nothing of it, and of one more result."""
    path = tmp_path_factory.mktemp("old") / "ledger.db"
    with LedgerWriter(path) as ledger:
        record(ledger, sweep_of(SWEEP), ["stable", "spiked", "diverged", "planned"])
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.append({tests!r})\n{SCRIPT}", str(path)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_an_older_ledger_is_upgraded_and_its_trials_have_no_such_number(shown: dict) -> None:
    assert shown["version"] == 7
    assert shown["columns"][-2:] == ["ema_loss", "num_kinks"], "SQLite adds columns at the end"
    assert shown["read"] == [None] * 4


def test_the_ledger_keeps_the_number(shown: dict) -> None:
    assert shown["round trip"] == [None, None, None, 7]


def test_tables_and_maps_have_the_number(shown: dict) -> None:
    assert shown["table"] == 7
    assert [row["num_kinks"] for row in csv.DictReader(io.StringIO(shown["csv"]))] == ["", "", "", "7.0"]
    assert shown["map"] == 7
    assert shown["metric"] == "median number of kinks"


def test_docs_json_and_trackers_have_the_number(shown: dict) -> None:
    assert "| `num_kinks`* | times that the loss changed its slope |" in shown["docs"].splitlines()
    assert shown["json"] == 3
    assert shown["tracker"] == [["num_kinks", 7.0, 0]]
