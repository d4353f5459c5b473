"""An exported study as optuna-dashboard shows it (extra `optuna-dashboard`), in a real browser."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_server import free_port, wait_for
from playwright.sync_api import Page, expect
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.render.optuna_study import export_study

GRID = "seeds: [0, 1]\naxes: {lr: {log: [1e-3, 1], num: 4}, beta2: {log1m: [0.9, 0.999], num: 3}}\n"
GRID += "fixed: {optimizer: adamw}\n"


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[str]:
    """The address of a dashboard of 24 trials, of which those of the highest lr diverged."""
    program = Path(sys.executable).with_name("optuna-dashboard")
    if not program.exists():
        pytest.fail("no optuna-dashboard: make test-browser installs it")
    with ledger_at(tmp_path / "case") as ledger:
        record(ledger, sweep_of(GRID), ["stable"] * 18 + ["diverged"] * 6, [1 / (1 + i) for i in range(24)])
    path = export_study(tmp_path / "case")
    port = free_port()
    command = [program, f"sqlite:///{path}", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}/dashboard"
        wait_for(address)
        yield f"{address}/studies/1"
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def keep(page: Page, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A picture of the page goes to SCREENSHOTS, where that is set."""

    def picture(name: str) -> None:
        if folder := os.environ.get("SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{request.node.name}_{name}.png")

    return picture


def test_the_dashboard_draws_history_importance_and_parallel_coordinates(
    page: Page, dashboard: str, keep: Callable[[str], None]
) -> None:
    page.goto(dashboard)
    for heading in ("Pareto Front", "History", "Hyperparameter Importance", "Timeline"):
        expect(page.get_by_role("heading", name=heading)).to_be_visible(timeout=30_000)
    importance = page.locator("#graph-hyperparameter-importances")
    expect(importance.get_by_text("1-beta2")).to_be_visible(timeout=30_000)
    expect(importance.get_by_text("not_stable")).to_be_visible()
    keep("study")
    page.goto(f"{dashboard}/smartSelection")
    expect(page.get_by_role("heading", name="Parallel Coordinate")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("User Attribute onset_step")).to_be_visible()
    expect(page.locator(".parcoords .axis-title").filter(has_text="lr")).to_be_visible()
    keep("parallel")
    page.goto(f"{dashboard}/trials?numbers=20")
    expect(page.get_by_role("heading", name="Trial 20")).to_be_visible(timeout=30_000)
    expect(page.get_by_text("outcome diverged")).to_be_visible()
    expect(page.get_by_text("200, 1")).to_be_visible()
    keep("trial")
