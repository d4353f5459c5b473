"""Sweep files: reading one, `sweep init`, which writes one to start from, and `sweep objectives`."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from objectives.models.facts.text import NAMED_TEXTS
from orchestrator.api.presets import CONFIGS, preset_changes
from orchestrator.api.presets import NUM_TRIALS as PRESET_TRIALS
from orchestrator.base.errors import EXIT_OK, InputError, Problem, did_you_mean
from orchestrator.base.files import FROZEN_SWEEP, LEDGER, check_output, sweep_names, write_output
from orchestrator.render.blocks import Table
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import Sweep, build_sweep, load_sweep
from orchestrator.sweepfile.starter import (
    objectives_with_rows,
    script_starter,
    shipped_sweep,
    shipped_sweeps,
    starter_file,
)
from orchestrator.sweepfile.strict_yaml import parse_document, text_of

if TYPE_CHECKING:
    from orchestrator.render.text import Lines


def overrides(
    axes: Sequence[str] = (),
    drops: Sequence[str] = (),
    sets: Sequence[str] = (),
    seeds: str | None = None,
    steps: int | None = None,
    name: str | None = None,
) -> Overrides:
    """The options that change a sweep file."""
    return Overrides(tuple(axes), tuple(sets), seeds, steps, name, tuple(drops))


def read_sweep(file: str, results: Path, changes: Overrides, allow_import: bool, *, or_text: bool = False) -> Sweep:
    """A sweep from its file, from the frozen file in its folder, or from the sweeps that ship. Raises InputError.

    With ``or_text`` a text could have been named in its place.
    """
    from orchestrator.ledger.reader import check_not_imported

    path = Path(file)
    for folder in (path, results / file):
        if not os.path.isfile(path) and os.path.isfile(folder / FROZEN_SWEEP):
            path = folder / FROZEN_SWEEP
    if path == Path(file) and not os.path.isfile(path):
        for folder in (path, results / file):
            check_not_imported(folder)
    if not path.exists():
        path = shipped_sweep(file) or path
    if not path.exists():
        known = [*shipped_sweeps(), *sweep_names(results), *glob.glob("*.yaml"), *(NAMED_TEXTS if or_text else ())]
        remedy = (
            "name a file, folder or glob of text, or a sweep" if or_text else "`sweep init NAME` writes a sweep file"
        )
        raise InputError(Problem(file, "", "no such file", did_you_mean(file, known) or remedy))
    return load_sweep(path, changes, allow_import=allow_import)


def sweep_of_text(file: str, results: Path, changes: Overrides) -> Sweep | None:
    """A sweep that would train on the text ``file``, a path or a name; None if it names a sweep. Raises InputError."""
    path = Path(file)
    is_sweep = path.suffix in (".yaml", ".yml") or any(
        os.path.isfile(folder / FROZEN_SWEEP) or (folder / LEDGER).exists() for folder in (path, results / file)
    )
    is_text = file in NAMED_TEXTS or os.path.exists(file) or any(glob.iglob(file, recursive=True))
    if is_sweep or not is_text:
        return None
    document = {"name": "text", "objective": "gpt", "steps": 1, "fixed": {"text": [file]}}
    return build_sweep(parse_document(text_of(document), file), changes)


def init(
    name: str,
    objective: str | None,
    command: str | None,
    changes: Overrides,
    output: Path | None,
    shipped: str | None = None,
    target: str | None = None,
    num_trials: int | None = None,
    preset: str | None = None,
    goal: str | None = None,
) -> Lines:
    """Write the starter file of a sweep ``name`` to ``output`` or NAME.yaml. Raises InputError if it exists.

    With ``shipped`` it is a copy of a sweep that ships, or fixes what a configuration has. With ``target`` it has small
    models, ``num_trials`` in all, that predict the edge of a large one, with ``preset`` or ``goal`` a search.
    """
    if objective is not None and command is not None:
        message = "cannot be combined with --command, which is what is trained"
        raise InputError(Problem("--objective", "", message, "give one option"))
    said: list[str] = []
    is_search = preset is not None or goal is not None
    config = None if shipped is None or Path(shipped).suffix.lower() not in CONFIGS else Path(shipped)
    if num_trials is not None and target is None and not is_search:
        remedy = "add one, or leave it out"
        raise InputError(Problem("--trials", str(num_trials), "is an option of --for, --preset and --goal", remedy))
    if target is not None and (is_search or config is not None):
        message = "plans its own search, and cannot be combined with --preset, --goal or a configuration"
        raise InputError(Problem("--for", target, message, "give one"))
    if is_search or config is not None:
        shipped = None if config is not None else shipped
        changes, said = preset_changes(
            preset, goal, config, objective or "gpt", command, changes, num_trials or PRESET_TRIALS
        )
    if target is not None and shipped is None:
        from orchestrator.api.proxies import NUM_TRIALS, proxies_for

        changes, said = proxies_for(target, num_trials or NUM_TRIALS, changes)
    if shipped is not None:
        text = _copy(name, shipped, objective is command is target is None and changes == Overrides() and not is_search)
    elif command is None:
        text = starter_file(name, objective or "gpt", changes)
    else:
        text = script_starter(name, command, changes)
    if target is not None:
        text = f"# Where is the edge at {target}?\n" + text.split("\n", 1)[1]
    path = output or Path(f"{name}.yaml")
    if path.exists():
        raise InputError(Problem(str(path), "", "already exists", "choose another name, or --output FILE"))
    check_output(path)
    write_output(path, text)
    yield from (line.replace("NAME", name) for line in said)
    yield f"wrote {path}; next: sweep {'plan' if command is None else 'check'} {path}"
    return EXIT_OK


def _copy(name: str, shipped: str, is_alone: bool) -> str:
    """The file of a sweep that ships, with its comments, under another name. Raises InputError where there is none."""
    there = shipped_sweeps()
    if (source := shipped_sweep(shipped)) is None:
        raise InputError(Problem("--from", shipped, "is not a sweep that ships", f"choose {', '.join(there)}"))
    if not is_alone:
        message = "copies a file as it is, and other options change what is in it"
        raise InputError(Problem("--from", shipped, message, "leave them out, and edit the copy"))
    return re.sub(r"(?m)^name: .*$", f"name: {name}", source.read_text(), count=1)


def objectives(name: str | None = None, match: str | None = None) -> Lines:
    """A table for each objective, or for ``name`` alone: its fields with default, unit, domain and meaning.

    With ``match`` only fields whose name or meaning has these letters. Raises InputError where there is none.
    """
    names = [objective.name for objective, _ in objectives_with_rows()]
    if name is not None and name not in names:
        raise InputError(Problem("NAME", "", f"{name} is not an objective", f"choose {', '.join(names)}"))
    found = [
        (objective, _matching(rows, match))
        for objective, rows in objectives_with_rows()
        if name in (None, objective.name)
    ]
    if match is not None and not any(rows for _, rows in found):
        raise InputError(Problem("--match", "", f"no field has {match!r} in its name or meaning", "leave it out"))
    for objective, rows in found:
        if rows:
            title = f"{objective.name}: {objective.summary}"
            yield Table(("field", "default", "unit", "domain", "meaning"), tuple(rows), title=title)
            yield ""
    return EXIT_OK


def _matching(rows: Iterable[tuple[str, ...]], match: str | None) -> list[tuple[str, ...]]:
    """The rows whose first word, the name, or last, the meaning, has the letters."""
    return [row for row in rows if match is None or match.lower() in f"{row[0]} {row[-1]}".lower()]
