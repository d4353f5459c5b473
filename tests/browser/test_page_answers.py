"""What a sweep's page answers when a reader asks: why, from where to where, which readings, beside what, as a file."""

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Download, Locator, Page, expect
from remedy_cases import find_remedies
from sweep_cases import sweep_of

from orchestrator.base.files import LEDGER
from orchestrator.causes.remedies.request import RemedyRequest
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.edge_line import edge_lines
from orchestrator.maps.table import read_table
from orchestrator.pages.report import export_all

Served = Callable[[Path, str], AbstractContextManager[str]]
BODY = """
seeds: [0, 1]
axes:
  lr: {values: [0.1, 1.0, 3.0, 9.0]}
  beta1: {values: [0.0, 0.5, 0.9]}
fixed: {optimizer: sgd}
telemetry: {curvature: 5}
tracking: {enabled: false}
"""
BASE = "objective: quadratic\nsteps: 60\n"
# The filters of warnings are the process's, and other threads of the server come and go with theirs.
pytestmark = pytest.mark.filterwarnings("ignore:Argument ``normalize``")
UNSTABLE = re.compile(r"^lr=9 beta1=0: 2 diverged")


@pytest.fixture
def sweeps(train, tmp_path: Path) -> Path:
    """A real sweep with telemetry, some of it beyond the edge, and one beside it with twice the curvature."""
    train(sweep_of(BODY, f"name: asked\n{BASE}"))
    find_remedies(
        tmp_path / "asked", None, {"lr": "9", "beta1": "0"}, RemedyRequest(("lr=x0.1",), ("0",), 2, pairs=False)
    )
    train(sweep_of(BODY.replace("sgd}", "sgd, curvature: 2.0}"), f"name: sharper\n{BASE}"))
    export_all(tmp_path / "asked")
    return tmp_path


@pytest.fixture
def asked(shown: Callable[[Path], Page], sweeps: Path) -> Page:
    """The page of the first of them."""
    return shown(sweeps / "asked")


def test_an_unstable_cell_is_diagnosed_when_it_is_chosen(asked: Page) -> None:
    asked.get_by_role("button", name=UNSTABLE).click()
    answers = asked.locator("#diagnoses > details")
    expect(answers.and_(asked.locator("[open]")).first).to_contain_text("threshold", timeout=20_000)
    summary = answers.locator("> summary").nth(1)
    summary.focus()
    asked.keyboard.press("Enter")
    expect(answers.and_(asked.locator("[open]"))).to_have_count(2)


def test_the_remedies_of_an_unstable_trial_have_their_picture_below_its_diagnosis(asked: Page) -> None:
    asked.get_by_role("button", name=UNSTABLE).click()
    picture = asked.locator("#diagnoses details[open] img")
    expect(picture).to_have_count(1, timeout=20_000)
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 100
    expect(asked.locator("#diagnoses > details[open]").first).to_contain_text("cheapest lr x0.1")


def test_a_part_of_the_steps_is_shown_by_numbers_or_by_dragging_and_all_of_them_again(asked: Page) -> None:
    asked.get_by_role("button", name=re.compile("^lr=0.1 beta1=0: 2 stable")).click()
    expect(asked.locator("#cell h3")).to_have_text("lr=0.1 beta1=0")
    figure = asked.locator("#cell figure").first
    label = figure.locator("svg").get_attribute("aria-label")
    for box, step in (("#zoom-from", "10"), ("#zoom-to", "20")):
        asked.locator(box).fill(step)
        asked.locator(box).press("Enter")
    expect(figure.locator("svg")).not_to_have_attribute("aria-label", label)
    asked.locator("#zoom-all").click()
    expect(figure.locator("svg")).to_have_attribute("aria-label", label)
    box = figure.locator("svg").bounding_box()
    asked.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"])
    asked.mouse.down()
    asked.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=4)
    asked.mouse.up()
    expect(figure.locator("svg")).not_to_have_attribute("aria-label", label)
    expect(asked.locator("#zoom-from")).not_to_have_value("0")
    asked.locator("#cell figure svg").first.dblclick()
    expect(asked.locator("#zoom-from")).to_have_value("0")


def test_a_reading_of_telemetry_is_drawn_on_request(page: Page, sweeps: Path, served: Served) -> None:
    with served(sweeps, "asked") as address:
        page.goto(address)
        page.get_by_role("button", name=re.compile("^lr=1 beta1=0: ")).click()
        expect(page.locator("#cell figure")).to_have_count(2)
        page.get_by_label("telemetry").select_option("lambda_max")
        expect(page.locator("#cell figure")).to_have_count(3)
        expect(page.locator("#cell figure").nth(2)).to_contain_text("lambda_max")
        page.get_by_label("telemetry").select_option("")
        expect(page.locator("#cell figure")).to_have_count(2)


def test_the_edge_is_drawn_with_a_mark_for_each_row_that_has_one(asked: Page, sweeps: Path) -> None:
    part(asked, "Edge").click(timeout=20_000)
    expect(asked.locator("#edge svg")).to_be_visible(timeout=20_000)
    with LedgerReader(sweeps / "asked" / LEDGER) as ledger:
        edges = [edge for line in edge_lines(read_table(ledger)).lines for edge in line.edges]
    assert len(edges) > 1
    expect(asked.locator("#edge .edge-line line")).to_have_count(len(edges))
    expect(asked.get_by_role("heading", name="Edge along lr against beta1")).to_be_visible()


def test_another_sweep_of_the_folder_is_compared_on_request(page: Page, sweeps: Path, served: Served) -> None:
    with served(sweeps, "asked") as address:
        page.goto(address)
        part(page, "Compare").click()
        page.get_by_label("asked against").select_option("sharper")
        expect(page.locator("#compare .answer")).to_contain_text("sharper", timeout=20_000)
        page.get_by_label("asked against").select_option("")
        expect(page.locator("#compare .answer")).to_be_hidden()


def test_what_is_seen_can_be_kept_as_a_table_and_as_a_picture(asked: Page, tmp_path: Path) -> None:
    asked.get_by_label("show").select_option("final_loss")
    text = Path(saved(asked, "map as CSV", tmp_path).path()).read_text(encoding="utf-8")
    table = list(csv.DictReader(io.StringIO(text)))
    assert len(table) == 12
    assert {row["lr"] for row in table} == {"0.1", "1", "3", "9"}
    assert all(float(row["final_loss"]) >= 0 for row in table if row["state"] == "stable")
    picture = saved(asked, "map as SVG", tmp_path)
    assert picture.suggested_filename == "asked_final_loss.svg"
    drawn = ET.parse(picture.path()).getroot()
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 12
    assert any(UNSTABLE.match(title) for title in titles)


def part(page: Page, name: str) -> Locator:
    """The button of a part of the page."""
    return page.locator("#outline").get_by_role("button", name=name, exact=True)


@pytest.mark.parametrize("width", [400, 1280])
def test_no_word_of_a_wide_table_is_broken(asked: Page, width: int) -> None:
    asked.set_viewport_size({"width": width, "height": 900})
    part(asked, "Trials").click(timeout=60_000)
    table = asked.locator("#answers .answer", has_text="The map as a table").locator("table")
    expect(table).to_be_visible()
    lines = "cells => cells.map(cell => { const range = document.createRange(); range.selectNodeContents(cell);"
    lines += " return new Set([...range.getClientRects()].map(each => each.top)).size; })"
    assert set(table.locator("tbody tr:first-child td").evaluate_all(lines)) <= {0, 1}
    assert asked.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_page_opens_with_its_sentence_and_each_part_is_one_click_or_an_address_away(asked: Page) -> None:
    expect(asked.locator(".finding")).to_contain_text("take lr=")
    expect(asked.locator("#map")).to_be_visible()
    expect(asked.locator("#map .recommended")).to_have_count(1)
    expect(asked.locator('#map [aria-pressed="true"]')).to_have_count(1)
    part(asked, "File and machine").click(timeout=20_000)
    expect(asked.locator("#map")).to_be_hidden()
    expect(asked.get_by_role("heading", name="Environment")).to_be_visible()
    assert "part=machine" in asked.url
    asked.reload()
    expect(asked.get_by_role("heading", name="Environment")).to_be_visible(timeout=20_000)
    part(asked, "File and machine").focus()
    asked.keyboard.press("ArrowDown")
    asked.keyboard.press("Enter")
    expect(asked.locator("#map")).to_be_visible()


def saved(page: Page, button: str, folder: Path) -> Download:
    """What the browser saves when the button is pressed."""
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return download.value
