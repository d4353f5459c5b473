"""Texts that every machine has: Python's documentation, licences of packages, and byte tables."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_LICENCES = ("LICEN[CS]E*", "COPYING*", "NOTICE*")
_NUM_TABLES, _ROWS = 100, 256
_TABLES_VERSION = 1


def _documentation(folder: Path) -> list[tuple[str, Path]]:
    """Return the topics of the language reference, which Python ships for its ``help``."""
    from pydoc_data.topics import topics

    contents = ((f"{name}.txt", text.encode()) for name, text in sorted(topics.items()))
    return _written(folder / f"python_docs-{platform.python_version()}", contents)


def _tables(folder: Path) -> list[tuple[str, Path]]:
    """Return tables of bytes without a pattern, as a hex dump shows them: about a megabyte."""
    contents = ((f"{number:03}.txt", _table(number)) for number in range(_NUM_TABLES))
    return _written(folder / f"tables-{_TABLES_VERSION}", contents)


def _table(number: int) -> bytes:
    rows = []
    for row in range(_ROWS):
        content = hashlib.blake2b(f"{number} {row}".encode(), digest_size=8).digest()
        rows.append(f"{number * _ROWS + row:06x}0  {content.hex(' ')}\n")
    return "".join(rows).encode()


def _licences(folder: Path) -> list[tuple[str, Path]]:
    """Return the licences of installed packages."""
    packages = Path(sysconfig.get_paths()["purelib"])
    paths = {path for name in _LICENCES for path in packages.glob(f"*.dist-info/**/{name}") if path.is_file()}
    return [(path.relative_to(packages).as_posix(), path) for path in sorted(paths)]


MADE: Mapping[str, Callable[[Path], list[tuple[str, Path]]]] = {
    "python_docs": _documentation,
    "tables": _tables,
    "licences": _licences,
}


def _written(folder: Path, contents: Iterable[tuple[str, bytes]]) -> list[tuple[str, Path]]:
    """Write files into ``folder``, all or none, unless it exists. Raises ValueError without a place for them."""
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as made:
                whole = Path(made) / folder.name
                whole.mkdir()
                for name, content in contents:
                    (whole / name).write_bytes(content)
                _renamed(whole, folder)
        except OSError as error:
            raise ValueError(f"the text has no place in {folder.parent}: {error}; SWEEP_CACHE moves it") from None
    return [(f"{folder.name}/{path.name}", path) for path in sorted(folder.iterdir())]


def _renamed(source: Path, target: Path) -> None:
    """Move a folder to ``target``, unless another process has made it meanwhile."""
    try:
        os.rename(source, target)
    except OSError:
        if not target.is_dir():
            raise
