"""An answer that prints, and ends a notebook's cell, as the lines of its command in place of every field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class InWords:
    """An answer that says itself in ``lines``; its ``repr`` keeps every field."""

    __slots__ = ()

    def lines(self) -> Iterable[str]:
        """What its command prints of it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Of the first class that has either, IPython takes this or `__repr__`, and a dataclass has a `__repr__`.
        cls._repr_pretty_ = InWords._repr_pretty_  # type: ignore[method-assign]

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """For a notebook."""
        printer.text(str(self))
