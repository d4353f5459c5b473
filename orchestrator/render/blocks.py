"""The parts of an answer: headings, lines, tables, figures and cautions. Each medium renders them in its own way."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Heading:
    """A title above the blocks that follow."""

    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence or more. ``indent`` is its depth below the line before it, in steps of two characters."""

    text: str
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Caution:
    """A sentence that limits what the answer may be used for; ``label`` introduces it."""

    text: str
    label: str = "caution"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts below a ``head``, which may be empty. ``right`` are the places of columns that align right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    indent: int = 0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture made of characters, which is not wrapped; ``text`` has the colours of a terminal."""

    text: Text


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as the bytes of a file, drawn by ``draw`` in the format it is given: png, svg or pdf.

    ``path`` is where the command writes it if no other file is asked for; one that ``is_listed`` has a line there.
    """

    draw: Callable[[str], bytes]
    alt: str
    path: Path | None = None
    is_listed: bool = True


def picture_of(place: str, *shown: Any) -> Callable[[str], bytes]:
    """Return what draws ``shown`` by MODULE:FUNCTION of `render`, which is imported when it draws: that is slow."""

    def draw(file_format: str) -> bytes:
        module, _, function = place.partition(":")
        drawn: bytes = getattr(importlib.import_module(f"{__package__}.{module}"), function)(file_format, *shown)
        return drawn

    return draw


@dataclass(frozen=True, slots=True)
class File:
    """A text file that belongs to the answer, such as a small sweep that tests it. Its command writes it."""

    path: Path
    content: str


Block = Heading | Line | Caution | Table | Drawing | Figure | File
