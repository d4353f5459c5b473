"""The answer of a command, and how it is printed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.base.errors import printable
from orchestrator.base.files import STANDARD_OUTPUT, write_output

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def written_json(path: Path | None, content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Write ``content`` to the file of ``--json``, if there is one; numbers that are not finite become null."""
    if path is None:
        return
    text = json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"
    if path == STANDARD_OUTPUT:
        yield Document(text)
        return
    write_output(path, text)
    yield f"wrote {path}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
