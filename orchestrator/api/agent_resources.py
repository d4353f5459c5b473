"""What agents may read besides tools: of each sweep its file, and its map as text and as a picture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from orchestrator.answers.map import MapQuery
from orchestrator.api.asking import subject_of
from orchestrator.base.errors import InputError, Problem
from orchestrator.base.files import frozen_text, sweep_names

SCHEME = "sweep://"
PAGE = 100  # sweeps that are listed at a time


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing to read of each sweep: its name at the end of the address, and what it is."""

    name: str
    mime_type: str
    description: str
    read: Callable[[str, Path], str | bytes]


def _map(ending: str) -> Callable[[str, Path], str | bytes]:
    def read(name: str, results: Path) -> str | bytes:
        query = MapQuery()
        with ExitStack() as stack:
            subject, _ = subject_of(query, {"name": name, "results": results}, stack)
            return query.ask(subject).rendered(ending)

    return read


KINDS = {
    kind.name: kind
    for kind in (
        Kind("sweep.yaml", "application/yaml", "the sweep file", lambda name, results: frozen_text(results / name)),
        Kind("map.txt", "text/plain", "the stability map as text", _map("txt")),
        Kind("map.png", "image/png", "the stability map as a picture", _map("png")),
    )
}


def address_of(name: str, kind: str) -> str:
    """Return the address of a resource."""
    return f"{SCHEME}{quote(name, safe='')}/{kind}"


def listed_resources(results: Path, cursor: str | None) -> tuple[list[tuple[str, Kind]], str | None]:
    """Return sweeps, each with each kind, after the one that ``cursor`` names; and the next cursor, if more follow."""
    names = [name for name in sweep_names(results) if cursor is None or name > cursor]
    page = names[:PAGE]
    return [(name, kind) for name in page for kind in KINDS.values()], page[-1] if len(names) > PAGE else None


def read_resource(address: str, results: Path) -> tuple[Kind, str | bytes]:
    """Return what is at ``address``. Raises SweepError; no name of a folder leads out of the results."""
    name, _, end = address.removeprefix(SCHEME).rpartition("/")
    if not address.startswith(SCHEME) or end not in KINDS:
        remedy = f"{SCHEME}NAME/ with {', '.join(KINDS)}"
        raise InputError(Problem("resource", address[:200], "is not known", remedy))
    name = unquote(name)
    if name not in sweep_names(results):
        raise InputError(Problem("resource", address[:200], "is not a sweep's", "see the tool `list`"))
    return KINDS[end], KINDS[end].read(name, results)
