"""MLflow as its users use it: the real server on a finished sweep, in a real browser."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sweep_cases import QUADRATIC

SWEEP = Path(sys.executable).with_name("sweep")
EDGE = QUADRATIC.replace("tracking: {enabled: false}\n", "")
TRIAL = re.compile(r"^lr=\S+ beta1=\S+ seed=\d$")


@pytest.fixture(scope="module")
def runs_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the runs, as `sweep ui` says it, of a sweep of twelve trials of which two diverged."""
    folder = tmp_path_factory.mktemp("mlflow")
    (folder / "edge.yaml").write_text(EDGE)
    subprocess.run([SWEEP, "run", "edge.yaml", "--executor", "inline"], cwd=folder, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [SWEEP, "ui", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        lines = iter(server.stdout.readline, "")
        address = next(line for line in lines if line.startswith("runs of sweep: ")).split(": ", 1)[1].strip()
        wait_for(f"http://127.0.0.1:{port}/health")
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.stdout.close()
        server.wait()


def wait_for(url: str) -> None:
    """The server takes some seconds to answer."""
    for _ in range(240):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.25)
    pytest.fail(f"nothing answers at {url}")


@pytest.fixture
def runs(page: Page, runs_page: str) -> Iterator[Page]:
    """The table of runs with the sweep opened; a picture of every test's end goes to SCREENSHOTS."""
    page.set_default_timeout(30_000)
    expect.set_options(timeout=30_000)
    page.set_viewport_size({"width": 1600, "height": 1000})
    page.goto(runs_page)
    open_sweep(page)
    yield page
    if folder := os.environ.get("SCREENSHOTS"):
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        page.screenshot(path=Path(folder) / f"{name}.png")


def open_sweep(page: Page) -> None:
    sweep = page.get_by_role("link", name="edge", exact=True).first
    sweep.wait_for()
    assistant = page.get_by_role("button", name="Close", exact=True)
    if assistant.count():
        assistant.first.click()
    page.get_by_role("gridcell").filter(has=sweep).first.get_by_role("button").first.click()
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
    assert trials(runs).all_inner_texts()[:3] == [
        "lr=0.1 beta1=0 seed=0", "lr=0.1 beta1=0 seed=1", "lr=0.1 beta1=0.5 seed=0",
    ]  # fmt: skip
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
    # Parallel coordinates, with the axes and the seed chosen already.
    axes = runs.locator(".parcoords .axis-title, .parcoords text")
    for name in ("beta1", "lr", "seed"):
        expect(axes.get_by_text(name, exact=True).first).to_be_visible()
    if folder := os.environ.get("SCREENSHOTS"):
        runs.screenshot(path=Path(folder) / "parallel_coordinates.png")
    # The first two parameters are the axes, so the contour is drawn at once.
    runs.get_by_role("tab", name="Contour Plot").click()
    expect(runs.locator(".contourlayer path").first).to_be_attached()
    expect(runs.get_by_text("doesn't have enough unique data points")).to_have_count(0)


def test_the_sweep_has_its_heatmap_and_its_report_as_artifacts(runs: Page) -> None:
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
