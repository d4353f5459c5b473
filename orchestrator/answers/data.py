"""What is in the text that a sweep trains on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.query import Query, Say, Subject, option, silent
from orchestrator.base.words import count
from orchestrator.render.answer import Answer
from orchestrator.render.blocks import Block, Heading, Line, Table

if TYPE_CHECKING:
    from pathlib import Path

    from objectives.models.inspection import Level, TextReport
    from orchestrator.sweepfile.spec import Sweep

_MOST_TEXTS = 8


def _unescaped(text: str) -> str:
    """Return the separator that a shell passes on as it is typed."""
    if not text:
        raise InputError(Problem("--separator", "", "is empty", "leave the option out for one document a file"))
    return text.replace(r"\n", "\n").replace(r"\t", "\t")  # as the field does


@dataclass(frozen=True, slots=True, kw_only=True)
class DataQuery(Query["tuple[Sweep, Path]"]):
    """Show the duplicates and the least typical documents of the text that a sweep trains on, or of a text itself.

    Each text is examined as it is trained on, with its noise, copies and filters. A path that is not a sweep is a text.
    For example `sweep data lr_warmup --separator '\\n\\n'`, `sweep data corpus.txt --set fixed.dedup=near`.
    """

    panel: ClassVar[str] = "look"
    subject: ClassVar[Subject] = "file"
    takes_texts: ClassVar[bool] = True

    separator: str | None = option(
        None, "what ends a document within a file, such as '\\n\\n'; as in the sweep file if left out", read=_unescaped
    )

    def ask(self, subject: tuple[Sweep, Path], say: Say = silent) -> DataAnswer:
        """Return what is in each text of a sweep. Raises InputError if its objective has no text."""
        from objectives.models.inspection import inspected
        from orchestrator.driver.texts import texts_of

        sweep = subject[0]
        if not (found := texts_of(sweep)):
            message = f"{sweep.objective.name} trains on no text"
            raise InputError(Problem(f"sweep {sweep.name}", "objective", message, "name a sweep of gpt"))
        reports = []
        for number, (text, recipe) in enumerate(found[:_MOST_TEXTS]):
            say(f"reading text {number + 1} of {len(found[:_MOST_TEXTS])}")
            try:
                reports.append(inspected(text, replace(recipe, separator=self.separator or recipe.separator)))
            except ValueError as error:
                remedy = "name another text, or more files"
                raise InputError(Problem("sweep data", "", str(error), remedy)) from None
        return DataAnswer(sweep.name, tuple(reports), len(found) - len(reports))


@dataclass(frozen=True, slots=True)
class DataAnswer(Answer):
    """What is in the texts of a sweep."""

    sweep: str
    texts: tuple[TextReport, ...]
    num_more: int

    def blocks(self) -> Iterator[Block]:
        """Yield each text with its duplicates and its least typical documents."""
        for text in self.texts:
            changes = ", ".join(f"{name} {value}" for name, value in text.recipe.items())
            yield Heading(text.text + (f" ({changes})" if changes else ""))
            yield Line(f"{count(text.num_bytes, 'byte')} to train on, from {count(text.num_files, 'file')}")
            yield Table(
                ("level", "number", "exact duplicates", "share", "near duplicates", "share"),
                tuple(map(_row, text.levels)),
                right=(1, 2, 3, 4, 5),
            )
            for name, score in (("compression", text.compression), ("perplexity", text.perplexity)):
                yield Line(f"{name}: median {score.median:.3g}, 90 % within {score.low:.3g} to {score.high:.3g}")
            if not text.untypical:
                yield Line("too few documents to say which are the least typical; --separator divides a file")
                continue
            yield Table(
                ("least typical document", "at byte", "bytes", "compression", "perplexity"),
                tuple(
                    (one.file, f"{one.offset:,}", f"{one.size:,}", f"{one.compression:.3g}", f"{one.perplexity:.3g}")
                    for one in text.untypical
                ),
                right=(1, 2, 3, 4),
            )
        if self.num_more:
            yield Line(f"and {self.num_more} more texts, which --drop and --set leave out or choose")


def _row(level: Level) -> tuple[str, ...]:
    examined = f"{level.num:,}" if level.num == level.num_examined else f"{level.num_examined:,} of {level.num:,}"
    return (
        level.level,
        examined,
        f"{level.num_exact:,}",
        f"{level.exact_share:.1%}",
        f"{level.num_near:,}",
        f"{level.near_share:.1%}",
    )
