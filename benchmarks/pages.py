"""The time of a large sweep's mirror and report: 1,000 trials of 1,000 steps.

    python benchmarks/pages.py --trials 1000 --mirror-trials 20

The mirror writes every step of eight metrics to a fresh MLflow store on SQLite; its rate is of one core's time,
beside the rate of log_metric, one call a point, which is what a training loop usually does. The report is built,
its size printed, and with playwright and a Chromium there it is opened: from the start of navigation to the map.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from orchestrator.base.files import FROZEN_SWEEP, LEDGER
from orchestrator.base.packs import Completed, Report
from orchestrator.base.trial_result import MemberResult
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.mirrors.mirror import Mirror
from orchestrator.pages.report import REPORT, export_all
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

_STEPS = 1000
_METRICS = ("loss", "grad_norm", "update_norm", "lr", "a", "b", "c", "d")
_SINGLE_POINTS = 500


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="trials of the report's sweep")
    parser.add_argument("--mirror-trials", type=int, default=20, help="trials written to MLflow")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sweep-pages-") as name:
        measure_mirror(Path(name) / "mirror" / "case", arguments.mirror_trials)
        measure_report(Path(name) / "report" / "case", arguments.trials)


def made_sweep(folder: Path, num_trials: int) -> Sweep:
    """A finished sweep of about ``num_trials`` trials with random curves, without training."""
    num = max(1, round(num_trials**0.5))
    text = (
        f"name: case\nobjective: quadratic\nsteps: {_STEPS}\n"
        f"axes: {{lr: {{log: [1e-4, 1], num: {num}}}, eps: {{log: [1e-12, 1e-2], num: {-(-num_trials // num)}}}}}\n"
    )
    sweep = build_sweep(parse_document(text, "case.yaml"))
    rng = np.random.default_rng(0)
    with LedgerWriter(folder / LEDGER) as ledger:
        ledger.plan(sweep.objective.name, sweep.trials, driver_facts(sweep))
        for trial in sweep.trials:
            (pack,) = make_packs(sweep, [trial], 1)
            ledger.start_pack(pack, "benchmark")
            curve = {"step": np.arange(_STEPS), **{name: rng.random(_STEPS).astype(np.float32) for name in _METRICS}}
            done = MemberResult(
                trial_id=trial.trial_id, outcome="stable", num_spikes=0, steps_done=_STEPS, initial_loss=1.0,
                best_loss=0.5, final_loss=0.5, validation_loss=0.5, reason="made up",
            )  # fmt: skip
            ledger.record(Report(pack.pack_id, _STEPS, 0, 1.0, {trial.trial_id: curve}, (done,), ending=Completed()))
    (folder / FROZEN_SWEEP).write_text(sweep.text)
    return sweep


def measure_mirror(folder: Path, num_trials: int) -> None:
    """Points per second of one core, of the mirror and with one call per point, into the same store."""
    sweep = made_sweep(folder, num_trials)
    mirror = Mirror(folder, TrackingConfig(every=1))
    ids = [trial.trial_id for trial in sweep.trials]
    with LedgerReader(folder / LEDGER) as ledger:
        mirror.mirror_trials(ledger, ids[:1])
        began, began_wall = time.process_time(), time.perf_counter()
        mirror.mirror_trials(ledger, ids[1:])
        seconds, wall = time.process_time() - began, time.perf_counter() - began_wall
    num_points = (len(ids) - 1) * _STEPS * len(_METRICS)
    print(f"mirror: {num_points / seconds:,.0f} points/s of one core ({num_points:,} points in {wall:.1f} s)")

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=mirror.uri)
    run_id = client.create_run(client.create_experiment("single")).info.run_id
    began = time.process_time()
    for step in range(_SINGLE_POINTS):
        client.log_metric(run_id, "loss", 1.0, step=step)
    print(f"log_metric: {_SINGLE_POINTS / (time.process_time() - began):,.0f} points/s of one core")


def measure_report(folder: Path, num_trials: int) -> None:
    """Seconds to write the exports, size of the page, seconds until its map is drawn."""
    sweep = made_sweep(folder, num_trials)
    began = time.perf_counter()
    export_all(folder)
    megabytes = (folder / REPORT).stat().st_size / 1e6
    print(
        f"report: {len(sweep.trials):,} trials of {_STEPS:,} steps, {time.perf_counter() - began:.1f} s to write, ",
        end="",
    )
    print(f"{megabytes:.1f} MB")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("drawn: not measured; it needs playwright and a Chromium")
        return
    with sync_playwright() as playwright:
        window = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = window.new_page()
        began = time.perf_counter()
        page.goto((folder / REPORT).absolute().as_uri())
        page.wait_for_selector("#map button")
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        drawn = time.perf_counter() - began
        began = time.perf_counter()
        page.locator("#map button").first.click()
        page.wait_for_selector("#cell path.curve")
        print(
            f"drawn: {drawn:.2f} s after opening it; a cell's curves {time.perf_counter() - began:.2f} s after a click"
        )
        window.close()


if __name__ == "__main__":
    main()
