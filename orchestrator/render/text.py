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
    from rich.text import Text

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
            part.strip(),
            width,
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,  # a path or an address stays whole
            break_on_hyphens=False,
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
    """The widths of the columns; the widest are narrowed until all fit, to less than a word only if they must."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    for least in (words, [_NARROWEST] * len(words)):
        while room is not None and sum(widths) + _GAP * (len(widths) - 1) > room:
            wide = [i for i, width in enumerate(widths) if width > least[i]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
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


def print_text(text: str, to: TextIO) -> None:
    """Print ``text``, which breaks between words on a terminal."""
    print_blocks([Line(text)], to)


def say_progress(text: str) -> None:
    """Print a line about progress, apart from the answer."""
    print_text(text, sys.stderr)


# Lines of text, tables, or rich's coloured text; returns the exit code.
Lines = Generator["str | Table | Text", None, int]


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


def _print(item: str | Table | Text, text_to: TextIO) -> None:
    if isinstance(item, Document):
        print(item, end="", flush=True)
    elif isinstance(item, str):
        print_text(item, text_to)
    elif isinstance(item, Table):
        print_blocks([item], text_to)
    else:
        from rich.console import Console

        Console(file=text_to).print(item, soft_wrap=True)
