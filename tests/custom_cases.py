"""Small training scripts, and sweeps over them; they import nothing, so that a trial takes a tenth of a second."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

from orchestrator.base.packs import Pack, Report
from orchestrator.driver.runner import run_sweep
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.spec import Sweep, build_sweep, load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.run import run_pack

# Gradient descent on x^2 / 2, as somebody's script: it diverges above lr = 2, and knows nothing of sweep.
TRAIN = """
import sys
lr, steps, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
x = 2.0 + 0.1 * seed
for step in range(steps):
    print(f"step {step} | loss {x * x / 2 + 1:.9g} | norm {abs(x):.9g}")
    x -= lr * x
"""
SWEEP = """
name: mine
objective:
  command: [python, train.py, "{lr}", "{steps}", "{seed}"]
steps: 60
seeds: [0, 1]
axes: {lr: {values: [0.1, 1.0, 3.0]}}
tracking: {enabled: false}
"""


def sweep_in(folder: Path, script: str = TRAIN, text: str = SWEEP, **options) -> Sweep:
    """A sweep over ``script`` in ``folder``."""
    (folder / "train.py").write_text(script)
    (folder / "mine.yaml").write_text(text)
    return load_sweep(folder / "mine.yaml", **options)


def sweep_of_text(text: str) -> Sweep:
    """A sweep without a folder."""
    return build_sweep(parse_document(text, "mine.yaml"))


def only_pack(sweep: Sweep, folder: Path) -> Pack:
    """The pack of the sweep's first trial, ready to run."""
    from dataclasses import replace

    from orchestrator.driver.packing import make_packs

    pack = make_packs(sweep, sweep.trials[:1], 1)[0]
    return replace(pack, launch=replace(pack.launch, trials_folder=str(folder / "trials")))


def reports_of(sweep: Sweep, folder: Path, wants_pause: Callable[[], bool] = lambda: False) -> list[Report]:
    """All reports of the sweep's first trial."""
    return list(run_pack(only_pack(sweep, folder), wants_pause))


def trained(sweep: Sweep, folder: Path) -> list[SimpleNamespace]:
    """Rows of the ledger after the sweep was run, in this process, each with its ``curve``."""
    from orchestrator.executors.inline import InlineExecutor

    run_sweep(sweep, folder / "results" / sweep.name, InlineExecutor)
    with LedgerReader(folder / "results" / sweep.name / "ledger.db") as ledger:
        return [SimpleNamespace(**asdict(row), curve=ledger.trace(row.trial_id)) for row in ledger.trials()]
