"""The report as its reader has it: opened from disk in a browser."""

import itertools
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sweep_cases import ledger_at, map_ledger, record, sweep_of

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.maps.cell_map import map_of_trials
from orchestrator.maps.table import read_table
from orchestrator.pages.report import REPORT, export_all
from orchestrator.render.labels import fraction_text

HOSTILE = "</script><img src=x onerror=alert(1)>"
THREE_AXES = """
seeds: [0, 1]
axes:
  lr: {values: [0.1, 1.0, 3.0]}
  beta1: {values: [0.0, 0.5]}
  curvature: {values: [0.5, 1.0, 2.0]}
fixed: {optimizer: sgd}
tracking: {enabled: false}
"""


class Watched:
    """A page with everything that it complains of and asks for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.absolute().as_uri())


@pytest.fixture
def report(page: Page, train, tmp_path: Path):
    """The report of a real sweep over three axes, some of it beyond the edge."""
    sweep = sweep_of(THREE_AXES, "name: three\nobjective: quadratic\nsteps: 60\n")
    train(sweep)
    folder = tmp_path / "three"
    export_all(folder)
    watched = Watched(page, folder / REPORT)
    yield watched
    assert watched.complaints == []
    assert watched.requests == [(folder / REPORT).absolute().as_uri()], "nothing is loaded"


def cells(page: Page):
    return page.locator("#map button")


def test_a_cell_shows_its_seeds_and_their_curves_with_episodes(report: Watched) -> None:
    page = report.page
    expect(cells(page)).to_have_count(6)
    page.get_by_role("button", name=re.compile(r"^lr=3 beta1=0 .*diverged")).click()
    expect(page.locator("#cell h3")).to_contain_text("lr=3 beta1=0")
    expect(page.locator("#cell tbody tr")).to_have_count(2)
    expect(page.locator("#cell figure svg")).to_have_count(2)
    expect(page.locator("#cell path.curve")).to_have_count(4)
    expect(page.locator("#cell line.verdict").first).to_be_attached()
    expect(page.locator('#map [aria-pressed="true"]')).to_have_count(1)


def test_axes_metric_and_slice_can_be_chosen(report: Watched) -> None:
    page = report.page
    page.get_by_label("to the right").select_option("curvature")
    expect(page.get_by_label("upwards")).to_have_value("1")
    expect(page.locator("#slice-0")).to_be_visible()
    page.locator("#slice-0").select_option("0.1")
    expect(cells(page)).to_have_count(6)
    expect(page.locator("#map button[aria-label*='2 stable']")).to_have_count(6)
    page.locator("#slice-0").select_option("worst of all")
    # At lr = 3 the worst is stable where lr * curvature < 2 (1 + beta1) / (1 - beta1): three cells.
    expect(page.locator("#map button[aria-label*='2 stable']")).to_have_count(3)
    page.get_by_label("show").select_option("final_loss")
    expect(page.locator("#map-title")).to_contain_text("median final loss")
    expect(cells(page).first).to_have_attribute("aria-label", re.compile("median final loss"))
    page.get_by_label("upwards").select_option("curvature")
    expect(page.get_by_label("to the right")).to_have_value("1")


def test_the_map_is_walked_with_the_keyboard_alone(report: Watched) -> None:
    page = report.page
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('#map button')"):
            break
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert first.startswith("lr=0.1 beta1=0.5")
    assert second.startswith("lr=1 beta1=0 ")
    page.keyboard.press("Enter")
    expect(page.locator("#cell h3")).to_contain_text("lr=1 beta1=0 ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_dark(report: Watched, scheme: str) -> None:
    page = report.page
    page.emulate_media(color_scheme=scheme)
    ink, paper = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) / 765 for colour in (ink, paper)]
    assert abs(light[0] - light[1]) > 0.7
    assert (light[1] > 0.5) == (scheme == "light")


def test_names_and_reasons_from_outside_stay_text(page: Page, tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1, 0.2]}}\n"
    sweep = sweep_of(body)
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "errored"])
        ledger.give_up([sweep.trials[1].trial_id], HOSTILE)
    (tmp_path / FROZEN_SWEEP).write_text(f"# {HOSTILE}\n{sweep.text}")
    export_all(tmp_path)
    watched = Watched(page, tmp_path / REPORT)
    cells(page).nth(1).click()
    expect(page.locator("#cell tbody")).to_contain_text(HOSTILE)
    assert watched.complaints == []
    assert len(watched.requests) == 1


def test_a_sampled_sweep_is_a_cloud_of_points_to_choose_from(page: Page, scattered: Path) -> None:
    watched = Watched(page, scattered)
    expect(page.locator("#map circle")).to_have_count(12)
    page.locator("#map circle").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cell path.curve")).to_have_count(1)
    assert watched.complaints == []


def test_the_page_knows_of_a_cell_what_the_map_knows(page: Page, tmp_path: Path) -> None:
    """Every combination of what three seeds can do, as cells of their own and as the worst, median and best of two."""
    labels = ("stable", "spiked", "diverged", "stalled", "errored", "planned")
    seeds = list(itertools.combinations_with_replacement(labels, 3))
    num = len(seeds)
    sweep = sweep_of(
        f"seeds: [0, 1, 2]\naxes: {{lr: {{linear: [1, {num}], num: {num}}}, beta1: {{values: [0.5, 0.9]}},"
        " eps: {values: [1.0e-8]}}\n"  # with two axes the page never reduces
    )
    cells = dict.fromkeys(tuple(trial.cell.values()) for trial in sweep.trials)
    of_cell = {cell: seeds[int(cell[0] * (7 if cell[1] == 0.9 else 1)) % num] for cell in cells}
    with ledger_at(tmp_path) as ledger:
        map_ledger(ledger, sweep, [of_cell[tuple(trial.cell.values())][trial.seed] for trial in sweep.trials])
        axes = {axis.name: axis for axis in read_table(ledger).axes}
        maps = [
            map_of_trials(ledger.trials(), axes, "lr", y, reduce=how)
            for y, how in (("beta1", "worst"), (None, "worst"), (None, "median"), (None, "best"))
        ]
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    export_all(tmp_path)
    watched = Watched(page, tmp_path / REPORT)
    for stability, y, how in zip(maps, (1, -1, -1, -1), ("worst", "worst", "median", "best"), strict=True):
        found = page.evaluate(
            """([y, how]) => {
                Object.assign(choice, { y, panel: 0, slices: data.axes.map(() => how) });
                return [...mapCells()].map(([key, c]) => [key, cells.state[c], panel().texts[c]]);
            }""",
            [y, how],
        )
        ys = stability.y_values
        expected = [
            [f"{stability.x_values.index(cell.x)},{ys.index(cell.y)}", cell.state, fraction_text(cell)]
            for cell in stability.cells.values()
        ]
        assert sorted(found) == sorted(expected)
    assert watched.complaints == []
