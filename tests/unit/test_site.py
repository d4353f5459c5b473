"""The pages of the documentation's site."""

import importlib.util
import re
from pathlib import Path

import pytest

from objectives.base import OBJECTIVES

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site" / "pages.py")
site = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(site)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    site.write_pages(folder)
    return folder


def test_the_navigation_has_every_page_once_and_nothing_else(pages: Path) -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    assert sorted(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == sorted(p.name for p in pages.glob("*.md"))


def test_every_link_leads_to_a_page_or_a_picture_of_the_site(pages: Path) -> None:
    links = [(page, link[1]) for page in pages.rglob("*.md") for link in site.LINK.finditer(page.read_text())]
    assert len(links) > 100
    assert [f"{page.name}: {to}" for page, to in links if "://" not in to and not (page.parent / to).exists()] == []


def test_the_page_of_commands_has_every_option_and_the_page_of_python_every_public_name(pages: Path) -> None:
    import orchestrator

    commands = (pages / "commands.md").read_text()
    assert "## sweep export heatmap\n" in commands
    assert "| `--across AXIS` | " in commands
    assert "| `--margin` | how far from every edge, as a factor of each axis (default: 2.0) |" in commands
    python = (pages / "python.md").read_text()
    assert set(re.findall(r"\.(\w+)$", python, re.MULTILINE)) >= {n for n in orchestrator.__all__ if n[0] != "_"}
    assert "### boundary\n" in python
    assert "| `margin = 2.0` | how far from every edge, as a factor of each axis |" in python


def test_the_page_of_fields_has_every_field_of_every_objective(pages: Path) -> None:
    sections = (pages / "fields.md").read_text().split("\n## ")[1:]
    shown = {section.split("\n")[0]: re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) for section in sections}
    assert shown == {name: list(one.config_class.model_fields) for name, one in OBJECTIVES.items()}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them; code has none."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title)).strip().lower().replace(" ", "-") for title in titles
    }


def test_every_anchor_of_a_link_is_a_heading_of_its_page() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    links = [
        (page, (page.parent / to).resolve() if to else page, anchor)
        for page in pages
        for to, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", page.read_text())
    ]
    assert len(links) > 100
    assert [f"{page.name}: {to.name}#{anchor}" for page, to, anchor in links if anchor not in anchors(to)] == []


def test_a_link_or_a_picture_that_leads_nowhere_is_named_with_its_page(tmp_path: Path, monkeypatch) -> None:
    assert site.broken_links() == []
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "DOCS", tmp_path)
    monkeypatch.setattr(site, "PAGES", {})
    (tmp_path / "there.md").write_text("![a](gone.png) [b](https://a.example/b) [c](there.md#c) [d](gone.md#d)")
    assert site.broken_links() == ["there.md: gone.png", "there.md: gone.md"]
