"""Blocks on a terminal: as wide as it is, with its colours; into a pipe, lines as long as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import TextIO

from orchestrator.render.blocks import Block, Drawing
from orchestrator.render.text import WIDTH, block_lines


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
