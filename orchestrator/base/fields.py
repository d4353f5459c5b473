"""How the fields of a dataclass stand in JSON: under their names, unless one of these says otherwise."""

from __future__ import annotations

from dataclasses import field
from typing import Any

KEY, IS_FLAT = "key", "is_flat"  # in the metadata of a field


def hidden(**options: Any) -> Any:
    """Return a dataclass field that JSON leaves out."""
    return field(metadata={KEY: None}, **options)


def named(key: str, **options: Any) -> Any:
    """Return a dataclass field whose key in JSON is not its name."""
    return field(metadata={KEY: key}, **options)


def flat(**options: Any) -> Any:
    """Return a dataclass field that is a dataclass, whose keys stand in JSON next to its owner's."""
    return field(metadata={IS_FLAT: True}, **options)


class reported(property):
    """A property that JSON has in addition to the fields of its dataclass."""
