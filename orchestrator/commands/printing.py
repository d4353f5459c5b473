"""The answer of a command, and how it is printed."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from orchestrator.errors import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# Lines of text, or rich's tables and coloured text; returns the exit code.
Answer = Generator["str | RenderableType", None, int]

_WIDE = 1000  # columns; tables fit the width of a terminal, but are never cut in a file


def show(answer: Answer) -> int:
    """Print ``answer`` as it arrives; returns its exit code."""
    try:
        while True:
            _print(next(answer))
    except StopIteration as ended:
        return ended.value
    finally:
        answer.close()


def _print(item: str | RenderableType) -> None:
    if isinstance(item, str):
        print(printable(item), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(item, soft_wrap=isinstance(item, Text))
