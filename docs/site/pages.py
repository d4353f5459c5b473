"""Write the pages of the site: those of docs/, and those that no file there holds.

The README, files that pages link to, the command line, the fields and the Python names become pages of their own. What
is written is plain Markdown, which any builder of sites takes.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that lie outside docs/, by their place in the repository.
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PICTURES = (".png", ".svg")
LANGUAGES = {".yaml": "yaml", ".py": "python", ".json": "json", ".csv": "text", ".c": "c"}
TERMINAL_CODES = re.compile("\x1b\\[[0-9;]*m")
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")


def write_pages(folder: Path) -> None:
    """Write every page and picture of the site into ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in sorted(_reached(_own_pages())):
        if path.suffix == ".ipynb":
            _write_notebook(path, folder)
            continue
        if path.suffix in PICTURES:
            content: str | bytes = path.read_bytes()
        else:
            content = _relinked(path) if path.suffix == ".md" else _shown(path)
        _write(folder / _place(path), content)
    _write(folder / "commands.md", commands_page())
    _write(folder / "fields.md", fields_page())
    _write(folder / "python.md", python_page())


def broken_links() -> list[str]:
    """The links of pages to files that are not there, as `PAGE: LINK`; builders of sites miss those to pictures."""
    pages = sorted(path for path in _reached(_own_pages()) if path.suffix == ".md")
    return [
        f"{page.relative_to(ROOT).as_posix()}: {link[1]}"
        for page in pages
        for link in LINK.finditer(page.read_text())
        if ":" not in link[1] and _target(page, link[1]) is None
    ]


def _own_pages() -> list[Path]:
    return [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb"), *(ROOT / name for name in PAGES)]


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def _target(source: Path, link: str) -> Path | None:
    """The file or folder that a link of ``source`` names; None for an address, or where nothing is."""
    if ":" in link:
        return None
    target = (source.parent / link).resolve()
    return target if target.exists() else None


def _reached(pages: Iterable[Path]) -> set[Path]:
    """The pages, and the files and folders of the repository to which they link."""
    found: set[Path] = set()
    waiting = list(pages)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".md":
            targets = (_target(path, link[1]) for link in LINK.finditer(path.read_text()))
            waiting += [target for target in targets if target is not None]
    return found


def _place(path: Path) -> str:
    """Where the site has a file or a folder of the repository."""
    place = path.relative_to(ROOT).as_posix()
    if place in PAGES:
        return PAGES[place]
    if place.startswith("docs/"):
        return place.removeprefix("docs/").replace(".ipynb", ".md")
    return f"files/{place}" if path.suffix in (*PICTURES, ".md") else f"files/{place}.md"


def _relinked(source: Path) -> str:
    """The text of a page, its links pointed to where the site has their files; a link to nothing stays as it is."""
    begin = posixpath.dirname(_place(source))

    def link(found: re.Match[str]) -> str:
        target = _target(source, found[1])
        return found[0] if target is None else posixpath.relpath(_place(target), begin or ".") + (found[2] or "")

    return LINK.sub(link, source.read_text())


def _shown(target: Path) -> str:
    """A page with the content of a file, or with the names in a folder."""
    title = f"# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        return title + "".join(f"- {path.name}\n" for path in sorted(target.iterdir()))
    return f"{title}````{LANGUAGES.get(target.suffix, 'text')}\n{target.read_text().rstrip()}\n````\n"


def _write_notebook(path: Path, folder: Path) -> None:
    """A page with the text and the code of a notebook, and with its outputs; pictures lie beside it."""
    parts: list[str] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = ""
        for output in cell.get("outputs", []):
            found = output.get("data", {})
            if "image/png" in found:
                picture = f"pictures/{path.stem}_{len(parts)}.png"
                _write(folder / picture, base64.b64decode(found["image/png"]))
                parts.append(f"![What the cell draws]({picture})")
            else:
                printed += "".join(output.get("text", found.get("text/plain", "")))
        if printed:
            parts.append(f"```text\n{TERMINAL_CODES.sub('', printed).rstrip()}\n```")
    _write(folder / _place(path), "\n\n".join(parts) + "\n")


def commands_page() -> str:
    """Every command with its help, arguments and options, as the command line says them."""
    import typer

    from orchestrator.cli import app

    parts = ["# Commands\n", "Made from the command line itself: `sweep COMMAND --help` says the same.\n"]
    for words, command in _commands(typer.main.get_command(app), "sweep"):
        parts += [f"## {words}\n", f"{command.help}\n", "| option | meaning |", "| --- | --- |"]
        parts += [f"| `{_name(one)}` | {_meaning(one)} |" for one in command.params if one.name != "help"]
        parts.append("")
    return "\n".join(parts)


def fields_page() -> str:
    """Every field of every objective, as `sweep objectives` lists them."""
    from orchestrator.sweepfile.starter import objectives_with_rows

    parts = ["# Fields of the objectives\n", "`sweep objectives` lists the same.\n"]
    for objective, rows in objectives_with_rows():
        parts += [f"## {objective.name}\n", f"{objective.summary}\n"]
        parts += ["| field | default | unit | domain | meaning |", "| --- | --- | --- | --- | --- |"]
        parts += [f"| `{name}` | {' | '.join(map(_escaped, rest))} |" for name, *rest in rows]
        parts.append("")
    return "\n".join(parts)


def _commands(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


def _name(parameter: Any) -> str:
    """`--name VALUE`, or the name of an argument."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper()
    return " ".join([parameter.opts[0], *([parameter.metavar] if parameter.metavar else [])])


def _meaning(parameter: Any) -> str:
    is_told = parameter.default not in (None, False, (), []) and not callable(parameter.default)
    default = f" (default: {parameter.default})" if is_told else ""
    return _escaped(f"{parameter.help or ''}{default}")


def _escaped(text: str) -> str:
    return re.sub(r"([|<*_])", r"\\\1", text)


def python_page() -> str:
    """The public names of the package, as directives that take them from their docstrings, and the questions."""
    package, protocol = importlib.import_module("orchestrator"), importlib.import_module("objectives.base")
    parts = ["# Python\n", "`import orchestrator as sweep` gives these names.\n"]
    names = [name for name in package.__all__ if not name.startswith("_")]
    parts += [f"::: {getattr(package, name).__module__}.{name}\n" for name in names]
    parts += ["## Questions about a sweep\n", "Each is a method of `load(NAME)`, and returns the command's answer.\n"]
    questions = importlib.import_module("orchestrator.answers").query_classes("sweep")
    parts += [_question(kind) for kind in questions if not hasattr(package.SweepResults, kind.query_name())]
    parts += ["## Objectives of your own\n", "A packed objective is an `Objective`, which makes trainers.\n"]
    parts += [f"::: {getattr(protocol, name).__module__}.{name}\n" for name in ("Objective", "Trainer")]
    return "\n".join(parts)


def _question(kind: Any) -> str:
    """A question as a method: its need, its details, and its arguments with their defaults."""
    defaults = kind.defaults()
    rows = [f"| `{name} = {defaults[name]!r}` | {_escaped(option.help)} |" for name, option in kind.options().items()]
    table = ["| argument | meaning |", "| --- | --- |", *rows, ""] if rows else []
    return "\n".join([f"### {kind.query_name()}\n", f"{inspect.cleandoc(kind.__doc__)}\n", *table])


if __name__ == "__main__":
    if broken := broken_links():
        sys.exit("\n".join(["links to nothing:", *broken]))
    write_pages(Path(sys.argv[1]))
