"""An answer: fields, which are its JSON, and blocks that say it in words, tables and figures."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import EXIT_OK, InputError, Problem
from orchestrator.base.files import PICTURES, check_output
from orchestrator.base.query import IS_FLAT, KEY, reported
from orchestrator.base.space import Axis
from orchestrator.base.trial_result import TrialResult
from orchestrator.render.blocks import Block, Figure, Table
from orchestrator.render.html import answer_document, blocks_html
from orchestrator.render.text import text_lines

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = ("txt", "json", "csv", "html", *PICTURES)


class Answer(ABC):
    """The answer to a question: a frozen dataclass. Its fields are its JSON, its blocks are what people read."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # IPython takes this or `__repr__` from the first class that has either, and a dataclass has a `__repr__`.
        cls._repr_pretty_ = Answer._repr_pretty_  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of what was computed: the field ``result``, if the answer has one."""
        if name.startswith("_") or "result" not in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(object.__getattribute__(self, "result"), name)

    @abstractmethod
    def blocks(self) -> Iterable[Block]:
        """Yield what is said, the answer itself first."""

    @property
    def title(self) -> str:
        """What the answer is about, for the title of a file."""
        return type(self).__name__

    @property
    def exit_code(self) -> int:
        """The exit code of its command."""
        return EXIT_OK

    @property
    def trained_folders(self) -> Sequence[Path]:
        """The folders of sweeps that were trained for it, which trackers get like any other run's."""
        return ()

    @property
    def is_worth_showing(self) -> bool:
        """Whether a page shows it: not if it has nothing to say."""
        return True

    def lines(self, width: int | None = None) -> list[str]:
        """Return what its command prints, in lines of at most ``width`` characters."""
        return list(text_lines(self.blocks(), width))

    def to_plain(self) -> Any:
        """Return everything it knows, as JSON has it."""
        return to_plain(self)

    def frame(self) -> pd.DataFrame:
        """Return its table of numbers, for CSV and notebooks; without one, its first table of texts.

        Raises InputError if it has no table.
        """
        import pandas as pd

        for block in self.blocks():
            if isinstance(block, Table):
                return pd.DataFrame(block.rows, columns=list(block.head))
        raise InputError(Problem("--output", ".csv", "the answer has no table", "choose .txt, .json or .html"))

    def figure(self) -> Figure:
        """Return its figure. Raises InputError if it has none."""
        for block in self.blocks():
            if isinstance(block, Figure):
                return block
        raise InputError(Problem("--output", "", "the answer has no figure", "choose .txt, .json, .csv or .html"))

    def rendered(self, ending: str) -> bytes | str:
        """Return the content of a file with this ending, one of ENDINGS. Raises InputError if it has no such form."""
        match ending:
            case "txt":
                return "\n".join([*self.lines(), ""])
            case "json":
                return to_json(self.to_plain())
            case "csv":
                from orchestrator.maps.tables import as_csv

                return as_csv(self.frame())
            case "html":
                return answer_document(self.title, self.blocks())
            case _:
                return self.figure().draw(ending)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """Show the lines in a terminal session of IPython."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        """Show headings, tables and figures in a notebook."""
        return blocks_html(self.blocks())


def output_ending(path: Path | None) -> str:
    """Return the ending of the file of `--output`, empty without one.

    Raises InputError if it is not one of ENDINGS, or if the file cannot be written there.
    """
    if path is None:
        return ""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in ENDINGS:
        *most, last = (f".{each}" for each in ENDINGS)
        raise InputError(
            Problem("--output", str(path), "its ending names no format", f"end it in {', '.join(most)} or {last}")
        )
    check_output(path)
    return ending


_OF_TRIAL = ("trial_id", "cell", "seed", "status", "outcome", "reason")  # what JSON has about a trial in an answer


def to_plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: mappings, lists, text, numbers, and null for a number that is not finite.

    A dataclass becomes a mapping of its fields and `reported` properties, an axis its name. Raises TypeError for what
    has no such form.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Axis):
        return value.name
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, TrialResult):
        return {name: to_plain(getattr(value, name)) for name in _OF_TRIAL}
    if is_dataclass(value) and not isinstance(value, type):
        return _of_dataclass(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [to_plain(each) for each in value]
    if isinstance(value, Set):
        return sorted(map(to_plain, value))
    if hasattr(value, "tolist"):  # a number or an array of numpy
        return to_plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def to_json(value: Any) -> str:
    """Return ``value`` as the text of a JSON file."""
    return json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n"


def _of_dataclass(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for each in fields(value):
        key = each.metadata.get(KEY, each.name)
        if each.metadata.get(IS_FLAT):
            plain |= to_plain(getattr(value, each.name)) or {}
        elif key is not None:
            plain[key] = to_plain(getattr(value, each.name))
    for parent in reversed(type(value).__mro__):
        for name, member in vars(parent).items():
            if isinstance(member, reported):
                plain[name] = to_plain(getattr(value, name))
    return plain
