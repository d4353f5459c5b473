"""The answers of Python's `SweepResults` that print as the lines of their commands.

Each is the answer that it extends, and says itself; `in_words` makes it from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from orchestrator.base.in_words import InWords
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.diagnosis_text import diagnosis_page
from orchestrator.causes.explanation import Explanation
from orchestrator.causes.explanation_text import explanation_lines
from orchestrator.causes.remedies.answer_text import remedies_lines
from orchestrator.causes.remedies.cells import CellRemedies
from orchestrator.causes.remedies.cells_text import cell_remedies_lines, cell_remedies_table
from orchestrator.causes.remedies.results import Remedies
from orchestrator.maps.comparison import Comparison
from orchestrator.maps.comparison_text import comparison_lines
from orchestrator.maps.fitted_comparison import FittedComparison
from orchestrator.maps.fitted_comparison_text import fitted_comparison_lines
from orchestrator.maps.front import Front
from orchestrator.maps.front_text import front_lines

_Told = TypeVar("_Told", bound=InWords)


@dataclass(frozen=True, slots=True)
class ToldDiagnosis(Diagnosis, InWords):
    """A diagnosis of a trial of the sweep in ``folder``, with the advice."""

    folder: Path

    def lines(self) -> list[str]:
        """What `sweep diagnose` prints."""
        return diagnosis_page(self, self.folder)


@dataclass(frozen=True, slots=True)
class ToldExplanation(Explanation, InWords):
    """An explanation of a map."""

    def lines(self) -> Iterator[str]:
        """What `sweep explain` prints."""
        return explanation_lines(self)


@dataclass(frozen=True, slots=True)
class ToldComparison(Comparison, InWords):
    """A comparison on shared cells."""

    def lines(self) -> list[str]:
        """What `sweep compare` prints."""
        return comparison_lines(self)


@dataclass(frozen=True, slots=True)
class ToldFittedComparison(FittedComparison, InWords):
    """A comparison on fitted surfaces."""

    def lines(self) -> list[str]:
        """What `sweep compare` prints."""
        return fitted_comparison_lines(self)


@dataclass(frozen=True, slots=True)
class ToldFront(Front, InWords):
    """The front of two numbers."""

    def lines(self) -> Iterator[str]:
        """What `sweep front` prints."""
        return front_lines(self)


@dataclass(frozen=True, slots=True)
class ToldRemedies(Remedies, InWords):
    """What was tried on forks of one trial."""

    def lines(self) -> Iterator[str]:
        """What `sweep remedy` prints."""
        return remedies_lines(self)


@dataclass(frozen=True, slots=True)
class ToldCellRemedies(CellRemedies, InWords):
    """The cheapest remedy of each unstable cell."""

    def lines(self) -> Iterator[str]:
        """What `sweep remedy --each-cell` prints."""
        return cell_remedies_lines(self)

    @property
    def table(self) -> pd.DataFrame:
        """A row for each unstable cell, as in remedies.csv."""
        return cell_remedies_table(self)


def in_words(kind: type[_Told], answer: Any, **more: Any) -> _Told:
    """``answer``, a dataclass that ``kind`` extends, as one of that kind; ``more`` are the fields that it adds."""
    return kind(**{one.name: getattr(answer, one.name) for one in fields(answer)}, **more)
