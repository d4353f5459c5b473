"""A figure as the bytes of a file, reproducibly."""

from __future__ import annotations

import contextlib
import importlib
import io
import threading
from collections.abc import Callable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from orchestrator.base.files import PICTURES
from orchestrator.render.style import FONT_SIZE

# Metadata that would differ between two files of one picture: program version and date.
_WITHOUT = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}


def saved(draw: Callable[[], Figure], file_format: str, dpi: int, **settings: Any) -> bytes:
    """The figure of ``draw`` as png (``dpi`` dots per inch), svg or pdf; ``settings`` are matplotlib's, _ for a dot.

    Raises ValueError for an unknown format.
    """
    if file_format not in PICTURES:
        raise ValueError(f"format {file_format!r} is unknown: use one of {', '.join(PICTURES)}")
    chosen = {name.replace("_", "."): value for name, value in settings.items()}
    size: dict[str, Any] = {"dpi": dpi} if file_format == "png" else {}
    with matplotlib.rc_context({"svg.hashsalt": "sweep", "font.size": FONT_SIZE, **chosen}):
        buffer = io.BytesIO()
        draw().savefig(buffer, format=file_format, metadata={_WITHOUT[file_format]: None}, **size)
    return buffer.getvalue()


_MODULES = (
    "orchestrator.render.maps",
    "orchestrator.pages.report",
    "matplotlib.backends.backend_agg",
    "scipy.stats",
    "sklearn.ensemble",
    "optuna.importance",
)


def import_ahead() -> threading.Thread:
    """Start the imports in a thread, and return it; an error is left to whoever imports for use."""
    thread = threading.Thread(target=_import_all, daemon=True, name="imports-ahead")
    thread.start()
    return thread


def _import_all() -> None:
    for name in _MODULES:
        with contextlib.suppress(Exception):  # an extra may be missing: the report then leaves something out
            importlib.import_module(name)
