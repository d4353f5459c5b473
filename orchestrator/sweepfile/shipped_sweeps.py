"""The sweep files that ship: beside the package in a clone, within it where it is installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "shipped", _PACKAGE.parent / "sweeps")


def shipped_sweeps() -> dict[str, Path]:
    """The file of each sweep that ships, by its name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.yaml"))}
