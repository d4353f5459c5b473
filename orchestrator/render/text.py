"""Text on a terminal or in a file: the blocks of an answer, and the lines of a command that acts."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from orchestrator.base.errors import printable
from orchestrator.render.blocks import Block, Caution, Drawing, Figure, File, Heading, Line, Table

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 80  # columns of a terminal that nobody has widened
_STEP = 2  # characters of one indent
_GAP = 2  # characters between columns
_NARROWEST = 10  # characters to which a column is folded


def text_lines(blocks: Iterable[Block], width: int | None = None) -> Iterator[str]:
    """Yield the lines of ``blocks``, at most ``width`` characters long; None leaves them as long as they are.

    Figures and files have no lines: a command says where it writes them.
    """
    for block in blocks:
        yield from block_lines(block, width)


def block_lines(block: Block, width: int | None = None) -> Iterator[str]:
    """Yield the lines of one block."""
    match block:
        case Heading():
            yield from _wrapped(block.text, 0, width)
        case Line():
            yield from _wrapped(block.text, block.indent * _STEP, width)
        case Caution():
            yield from _wrapped(f"{block.label}: {block.text}", 0, width)
        case Table():
            yield from table_lines(block, width)
        case Drawing():
            yield from block.text.plain.rstrip("\n").split("\n")
        case Figure() | File():
            return


def _wrapped(text: str, indent: int, width: int | None) -> list[str]:
    """The lines of a paragraph; those after the first are indented one step further."""
    lines = []
    for part in printable(text).split("\n"):
        if width is None:
            lines.append(" " * indent + part)
            continue
        # A caller aligns with leading spaces, which a wrapped text keeps.
        own = len(part) - len(part.lstrip())
        first, later = " " * (indent + own), " " * (indent + own + _STEP)
        lines += textwrap.wrap(
            part.strip(), width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False
        ) or [""]
    return lines


def table_lines(table: Table, width: int | None = None) -> Iterator[str]:
    """Yield a table's lines: its title, its head if it has one, and its rows, whose cells are folded to fit."""
    if table.title:
        yield from _wrapped(table.title, table.indent * _STEP, width)
    rows = [tuple(map(printable, row)) for row in ((table.head,) if any(table.head) else ()) + table.rows]
    if not rows:
        return
    room = None if width is None else width - table.indent * _STEP
    widths = _widths(rows, room)
    for row in rows:
        cells = [_folded(cell, size) for cell, size in zip(row, widths, strict=True)]
        for at in range(max(map(len, cells))):
            parts = [cell[at] if at < len(cell) else "" for cell in cells]
            line = (" " * _GAP).join(
                part.rjust(size) if i in table.right else part.ljust(size)
                for i, (part, size) in enumerate(zip(parts, widths, strict=True))
            )
            yield " " * (table.indent * _STEP) + line.rstrip()


def _widths(rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """The widths of the columns; the widest are narrowed until all fit."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while room is not None and sum(widths) + _GAP * (len(widths) - 1) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _folded(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)


def print_blocks(blocks: Iterable[Block], to: TextIO) -> None:
    """Print ``blocks`` as they come."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns if to.isatty() else None
    for block in blocks:
        if isinstance(block, Drawing) and to.isatty():
            from rich.console import Console

            Console(file=to).print(block.text, soft_wrap=True)
            continue
        for line in block_lines(block, width):
            print(line, file=to, flush=True)


# Lines of text, or rich's tables and coloured text; returns the exit code.
Lines = Generator["str | RenderableType", None, int]

_WIDE = 1000  # columns; tables fit the width of a terminal, but are never cut in a file


class Document(str):
    """The content of a file that is printed instead, as it is."""

    __slots__ = ()


def show(answer: Lines, text_to: TextIO | None = None) -> int:
    """Print ``answer`` as it arrives, its text to ``text_to`` or standard output; returns its exit code."""
    try:
        while True:
            _print(next(answer), text_to or sys.stdout)
    except StopIteration as ended:
        return ended.value
    finally:
        answer.close()


def _print(item: str | RenderableType, text_to: TextIO) -> None:
    if isinstance(item, Document):
        print(item, end="", flush=True)
        return
    if isinstance(item, str):
        print(printable(item), file=text_to, flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=text_to, width=None if text_to.isatty() else _WIDE)
    console.print(item, soft_wrap=isinstance(item, Text))
