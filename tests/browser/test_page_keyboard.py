"""The views of the cells without a pointer: Tab reaches one mark, arrow keys walk, Enter pins, Escape unpins."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from viewed_cases import viewed_sweep

from orchestrator.pages.report import REPORT

VIEWS = ("Map", "Scatter", "Lines", "Parallel")
FOCUS = "document.activeElement.getAttribute('aria-label')?.split(':')[0] ?? ''"
IN_MAP = "document.activeElement.closest('#map') !== null"
SEEN = """() => {
    const mark = document.activeElement;
    const { opacity, outlineStyle } = getComputedStyle(mark);
    const ring = mark.querySelector(".ring");
    return ring === null ? outlineStyle !== "none" : opacity === "1" && ring.getBoundingClientRect().width > 10;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return viewed_sweep(tmp_path_factory.mktemp("results"))


@pytest.fixture
def seen(page: Page, folder: Path, complaints: list[str]) -> Iterator[Page]:
    page.goto((folder / REPORT).absolute().as_uri())
    yield page
    assert complaints == []


def to_the_marks(page: Page, view: str) -> None:
    """Choose a view by keys alone, and go on by Tab to its marks."""
    page.locator("#views button").first.focus()
    for _ in range(len(VIEWS)):
        if page.evaluate("document.activeElement.textContent") == view:
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate(IN_MAP):
            return
    raise AssertionError("Tab does not reach the marks")


def visited(page: Page, key: str, times: int) -> list[str]:
    """The cells in focus, at first and after each press."""
    found = [page.evaluate(FOCUS)]
    for _ in range(times):
        page.keyboard.press(key)
        found.append(page.evaluate(FOCUS))
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_keys_alone_walk_over_the_cells_and_pin_and_unpin_them(seen: Page, view: str) -> None:
    expect(seen.locator("#views button")).to_have_count(6, timeout=60_000)
    to_the_marks(seen, view)
    assert seen.evaluate(SEEN), "what is in focus is seen"
    expect(seen.locator("#tip")).to_be_visible()
    for key in ("ArrowLeft", "ArrowDown", "ArrowLeft") * 4:
        seen.keyboard.press(key)
    keys = ("ArrowUp", "ArrowRight")
    reached = {name for _ in range(4) for key in keys for name in visited(seen, key, 2)}
    assert len(reached) >= 4
    name = seen.evaluate(FOCUS)
    seen.keyboard.press("Enter")
    expect(seen.locator("#cell h3")).to_have_text(name)
    assert seen.evaluate(FOCUS) == name, "the focus stays on the mark"
    assert seen.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert f"view={view.lower()}" in seen.url or view == "Map"
    seen.keyboard.press("ArrowLeft")
    assert seen.evaluate(FOCUS) != name
    seen.keyboard.press("Shift+Enter")
    expect(seen.locator("#cell h3")).to_have_text("2 cells compared")
    seen.keyboard.press("Escape")
    expect(seen.locator("#cell .empty")).to_be_visible()
    expect(seen.locator('#map [aria-pressed="true"]')).to_have_count(0)
    expect(seen.locator("#tip")).to_be_hidden()
    assert seen.evaluate(IN_MAP), "Escape does not lose the place"


def test_arrows_stay_in_a_row_or_column_and_reach_every_cell(seen: Page) -> None:
    to_the_marks(seen, "Scatter")
    for key in ("ArrowDown", "ArrowLeft") * 4:
        seen.keyboard.press(key)
    assert visited(seen, "ArrowRight", 4) == [f"lr={lr} beta1=0" for lr in ("0.1", "0.2", "0.4", "0.8", "0.8")]
    assert visited(seen, "ArrowUp", 2) == [f"lr=0.8 beta1={beta1}" for beta1 in ("0", "0.5", "0.9")]
    to_the_marks(seen, "Parallel")
    for _ in range(12):
        seen.keyboard.press("ArrowLeft")
    assert len({*visited(seen, "ArrowRight", 11)}) == 12
    for _ in range(12):
        seen.keyboard.press("ArrowDown")
    upwards = visited(seen, "ArrowUp", 11)
    assert len({*upwards}) == 12
    assert upwards[0].startswith("lr=0.1 "), "the lowest loss"


def test_tab_stops_once_in_a_view_and_leaves_it(seen: Page) -> None:
    for view in VIEWS:
        to_the_marks(seen, view)
        seen.keyboard.press("ArrowRight")
        seen.keyboard.press("Tab")
        assert not seen.evaluate(IN_MAP), view
        assert seen.locator('#map [tabindex="0"]').count() == 1


def test_a_saved_picture_has_no_mark_of_the_focus(seen: Page) -> None:
    for view in VIEWS[1:]:
        to_the_marks(seen, view)
        shown, saved = seen.evaluate("[document, viewPicture()].map((each) => each.querySelectorAll('.ring').length)")
        assert (shown > 0, saved) == (True, 0), view


def test_points_of_a_scattered_sweep_are_one_stop_and_arrows_reach_all(page: Page, scattered: Path) -> None:
    page.goto(scattered.absolute().as_uri())
    page.locator('#map [tabindex="0"]').focus()
    num = page.locator("#map circle").count()
    for _ in range(num):
        page.keyboard.press("ArrowLeft")
    assert len({*visited(page, "ArrowRight", num)}) == num > 3
    page.keyboard.press("ArrowLeft")
    name = page.evaluate(FOCUS)
    page.evaluate("drawMap()")  # as results come in
    assert page.evaluate(FOCUS) == name, "the focus stays on the cell"
