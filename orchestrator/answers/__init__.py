"""One module a question: what it asks, its answer, and how the answer reads.

A module here has one subclass of `Query`, which is found by itself. The command line, `SweepResults` and the page take
their commands, methods and sections from it.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from orchestrator.base.query import Query, Subject


def names() -> list[str]:
    """Return the names of all questions, which are the modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def query_class(name: str) -> type[Query[Any]]:
    """Return the question ``name``, whose module is imported."""
    module = importlib.import_module(f"{__name__}.{name}")
    (query,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Query) and each.__module__ == module.__name__
    )
    return query


def query_classes(subject: Subject | None = None) -> list[type[Query[Any]]]:
    """Return all questions, or those about ``subject``."""
    # Not by `map` or `list`: modules of these names lie here.
    return [query for query in [query_class(name) for name in names()] if subject in (None, query.subject)]
