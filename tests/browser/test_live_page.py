"""The page of a sweep that trains, in a real browser."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from sweep_cases import finished, ledger_at, map_ledger, sweep_of

from orchestrator.base.files import FROZEN_SWEEP, sweep_lock
from orchestrator.base.packs import Report
from orchestrator.driver.facts import driver_facts
from orchestrator.driver.packing import make_packs

Served = Callable[[Path, str], AbstractContextManager[str]]
SWEEP = Path(sys.executable).with_name("sweep")
GRID = "seeds: [0, 1]\naxes: {lr: {values: [0.1, 0.2, 0.4, 0.8]}, beta1: {values: [0.0, 0.5, 0.9]}}\n"
SLOW = """
name: slow
objective: quadratic
steps: 200000
axes: {lr: {values: [0.1, 0.2]}, beta1: {values: [0.0, 0.5]}}
resources: {pack: 1}
tracking: {enabled: false}
"""


def keep(page: Page, name: str) -> None:
    """A picture of the page goes to SCREENSHOTS, where that is set."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def curve(num: int, rise: float = 0.0) -> dict[str, np.ndarray]:
    steps = np.arange(num)
    losses = 1 + 2 * np.exp(-steps / 8) + rise * np.exp(steps)
    return {"step": steps, "loss": losses, "grad_norm": losses / 3}


class Driver:
    """Trains the trials of a sweep when told to."""

    def __init__(self, folder: Path, ledger) -> None:
        self.sweep, self.ledger = sweep_of(GRID), ledger
        (folder / FROZEN_SWEEP).write_text(self.sweep.text)
        ledger.plan("quadratic", self.sweep.trials, driver_facts(self.sweep))

    def start(self, cell: int) -> tuple[str, list[str]]:
        (pack,) = make_packs(self.sweep, self.sweep.trials[2 * cell : 2 * cell + 2], 1)
        self.ledger.start_pack(pack, "test")
        self.ledger.record(Report(pack.pack_id, 20, 0, 2.0, dict.fromkeys(pack.trial_ids, curve(10))))
        return pack.pack_id, list(pack.trial_ids)

    def train(self, cell: int, *outcomes: str) -> None:
        pack_id, trial_ids = self.start(cell)
        rises = [1e-3 if outcome == "diverged" else 0.0 for outcome in outcomes]
        curves = {identity: curve(20, rise) for identity, rise in zip(trial_ids, rises, strict=True)}
        done = tuple(finished(*each) for each in zip(trial_ids, outcomes, strict=True))
        self.ledger.record(Report(pack_id, 40, 0, 4.0, curves, done, is_from_start=True))


def test_the_map_fills_while_trials_run_and_what_was_chosen_stays(
    page: Page, served: Served, tmp_path: Path, complaints: list[str]
) -> None:
    (tmp_path / "case").mkdir()
    with ledger_at(tmp_path / "case") as ledger, sweep_lock(tmp_path / "case"), served(tmp_path, "case") as address:
        driver = Driver(tmp_path / "case", ledger)
        driver.train(0, "stable", "stable")
        page.goto(address)
        page.get_by_role("button", name=re.compile(r"^lr=0.1 beta1=0:")).click()
        expect(page.locator("#cell path.curve")).to_have_count(4)
        driver.start(1)
        expect(page.locator("#summary")).to_contain_text("2 train at")
        expect(page.locator("#summary")).to_contain_text("lr=0.1 beta1=0.5 seed=0")
        driver.train(11, "diverged", "stable")
        expect(page.get_by_role("button", name=re.compile(r"^lr=0.8 beta1=0.9: 1 diverged"))).to_be_visible()
        expect(page.locator("#cell h3")).to_have_text("lr=0.1 beta1=0")
        expect(page.locator('#map [aria-pressed="true"]')).to_have_count(1)
        assert page.evaluate("document.activeElement.dataset.cell") == "lr=0.1 beta1=0"
        page.get_by_role("button", name=re.compile(r"^lr=0.8 beta1=0.9:")).click(modifiers=["Shift"])
        expect(page.locator("#cell h3")).to_have_text("2 cells compared")
        expect(page.locator("#cell path.curve")).to_have_count(8)
        keep(page, "live")
    assert complaints == []


def test_the_address_brings_a_view_back(page: Page, served: Served, tmp_path: Path, complaints: list[str]) -> None:
    (tmp_path / "case").mkdir()
    with ledger_at(tmp_path / "case") as ledger, served(tmp_path, "case") as address:
        driver = Driver(tmp_path / "case", ledger)
        for cell in range(12):
            driver.train(cell, "stable", "diverged" if cell > 8 else "stable")
        page.goto(address)
        page.get_by_label("to the right").select_option("beta1")
        page.get_by_label("show").select_option("final_loss")
        page.get_by_role("button", name=re.compile(r"^lr=0.4 beta1=0.9:")).click()
        shared = page.url
        page.goto("about:blank")
        page.goto(shared)
        expect(page.get_by_label("to the right")).to_have_value("1")
        expect(page.get_by_label("show")).to_have_value("final_loss")
        expect(page.locator("#cell h3")).to_have_text("lr=0.4 beta1=0.9")
        page.goto(f"{address}#x=nothing&show=<b>&cell=none")
        expect(page.get_by_label("to the right")).to_have_value("0")
    assert complaints == []


def test_curves_are_read_switched_off_and_not_flattened_by_a_run_that_diverged(
    page: Page, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "case").mkdir()
    with ledger_at(tmp_path / "case") as ledger, served(tmp_path, "case") as address:
        Driver(tmp_path / "case", ledger).train(0, "stable", "diverged")
        page.goto(address)
        page.get_by_role("button", name=re.compile(r"^lr=0.1 beta1=0:")).click()
        figure = page.locator("#cell figure").first
        expect(figure.locator("svg")).to_have_attribute("aria-label", re.compile(r"from 1\.19 to 3;"))
        figure.locator("svg").hover()
        expect(figure.locator(".readout")).to_have_text(re.compile(r"step [89]; seed 0: 1\.\d+, seed 1: \d"))
        figure.get_by_label("log").check()
        expect(page.locator("#cell figure").first.get_by_label("log")).to_be_checked()
        page.get_by_role("button", name="curves of seed 1").click()
        expect(page.locator("#cell path.curve")).to_have_count(2)
        expect(page.locator("#cell td.trial_id")).to_have_count(2)


@pytest.mark.parametrize("width", [400, 800, 1280, 2560])
def test_the_page_fits_its_window_and_puts_the_curves_beside_the_map_where_there_is_room(
    page: Page, served: Served, tmp_path: Path, width: int
) -> None:
    (tmp_path / "case").mkdir()
    page.set_viewport_size({"width": width, "height": 900})
    with ledger_at(tmp_path / "case") as ledger, served(tmp_path, "case") as address:
        driver = Driver(tmp_path / "case", ledger)
        for cell in range(12):
            driver.train(cell, "stable", "diverged" if cell > 8 else "stable")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(address)
            page.get_by_role("button", name=re.compile(r"^lr=0.4 beta1=0.9:")).click()
            expect(page.locator("#cell figure svg")).to_have_count(2)
            keep(page, f"page_{width}_{scheme}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    map_box, cell_box = (page.locator(each).bounding_box() for each in ("#map", "#cell"))
    assert (cell_box["y"] < map_box["y"] + map_box["height"]) == (width >= 1100)


def test_ten_thousand_cells_are_drawn(page: Page, served: Served, tmp_path: Path, complaints: list[str]) -> None:
    (tmp_path / "case").mkdir()
    sweep = sweep_of("axes: {lr: {log: [1e-3, 1], num: 100}, beta1: {linear: [0, 0.9], num: 100}}\n")
    (tmp_path / "case" / FROZEN_SWEEP).write_text(sweep.text)
    with ledger_at(tmp_path / "case") as ledger:
        labels = ["diverged" if i > 7000 else "stable" for i in range(len(sweep.trials))]
        map_ledger(ledger, sweep, labels)
    with served(tmp_path, "case") as address:
        page.goto(address, timeout=120_000)
        expect(page.locator("#map button")).to_have_count(10_000)
        keep(page, "ten_thousand")
    assert complaints == []


def test_a_run_serves_its_page_and_ends_it(page: Page, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    command = [SWEEP, "run", "slow.yaml", "--executor", "inline", "--page"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        address = next(line.split()[-1] for line in run.stdout if line.startswith("page at "))
        page.goto(address)
        expect(page.locator("#map button")).to_have_count(4, timeout=30_000)
        expect(page.locator("#summary")).to_contain_text("member-steps/s", timeout=30_000)
        keep(page, "run")
    finally:
        run.terminate()
        run.communicate(timeout=60)
    expect(page.locator("body.ended")).to_be_attached(timeout=30_000)
    expect(page.locator("#map button")).to_have_count(4)
