"""MLflow as its users use it: the real server on a finished sweep, in a real browser."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from local_server import free_port, wait_for
from playwright.sync_api import Page, expect
from sweep_cases import QUADRATIC

import orchestrator
from orchestrator.api.upkeep import sync
from orchestrator.render.text import show

SWEEP = Path(sys.executable).with_name("sweep")
FIT = """
name: fit
objective: function_fit
steps: 150
seeds: [0]
axes:
  lr: {log: [1e-2, 3], num: 7}
  beta2: {log1m: [0.9, 0.99], num: 2}
fixed: {warmup: 10}
resources: {pack: 16}
tracking: {enabled: false}
"""
FIT_COSINE = FIT.replace("name: fit", "name: fit_cosine").replace("warmup: 10", "warmup: 10, schedule: cosine")
# It would open some time after the first page, and take the room of the last columns, which are then not drawn.
WITHOUT_ASSISTANT = (
    "window.top === window && localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
)
CELL = re.compile(r"^lr=\S+ beta1=\S+$")
TRIAL = re.compile(r"^lr=\S+ beta1=\S+ seed=\d$")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses as `sweep ui` says them, of a sweep of twelve trials of which two diverged, and of two alike."""
    folder = tmp_path_factory.mktemp("mlflow")
    # In this process, so that torch and MLflow are imported once. `sync` waits for a store as long as it takes.
    for text in (QUADRATIC, FIT, FIT_COSINE):
        (folder / "sweep.yaml").write_text(text)
        trained = orchestrator.run(folder / "sweep.yaml", results=folder / "results", executor="inline")
        show(sync(trained.folder, None))
    port = free_port()
    command = [SWEEP, "ui", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        lines = iter(server.stdout.readline, "")
        first = [next(lines) for _ in range(3)]  # a note on who can reach it, and the prepared views
        said = {line[:4]: line[line.index("http") :].strip() for line in first[1:]}
        wait_for(f"http://127.0.0.1:{port}/health")
        yield {"sweeps": said["swee"], "maps": said["thei"]}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.stdout.close()
        server.wait()


@pytest.fixture
def opened(page: Page, pages: dict[str, str]) -> Iterator[Page]:
    """A page of usual size; a picture of every test's end goes to SCREENSHOTS."""
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    page.set_viewport_size({"width": 1600, "height": 1000})
    page.add_init_script(WITHOUT_ASSISTANT)
    yield page
    if folder := os.environ.get("SCREENSHOTS"):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture
def runs(opened: Page, pages: dict[str, str]) -> Page:
    """The trials of one sweep, as its tag finds them in the search box."""
    query = quote("tags.`sweep.level` = 'trial' and params.sweep = 'edge'")
    opened.goto(f"{pages['sweeps'].split('&viewStateShareKey')[0]}&startTime=ALL&searchFilter={query}")
    open_cells(opened)
    return opened


def open_cells(page: Page) -> None:
    """MLflow nests the trials that it finds in their cells."""
    expect(page.get_by_role("link", name=CELL).first).to_be_visible()
    for name in page.get_by_role("link", name=CELL).all_inner_texts():
        cell = page.get_by_role("link", name=name, exact=True)
        page.get_by_role("gridcell").filter(has=cell).first.get_by_role("button").first.click()
    expect(trials(page).first).to_be_visible()


def trials(page: Page):
    return page.get_by_role("link", name=TRIAL)


def show_column(page: Page, name: str) -> None:
    page.get_by_role("button", name="Columns", exact=True).click()
    page.get_by_placeholder("Search columns").fill(name)
    column = page.get_by_role("dialog").locator("[class*=tree-treenode]").filter(has_text=re.compile(f"^{name}$"))
    column.last.locator("[class*=checkbox]").first.click()
    page.keyboard.press("Escape")


def test_trials_are_listed_in_the_sweep_s_order_with_their_outcomes(runs: Page) -> None:
    expect(trials(runs)).to_have_count(12)
    names = trials(runs).all_inner_texts()
    assert [name[-1] for name in names] == ["0", "1"] * 6, "the seeds of a cell in their order"
    show_column(runs, "outcome")
    expect(runs.get_by_role("gridcell", name="stable", exact=True)).to_have_count(10)
    expect(runs.get_by_role("gridcell", name="diverged", exact=True)).to_have_count(2)


def test_a_filter_by_outcome_leaves_the_diverged_trials(runs: Page) -> None:
    search = runs.get_by_role("combobox", name=re.compile("metrics.rmse"))
    search.fill("tags.outcome = 'diverged'")
    search.press("Enter")
    expect(trials(runs)).to_have_count(2)
    assert {name.split(" seed")[0] for name in trials(runs).all_inner_texts()} == {"lr=3 beta1=0"}


def test_chosen_trials_are_compared_over_the_axes(runs: Page) -> None:
    for name in trials(runs).all_inner_texts():
        row = runs.get_by_role("row").filter(has=runs.get_by_role("link", name=name, exact=True))
        row.first.get_by_role("checkbox").first.check()
    runs.get_by_role("button", name="Compare").click()
    expect(runs.get_by_role("heading", name="Comparing 12 Runs from 1 Experiment")).to_be_visible()
    # Parallel coordinates, with the axes chosen already, also on their scale.
    axes = runs.locator(".parcoords .axis-title, .parcoords text")
    for name in ("beta1", "log10_lr", "lr"):
        expect(axes.get_by_text(name, exact=True).first).to_be_visible()
    if folder := os.environ.get("SCREENSHOTS"):
        runs.screenshot(path=Path(folder) / "parallel_coordinates.png")
    # The first two parameters are the axes, so the contour is drawn at once.
    runs.get_by_role("tab", name="Contour Plot").click()
    expect(runs.locator(".contourlayer path").first).to_be_attached()
    expect(runs.get_by_text("doesn't have enough unique data points")).to_have_count(0)


def test_sweeps_are_ranked_by_their_stable_fraction_with_their_edges(opened: Page, pages: dict[str, str]) -> None:
    opened.goto(pages["sweeps"])
    named = opened.get_by_role("link", name=re.compile("^(edge|fit|fit_cosine)$"))
    expect(named).to_have_count(3)
    assert named.all_inner_texts() == ["edge", "fit_cosine", "fit"], "the wider stable region stands first"
    for column in ("stable_fraction", "edge_low", "edge_high", "lr_sensitivity"):
        expect(opened.get_by_role("columnheader", name=column).first).to_be_visible()
    for column in ("edge_axis", "schedule"):
        expect(opened.get_by_role("columnheader", name=column).first).to_be_visible()
    row = opened.get_by_role("row").filter(has_text="0.8333")
    expect(row.first).to_be_visible()


def test_maps_of_two_sweeps_stand_side_by_side(opened: Page, pages: dict[str, str]) -> None:
    opened.goto(pages["maps"])
    expect(opened.get_by_text(re.compile(r"unstable fraction of cells:\s+fit_cosine\s+\|\s+fit"))).to_be_visible()
    opened.get_by_text(re.compile("fit_cosine.*fit")).first.evaluate("each => each.scrollIntoView({block: 'start'})")
    titles = opened.get_by_text(re.compile("^log10_lr vs. log10_one_minus_beta2 vs. unstable_fraction/fit"))
    expect(titles).to_have_count(2)
    left, right = (title.bounding_box() for title in titles.all())
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    expect(opened.locator(".contourlayer .contour path").first).to_be_attached()


def test_a_trial_stands_below_its_cell_and_that_below_its_sweep(opened: Page, pages: dict[str, str]) -> None:
    query = quote("params.sweep = 'edge'")
    opened.goto(f"{pages['sweeps'].split('&viewStateShareKey')[0]}&startTime=ALL&searchFilter={query}")
    sweep = opened.get_by_role("link", name="edge", exact=True).first
    sweep.wait_for()
    opened.get_by_role("gridcell").filter(has=sweep).first.get_by_role("button").first.click()
    cell = opened.get_by_role("link", name="lr=3 beta1=0", exact=True).first
    expect(cell).to_be_visible()
    opened.get_by_role("gridcell").filter(has=cell).first.get_by_role("button").first.click()
    expect(opened.get_by_role("link", name="lr=3 beta1=0 seed=1", exact=True).first).to_be_visible()


def test_the_description_of_a_sweep_has_its_map(opened: Page, pages: dict[str, str]) -> None:
    opened.goto(pages["sweeps"])
    opened.get_by_role("link", name="edge", exact=True).first.click()
    opened.get_by_text("Show more").first.click()
    picture = opened.locator("img[src*='heatmap.png']").first
    expect(picture).to_be_visible()
    assert picture.evaluate("each => each.decode().then(() => each.naturalWidth)") > 100


def test_the_curve_of_a_diverged_trial_shows_its_whole_height(runs: Page) -> None:
    runs.get_by_role("link", name="lr=3 beta1=0 seed=0", exact=True).first.click()
    expect(runs.get_by_text("Run ID").first).to_be_visible()
    runs.get_by_role("tab", name="Model metrics").click()
    expect(runs.locator(".js-plotly-plot .scatterlayer path.js-line").first).to_be_attached()


def test_the_sweep_has_its_heatmap_and_its_report_as_artifacts(opened: Page, pages: dict[str, str]) -> None:
    runs = opened
    runs.goto(pages["sweeps"])
    runs.get_by_role("link", name="edge", exact=True).first.click()
    # Asked for too early, before the run is read, the page would say that there are none.
    expect(runs.get_by_text("Run ID").first).to_be_visible()
    runs.get_by_role("tab", name="Artifacts").click()
    runs.get_by_text("heatmap.png").first.click()
    expect(runs.locator("img[src*='blob:'], img[src*='heatmap']").first).to_be_visible()
    runs.get_by_text("report.html").first.click()
    report = runs.frame_locator("iframe")
    report.get_by_role("button", name=re.compile(r"^lr=3 beta1=0:")).click()
    expect(report.locator("#cell path.curve")).to_have_count(4)
