"""A picture of progress that a notebook shows in one place, and replaces while a sweep runs."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, RenderableType

_FORMAT = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'
_WIDTH = 115  # columns
# As IPython's `display`: takes a picture by media type, and returns a handle whose `update` replaces it.
Display = Callable[..., Any]


class NotebookFrame:
    """What rich's ``Live`` is on a terminal, which in a notebook would need widgets."""

    def __init__(self, display: Display) -> None:
        """A frame that appears with its first picture."""
        self._display = display
        self._handle: Any = None

    def update(self, picture: RenderableType, *, refresh: bool = True) -> None:
        """Show ``picture`` in place of the last one."""
        if self._handle is None:
            self._handle = self._display(bundle(picture), raw=True, display_id=True)
        else:
            self._handle.update(bundle(picture), raw=True)


def bundle(picture: RenderableType) -> Mapping[str, str]:
    """``picture`` as a notebook takes it: plain text, and HTML with colours."""
    console = Console(file=io.StringIO(), record=True, force_jupyter=False, width=_WIDTH)
    console.print(picture, highlight=False)
    return {
        "text/plain": console.export_text(clear=False),
        "text/html": console.export_html(inline_styles=True, code_format=_FORMAT),
    }
