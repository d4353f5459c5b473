"""The page of knobs has sources, and the page of maps shows what the sweep of every knob found."""

import csv
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from objectives.base import GptConfig
from orchestrator.sweepfile.spec import load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = ROOT / "results" / "reference"
PAGE = (DOCS / "knobs.md").read_text()
MAPS = (REFERENCE / "memory-edge.md").read_text()
PAGES = pytest.mark.parametrize(("page", "folder"), [(PAGE, DOCS), (MAPS, REFERENCE)], ids=["knobs", "memory-edge"])
SWEEPS = sorted((ROOT / "sweeps" / "knobs").glob("*.yaml"))
_PNG = b"\x89PNG\r\n\x1a\n"


def plain(value: Any) -> float | str | None:
    """A value as a table has it: 4 and 4.0 are one, null is nothing."""
    if value is None or value == "":
        return None
    try:
        return str(value) if isinstance(value, bool) else float(value)
    except ValueError:
        return str(value)


def numbers_of(name: str) -> Path:
    return REFERENCE / "knobs" / f"{name}.csv"


def cells_of(name: str) -> list[dict[str, str]]:
    with numbers_of(name).open() as file:
        return list(csv.DictReader(file))


def text_on(name: str) -> str:
    """What the page says of a map, from the link to its numbers to the end of the paragraph."""
    after = MAPS.split(f"](knobs/{name}.csv):")[1]
    return " ".join(after.split("\n\n")[0].split())


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_is_linked_with_its_picture_and_its_numbers(path: Path) -> None:
    for target in (
        f"../../sweeps/knobs/{path.name}",
        f"knobs/{path.stem}.csv",
        f"../../docs/pictures/knobs/{path.stem}.png",
    ):
        assert f"]({target})" in MAPS, target
    assert (DOCS / "pictures" / "knobs" / f"{path.stem}.png").read_bytes().startswith(_PNG)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_cell_that_a_sweep_plans_is_finished(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.name == f"knob_{path.stem}"
    assert path.read_text().startswith("# ")
    rows = cells_of(path.stem)
    cells = [[plain(row[name]) for name in sweep.axis_names] for row in rows]
    planned = [
        [plain(trial.cell[name]) for name in sweep.axis_names] for trial in sweep.trials if trial.seed == sweep.seeds[0]
    ]
    assert sorted(cells, key=str) == sorted(planned, key=str)
    for row in rows:
        outcomes = [int(row[f"num_{outcome}"]) for outcome in ("stable", "degraded", "spiked", "diverged", "stalled")]
        assert sum(outcomes) == int(row["num_finished"]) == int(row["num_seeds"]) == len(sweep.seeds), row


def test_there_are_no_pictures_or_numbers_of_sweeps_that_there_are_not() -> None:
    names = {path.stem for path in SWEEPS}
    assert {path.stem for path in (DOCS / "pictures" / "knobs").iterdir()} == names
    assert {path.stem for path in numbers_of("").parent.iterdir()} == names


def test_the_section_of_the_memory_edge_has_the_maps_that_move_it_and_counts_the_others() -> None:
    section = PAGE.split("### At the memory edge")[1].split("\n## ")[0]
    maps = dict(re.findall(r"\[(\w+)\]\(pictures/knobs/(\w+)\.png\)", section))
    others = {path.stem for path in SWEEPS} - maps.keys()
    assert all(knob == picture for knob, picture in maps.items())
    assert f"[other {len(others)} maps](../results/reference/memory-edge.md)" in section


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_losses_that_the_page_quotes_are_those_of_the_map(path: Path) -> None:
    """A number from 1.00 on with two decimals is a median loss; those below are values of an axis or a rule."""
    losses = {f"{float(row['median_final_loss'] or 'nan'):.2f}" for row in cells_of(path.stem)}
    assert set(re.findall(r"(?<![\d.])[1-9]\d*\.\d\d\b(?!\d)", text_on(path.stem))) <= losses


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_numbers_of_seeds_that_the_page_quotes_are_there_in_the_map(path: Path) -> None:
    """Of "8 of 10" the ten are the seeds of the sweep, and eight of them had one outcome in some cell."""
    rows = cells_of(path.stem)
    found = {int(row[f"num_{outcome}"]) for row in rows for outcome in ("stable", "spiked", "diverged", "stalled")}
    for some, all_of_them in re.findall(r"(\d+) of (3|10)\b", text_on(path.stem)):
        assert int(some) in found
        assert all_of_them == rows[0]["num_seeds"]


def test_the_page_says_how_the_cell_at_the_edge_came_out_over_all_maps() -> None:
    moved = ("beta1", "head_lr", "weight_decay_kind", "corrupted")
    maps = [cells_of(path.stem) for path in SWEEPS if path.stem not in moved and "beta2" in load_sweep(path).axis_names]
    at_the_edge = [row for rows in maps for row in rows if row["beta2"] == "0.66" and row["num_seeds"] == "3"]
    # The defaults are a row of many maps.
    different = {(row["num_stable"], row["median_final_loss"]) for row in at_the_edge}
    counts = [sum(num_stable == str(wanted) for num_stable, _ in different) for wanted in range(4)]
    number = r"\s+(\d+)\s+"
    said = re.search(
        rf"their{number}different\s+rows.*?no\s+stable\s+seed{number}times,\s+one{number}times,"
        rf"\s+two{number}times\s+and\s+three{number}times",
        MAPS,
        re.DOTALL,
    )
    assert [int(one) for one in said.groups()] == [len(different), *counts]


def test_the_sweep_that_the_page_shows_is_the_one_that_ships() -> None:
    shown = re.search(r"^```yaml\n(.*?)^```", MAPS, re.MULTILINE | re.DOTALL).group(1)
    document = parse_document(shown, "page")
    shipped = parse_document((ROOT / "sweeps" / "knobs" / "clip.yaml").read_text(), "clip.yaml")
    assert document.data == {key: value for key, value in shipped.data.items() if key != "tracking"}


def test_the_page_says_what_computes_the_gradient_of_each_model() -> None:
    said = re.search(
        r"gradient of `gpt` is written by hand, or autograd's with (.*?) and on a GPU; a native kernel computes it,"
        r" without (.*?)\.",
        " ".join(PAGE.split()),
    )
    autograd, no_kernel = (set(re.findall(r"`(\w+)`", names)) for names in said.groups())
    defaults = GptConfig(steps=1)
    found: dict[str, set[str]] = {"has_gradient_by_hand": set(), "has_native_kernels": set()}
    num_tried = 0
    for name, field in GptConfig.model_fields.items():
        values = get_args(field.annotation)
        for value in (*(one for one in values if isinstance(one, str)), True, 1, 2, 4, 0.5):
            try:
                config = GptConfig(**{"steps": 1, name: value})
            except ValidationError:
                continue
            num_tried += getattr(config, name) != getattr(defaults, name)
            for fact, turned_off in found.items():
                if not getattr(config, fact):
                    turned_off.add(value if name == "precision" else name)
    assert num_tried > 100, "most fields have a value besides the default"
    assert found["has_gradient_by_hand"] == autograd
    assert found["has_native_kernels"] == autograd | no_kernel


def test_sources_are_arxiv_ids_of_the_right_form() -> None:
    ids = re.findall(r"arXiv\s+(\d{4}\.\d+)\b", PAGE)
    assert len(ids) == len(re.findall("arxiv", PAGE, re.IGNORECASE)) > 30, "each is told as: arXiv 1412.6980"
    for number in ids:
        year, month, rest = re.fullmatch(r"(\d\d)(\d\d)\.(\d+)", number).groups()
        assert 1 <= int(month) <= 12, number
        assert len(rest) == (5 if int(year) >= 15 else 4), number


@PAGES
def test_links_and_pictures_lead_somewhere(page: str, folder: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page):
        assert (folder / target).exists(), target


@PAGES
def test_links_within_a_page_lead_to_a_heading(page: str, folder: Path) -> None:
    headings = {heading.replace("`", "").lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", page, re.M)}
    for target in re.findall(r"\]\(#([^)]+)\)", page):
        assert target in headings, target
