"""What a question is: a dataclass whose fields are options of a command; and how fields of answers stand in JSON."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

from orchestrator.base.errors import InputError, Problem

# What a question is about: one sweep, several, a sweep file, logs, the folder of results, or this machine.
Subject = Literal["sweep", "sweeps", "file", "logs", "results", "machine"]
Say = Callable[[str], None]
_Asked = TypeVar("_Asked")
KEY, IS_FLAT = "key", "is_flat"  # in the metadata of an answer's field
_NEXT_AXIS = re.compile(r",(?=[^,={}]+=)")


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of a question is given: help, metavar, and bounds of a number.

    ``read`` turns what the command line has, a text or a tuple of texts, into the value of the field. ``opposite`` is
    the flag that switches the field off. ``is_argument`` marks a positional argument.
    """

    help: str
    metavar: str | None = None
    flag: str | None = None
    opposite: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    read: Callable[[Any], Any] | None = None
    is_argument: bool = False
    panel: str | None = None


def option(default: Any, help: str, **more: Any) -> Any:
    """Return a dataclass field with a ``default`` and its `Option`; ``more`` are the fields of that."""
    metadata = {"option": Option(help, **more)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def silent(text: str) -> None:
    """Say nothing."""


class Query(ABC, Generic[_Asked]):
    """A question. Its docstring is the help of its command: the need in the first line, then details and an example.

    ``panel`` is where `sweep --help` lists it, ``subject`` what it is about, and ``section`` its heading on a sweep's
    page, empty if it has none there.
    """

    panel: ClassVar[str] = "choose"
    subject: ClassVar[Subject] = "sweep"
    section: ClassVar[str] = ""
    imports_code: ClassVar[bool] = False  # which the sweep file names, and needs --allow-import
    says_origin: ClassVar[bool] = False  # in its answer, if results are imported; the command adds it otherwise
    takes_texts: ClassVar[bool] = False  # in place of a sweep file: a question about what gpt would train on
    updates_mirrors: ClassVar[bool] = False  # so that trackers have the answer too

    @classmethod
    def on_page(cls, subject: _Asked) -> Query[_Asked] | None:
        """Return the question whose answer is a page's section; None without one, as if the answer would take long."""
        return cls()

    @abstractmethod
    def ask(self, subject: _Asked, say: Say = silent) -> Any:
        """Return the answer. ``say`` takes a line about progress. Raises InputError."""

    @classmethod
    def query_name(cls) -> str:
        """Return the name of its command and of its method in Python, which its module has."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return its options by the names of the fields."""
        return {one.name: one.metadata["option"] for one in _fields(cls)}

    @classmethod
    def types(cls) -> dict[str, Any]:
        """Return the types of its fields by their names."""
        hints = get_type_hints(cls)
        return {one.name: hints[one.name] for one in _fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default of each field; a mapping and a sequence are empty."""
        return {one.name: {} if callable(one.default_factory) else one.default for one in _fields(cls)}

    @classmethod
    def from_texts(cls, values: Mapping[str, Any]) -> Any:
        """Return the question with ``values`` as the command line has them. Raises InputError."""
        read = {name: each.read for name, each in cls.options().items()}
        return cls(**{name: _value(value, read[name]) for name, value in values.items()})


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return tuple(one for one in fields(cls) if "option" in one.metadata)


def _value(value: Any, read: Callable[[Any], Any] | None) -> Any:
    value = tuple(value) if isinstance(value, list) else value
    return value if read is None or value is None else read(value)


def conditions(texts: Sequence[str], option: str = "--where") -> dict[str, str]:
    """Return AXIS=VALUE ``texts`` of an option as a mapping. Raises InputError."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(Problem(option, text, "is not AXIS=VALUE", "write e.g. clip=none"))
        if pairs.setdefault(key.strip(), value.strip()) != value.strip():
            raise InputError(Problem(option, text, "is a second value of the axis", "give one"))
    return pairs


def cell_conditions(text: str, option: str = "--cell") -> dict[str, str]:
    """Return the AXIS=VALUE,... of a cell. A value may have commas that no other axis follows."""
    return conditions(_NEXT_AXIS.split(text), option)


def number_range(text: str, option: str = "--range") -> tuple[float, float]:
    """Return the ends of the range LOW:HIGH. Raises InputError."""
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise InputError(Problem(f"{option} {text}", "", "is not LOW:HIGH", f"write e.g. {option} 1e-4:1e-1"))
    return ends


# --- fields of answers ---------------------------------------------------------------------------


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
