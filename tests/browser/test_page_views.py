"""The map as a control: other views of its cells, the hint under the pointer, regions, and how curves are drawn."""

import csv
import io
import re
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from viewed_cases import viewed_sweep

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.pages.report import REPORT

Served = Callable[[Path, str], AbstractContextManager[str]]
PIECES = "all => all.map((each) => each.getAttribute('d').match(/M/g).length)"  # of each path
CROSSES = "all => all.map((each) => each.getAttribute('d').match(/l/g)?.length ?? 0)"
CURSORS = "all => all.map((each) => [each.getAttribute('x1'), each.getAttribute('visibility')])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return viewed_sweep(tmp_path_factory.mktemp("results"))


@pytest.fixture
def seen(shown: Callable[[Path], Page], folder: Path) -> Page:
    return shown(folder)


def cell(page: Page, lr: str, beta1: str):
    return page.locator(f'#map [data-cell="lr={lr} beta1={beta1}"]')


def middle(place) -> tuple[float, float]:
    box = place.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_every_view_shows_all_trials_or_cells_and_a_click_in_it_pins_a_cell(seen: Page, folder: Path) -> None:
    with LedgerReader(folder / LEDGER) as ledger:
        num = len(read_table(ledger).trials)
    views = seen.locator("#views")
    expect(views.get_by_role("button")).to_have_count(6, timeout=60_000)
    views.get_by_role("button", name="Scatter").click()
    marks = seen.locator("#map path.trial").evaluate_all(PIECES)
    assert sum(marks) == num
    expect(seen.locator("#map .surface rect")).to_have_count(12)
    views.get_by_role("button", name="Parallel").click()
    lines = seen.locator("#map path.through:not(.chosen)").evaluate_all(PIECES)
    assert sum(lines) == num
    expect(seen.locator("#map svg")).to_contain_text("diverged")
    views.get_by_role("button", name="Lines").click()
    expect(seen.locator("#map path.curve")).to_have_count(3)
    crosses = seen.locator("#map path.trial.cross").evaluate_all(CROSSES)
    assert sorted(crosses) == [2, 2, 4], "two strokes for each cell over the edge"
    views.get_by_role("button", name="Edge").click()
    expect(seen.locator("#map .edge-line line")).to_have_count(3)
    views.get_by_role("button", name="Importance").click()
    assert seen.locator("#map .share").count() >= 4
    views.get_by_role("button", name="Lines").click()
    box = seen.locator("#map path.trial:not(.cross)").first.bounding_box()
    seen.mouse.click(box["x"] + 2, box["y"] + box["height"] - 2)  # its lowest loss is the first one
    expect(seen.locator("#cell h3")).to_have_text("lr=0.1 beta1=0")
    expect(seen.locator("#map .chosen")).to_have_count(1)
    assert "view=lines" in seen.url
    seen.reload()
    expect(seen.locator("#map path.curve")).to_have_count(3)


def test_the_pointer_brings_a_hint_with_numbers_and_a_small_curve(seen: Page) -> None:
    cell(seen, "0.4", "0").hover()
    tip = seen.locator("#tip")
    expect(tip).to_contain_text("lr=0.4 beta1=0")
    expect(tip).to_contain_text("3 stable")
    expect(tip).to_contain_text("median final loss 2.4")
    expect(tip.locator("path.curve")).to_have_count(3)
    seen.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_dragging_over_the_map_selects_a_region_that_its_address_brings_back(seen: Page) -> None:
    seen.mouse.move(*middle(cell(seen, "0.1", "0")))
    seen.mouse.down()
    seen.mouse.move(*middle(cell(seen, "0.4", "0.9")), steps=6)
    expect(seen.locator("#map .inside")).to_have_count(9)
    seen.mouse.up()
    expect(seen.locator("#cell h3")).to_have_text("9 cells compared")
    expect(seen.locator("#cell .region")).to_contain_text("8 of 9 cells stable; trials: 24 stable, 3 diverged")
    expect(seen.locator('#map [aria-pressed="true"]')).to_have_count(9)
    expect(seen.locator("#map .inside")).to_have_count(0)
    address = seen.url
    seen.goto("about:blank")
    seen.goto(address)
    expect(seen.locator("#cell h3")).to_have_text("9 cells compared")
    cell(seen, "0.8", "0").click()
    expect(seen.locator("#cell h3")).to_have_text("lr=0.8 beta1=0")


def test_curves_are_smoothed_over_faint_ones_and_seeds_are_a_band_as_the_address_says(seen: Page) -> None:
    cell(seen, "0.1", "0").click()
    charts = seen.locator("#cell figure:has(svg)")
    expect(charts).to_have_count(3)
    expect(charts.nth(2)).to_contain_text("learning rate")
    expect(charts.first.locator("path.curve")).to_have_count(3)
    expect(charts.first.locator("path.faint")).to_have_count(3)
    expect(charts.nth(2).locator("path.faint")).to_have_count(0)
    seen.locator("#smooth").fill("0")
    expect(seen.locator("#cell path.faint")).to_have_count(0)
    seen.locator("#seeds").select_option("band")
    expect(charts.first.locator("path.curve")).to_have_count(1)
    expect(charts.first.locator("path.seed-band")).to_have_count(1)
    seen.reload()
    expect(charts.first.locator("path.seed-band")).to_have_count(1)
    expect(seen.locator("#smooth")).to_have_value("0")


def test_a_smoothed_line_knows_nothing_of_what_comes(page: Page, folder: Path) -> None:
    page.goto((folder / REPORT).absolute().as_uri())
    found = page.evaluate(
        """() => {
            const steps = Int32Array.from({ length: 100 }, (_, n) => n);
            const values = Float32Array.from(steps, (n) => (n < 60 ? 2 : 8));
            return [false, true].map((isLog) => [...smoothed({ steps, values }, 5, isLog)]);
        }"""
    )
    for line in found:
        assert line[:60] == pytest.approx([2.0] * 60)
        assert 2 < line[60] < line[70] < 8
        assert line[99] == pytest.approx(8, rel=0.01)


def test_a_band_goes_from_the_lowest_to_the_highest_seed_that_has_not_ended(page: Page, folder: Path) -> None:
    page.goto((folder / REPORT).absolute().as_uri())
    low, high = page.evaluate(
        """() => {
            const ends = (last) => Int32Array.of(0, last);
            const line = (last, value) => ({ c: 0, steps: ends(last), seen: Float32Array.of(value, value) });
            const frame = { from: 0, to: 100, toX: (step) => step, toY: (value) => value, high: 9 };
            const [band] = bandsOf([line(100, 1), line(50, 3), line(100, 2)], frame);
            const places = band.getAttribute("d").slice(1, -1).split("L").map((each) => each.split(" ").map(Number));
            const at = (step) => places.filter(([x]) => Math.abs(x - step) < 0.3).map(([, y]) => y);
            return [at(25), at(75)];
        }"""
    )
    assert (min(low), max(low)) == (1, 3)
    assert (min(high), max(high)) == (1, 2)


def test_all_charts_share_one_cursor_and_say_their_values(seen: Page) -> None:
    cell(seen, "0.2", "0.5").click()
    expect(seen.locator("#cell h3")).to_have_text("lr=0.2 beta1=0.5")
    charts = seen.locator("#cell figure:has(svg)")
    charts.nth(1).locator("svg").hover()
    places = seen.locator("#cell line.cursor").evaluate_all(CURSORS)
    assert len(places) == 3
    assert len({x for x, _ in places}) == 1
    assert {shown for _, shown in places} == {"visible"}
    for n in range(3):
        expect(charts.nth(n).locator(".readout")).to_have_text(re.compile(r"^step \d+; seed 0: [\d.e-]+"))


def test_onset_episode_and_verdict_are_marked_and_the_key_says_what_they_are(seen: Page) -> None:
    cell(seen, "0.8", "0").click()
    expect(seen.locator("#cell h3")).to_have_text("lr=0.8 beta1=0")
    first = seen.locator("#cell figure").first
    expect(first.locator(".onset")).to_have_count(3)
    expect(first.locator("rect.episode")).to_have_count(3)
    expect(first.locator("line.verdict")).to_have_count(1)  # of three seeds at one step
    for words in ("off its trend", "onset", "found lost"):
        expect(seen.locator("#cell .charts .key")).to_contain_text(words)


def test_curves_are_kept_as_png_svg_and_csv(seen: Page, folder: Path) -> None:
    cell(seen, "0.1", "0").click()
    expect(seen.locator("#cell h3")).to_have_text("lr=0.1 beta1=0")
    found = {}
    for kind in ("PNG", "SVG", "CSV"):
        with seen.expect_download() as download:
            seen.locator(f"#curves-{kind.lower()}").click()
        assert download.value.suggested_filename == f"seen_lr=0.1_beta1=0_curves.{kind.lower()}"
        found[kind] = Path(download.value.path()).read_bytes()
    assert found["PNG"].startswith(b"\x89PNG")
    assert struct.unpack(">I", found["PNG"][16:20])[0] > 600
    drawn = ET.fromstring(found["SVG"])
    paths = [each.get("class") for each in drawn.iter("{http://www.w3.org/2000/svg}path")]
    assert paths.count("curve") == 9
    rows = list(csv.DictReader(io.StringIO(found["CSV"].decode())))
    assert {row["curve"] for row in rows} == {"loss", "grad_norm", "lr"}
    with LedgerReader(folder / LEDGER) as ledger:
        trace = ledger.trace(rows[0]["trial"], ("loss",))
    losses = {int(row["step"]): float(row["value"]) for row in rows if row["curve"] == "loss" and row["seed"] == "0"}
    assert losses == pytest.approx({step: trace["loss"][step] for step in losses}, rel=1e-3)


def test_two_ticked_sweeps_of_the_index_are_compared(page: Page, tmp_path: Path, served: Served) -> None:
    viewed_sweep(tmp_path)
    for name in ("other", "third"):
        (tmp_path / "again").mkdir()
        viewed_sweep(tmp_path / "again").rename(tmp_path / name)
        (tmp_path / "again").rmdir()
    with served(tmp_path, "seen") as address:
        page.goto(address.removesuffix("seen/"))
        expect(page.locator("article.sweep")).to_have_count(3)
        expect(page.locator(".small-map img")).to_have_count(3)
        for name in ("compare seen", "compare third", "compare other"):
            page.get_by_role("checkbox", name=name).check()
        expect(page.get_by_role("checkbox", name="compare third")).not_to_be_checked()
        page.get_by_role("link", name="Compare seen with other").click()
        expect(page.locator("#compare .answer")).to_contain_text("Of 36 trials", timeout=60_000)
        expect(page.locator("#compare img")).to_be_visible()
        assert page.locator("#compare img").evaluate("image => image.naturalWidth") > 100


def test_many_cells_that_are_no_region_are_the_same_ones_in_the_address(seen: Page) -> None:
    chosen = [(lr, beta1) for lr in ("0.1", "0.2", "0.8") for beta1 in ("0", "0.5", "0.9")]
    for n, (lr, beta1) in enumerate(chosen):
        cell(seen, lr, beta1).click(modifiers=["Shift"] if n else [])
    expect(seen.locator("#cell h3")).to_have_text("9 cells compared")
    address = seen.url
    seen.goto("about:blank")
    seen.goto(address)
    expect(seen.locator("#cell h3")).to_have_text("9 cells compared")
    for lr, beta1 in chosen:
        expect(cell(seen, lr, beta1)).to_have_attribute("aria-pressed", "true")


def test_a_window_can_be_resized_after_the_last_cell_was_taken_away(page: Page, folder: Path) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto((folder / REPORT).absolute().as_uri())
    cell(page, "0.1", "0").click()
    expect(page.locator("#cell svg.chart")).to_have_count(3)
    cell(page, "0.1", "0").click(modifiers=["Shift"])
    page.set_viewport_size({"width": 900, "height": 900})
    page.wait_for_timeout(400)  # drawings follow the window a little later
    expect(page.locator("#cell .empty")).to_be_visible()
    assert complaints == []


def test_a_loss_that_never_changes_has_a_line_whatever_scale_was_chosen(page: Page, folder: Path) -> None:
    page.goto((folder / REPORT).absolute().as_uri())
    places = page.evaluate(
        """() => [0.3, 3].flatMap((value) => [undefined, "log", "linear"].map((scale) => {
            const { canLog, toY } = heightsOf([value, value], 100, 0, scale);
            return [canLog, toY(value)];
        }))"""
    )
    assert places == [[False, 50]] * 6


def test_a_band_has_the_colour_of_its_cell_where_an_earlier_cell_has_none(page: Page, folder: Path) -> None:
    page.goto((folder / REPORT).absolute().as_uri())
    found, colour = page.evaluate(
        """() => {
            selection = [0, 1];
            const line = { c: 1, k: 1, steps: Int32Array.of(0, 9), seen: Float32Array.of(1, 2) };
            const [band] = bandsOf([line], { from: 0, to: 9, toX: (step) => step, toY: (value) => value, high: 9 });
            return [band.getAttribute("fill"), strokeOf(1).stroke];
        }"""
    )
    assert found == colour


def test_the_command_of_a_cell_and_the_ids_of_its_seeds_can_be_copied(page: Page, folder: Path, served: Served) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    with served(folder.parent, "seen") as address:
        page.goto(address)
        for lr, words in (
            ("0.1", "sweep locate seen --at lr=0.1 --at beta1=0"),
            ("0.8", "sweep diagnose seen --cell lr=0.8,beta1=0"),
        ):
            cell(page, lr, "0").click()
            expect(page.locator("#cell .command code")).to_have_text(words)
            for button in (page.locator("#cell .command button"), page.locator("#cell td.trial_id button").first):
                button.click()
                expect(button).to_have_text("copied")
                assert page.evaluate("navigator.clipboard.readText()") == button.get_attribute("data-copy")
