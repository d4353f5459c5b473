"""A real Chromium for the tests of pages."""

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from sweep_cases import ledger_at, record, sweep_of

from orchestrator.base.files import FROZEN_SWEEP
from orchestrator.pages.loopback import address_of, listening_socket
from orchestrator.pages.report import REPORT, export_all
from orchestrator.pages.server import PageServer

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The machine's Chromium; missing, it fails loudly: these tests are asked for by name."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(f"no browser ({', '.join(BROWSERS)}): apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a window of its own."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def complaints(page: Page) -> list[str]:
    """What the page says on the browser's console, and its errors."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


@pytest.fixture
def scattered(tmp_path: Path) -> Path:
    """The page of a sweep of twelve sampled trials, as a file."""
    sweep = sweep_of("axes: {lr: {log: [1e-4, 1]}, beta2: {log1m: [0.5, 0.999]}}\nsample: {method: sobol, num: 12}\n")
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep, ["stable", "diverged", "spiked"] * 4)
    (tmp_path / FROZEN_SWEEP).write_text(sweep.text)
    export_all(tmp_path)
    return tmp_path / REPORT


@pytest.fixture
def served() -> Callable[[Path, str], AbstractContextManager[str]]:
    """Serves the pages of the sweeps in a folder, and gives the address of the named one."""
    return _served


@contextlib.contextmanager
def _served(results: Path, name: str) -> Iterator[str]:
    """The address of the page of a sweep in ``results``."""
    listener = listening_socket(None)
    with PageServer(listener, results) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield address_of(listener, name)
        finally:  # a test that fails must not leave a thread that the process waits for
            server.shutdown()
            thread.join()


@pytest.fixture(params=["served", "file"])
def shown(
    request: pytest.FixtureRequest,
    page: Page,
    served: Callable[[Path, str], AbstractContextManager[str]],
    complaints: list[str],
) -> Iterator[Callable[[Path], Page]]:
    """Shows the page of a sweep's folder, from its server and as a file: both draw and answer alike."""
    with contextlib.ExitStack() as stack:

        def show(folder: Path) -> Page:
            if request.param == "file":
                address = (folder / REPORT).absolute().as_uri()
            else:
                address = stack.enter_context(served(folder.parent, folder.name))
            page.goto(address)
            return page

        yield show
    # A server that computes other answers first says 503, and the page asks again.
    assert [each for each in complaints if "status of 503" not in each] == []
