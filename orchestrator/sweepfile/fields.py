"""What can be swept or fixed: the fields of an objective, or the placeholders of a custom trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from orchestrator.base.errors import Problem
from orchestrator.base.space import to_hashable
from orchestrator.sweepfile.strict_yaml import Document

_SURE_DIGITS = 15  # significant digits that every double keeps


class Resolved(NamedTuple):
    """A trial's configuration, and the names given for it that have no effect."""

    config: dict[str, Any]
    inert: frozenset[str] = frozenset()


class Fields(Protocol):
    """The names that a sweep file may use under ``axes`` and ``fixed``, and the configurations that they give.

    By default, as for a custom trainer, values are passed on as they are written.
    """

    def problem(self, name: str, value: Any) -> tuple[str, str] | None:
        """Return what is wrong with ``value`` for the field ``name``, and the remedy; None if it is valid."""

    def is_known(self, name: str) -> bool:
        """Whether the field ``name`` exists."""

    def is_integer(self, name: str, ends: Iterable[Any]) -> bool:
        """Whether a range with these ``ends``, as written in the file, holds integers only."""

    def canonical(self, name: str, value: Any) -> Any:
        """Return the canonical form of ``value``: values that the field treats as equal must give the same trial."""
        return to_hashable(value)

    def computed(self, name: str, value: float) -> Any:
        """Turn a computed number into a value of the field ``name``, rounded if the field takes integers only."""
        return without_noise(value)

    def names_files(self, name: str) -> bool:
        """Whether values of ``name`` are file patterns."""
        return False

    def counts_steps(self, name: str) -> bool:
        """Whether values of ``name`` are numbers of steps, and may be written as a share of all steps."""
        return False

    def tokens_per_step(self, settings: Mapping[str, Any]) -> float:
        """Return the tokens of one step of a trial. Raises ValueError if ``settings`` do not determine them."""

    def resolve(self, steps: int, fixed: Mapping[str, Any], cell: Mapping[str, Any]) -> Resolved:
        """Return a trial's configuration. Raises ValueError if the values are incompatible."""

    def acts_where(self, name: str) -> str:
        """Describe the settings under which ``name`` has an effect; empty if they are unknown."""
        return ""


def field_problem(fields: Fields, name: str, value: Any, path: tuple[str, ...], document: Document) -> Problem | None:
    """Return the problem of ``value`` for the field ``name``, which is at ``path`` of the file; None if valid."""
    problem = fields.problem(name, value)
    return Problem(document.place(path), ".".join(path[:2]), *problem) if problem else None


def without_noise(value: float) -> float:
    """Drop the last digits, which rounding errors affect: 0.1 * 3 becomes 0.3, and so the same trial as 0.3."""
    return value if isinstance(value, int) else float(f"{value:.{_SURE_DIGITS}g}")


def lowered(message: str) -> str:
    """Return ``message`` with a small first letter, to continue a sentence, and without the name of a class."""
    message = re.sub(r"valid dictionary or instance of \w+", "mapping of keys to values", message)
    return message[:1].lower() + message[1:]


def shown(value: Any) -> str:
    """Return ``repr(value)``, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
