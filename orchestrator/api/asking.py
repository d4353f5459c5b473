"""Asking a question as its command does: what it is asked of, the printed answer, and its files."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.files import (
    LEDGER,
    PICTURES,
    STANDARD_OUTPUT,
    atomic_write,
    check_no_links,
    check_output,
    sweep_folder,
    write_output,
)
from orchestrator.base.query import Query
from orchestrator.render.text import print_blocks, print_text, say_progress

if TYPE_CHECKING:
    from orchestrator.render.answer import Answer


def asked(query: Query[Any], given: Mapping[str, Any]) -> int:
    """Ask ``query``, print the answer, write its files, and return the exit code. Raises SweepError."""
    from orchestrator.render.answer import output_ending

    json_file, output = given["json_"], given["output"]
    check_output(json_file, "--json")
    output_ending(output)
    with ExitStack() as stack:
        subject, folders = subject_of(query, given, stack)
        answer = query.ask(subject, say_progress)
    show(answer, output, json_file, () if query.says_origin else folders)
    for line in followed(query, answer, folders):
        print_text(line, sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout)
    return answer.exit_code


def followed(query: Query[Any], answer: Answer, folders: Sequence[Path]) -> Iterator[str]:
    """Bring trackers up to date where training for ``answer`` has changed sweeps; yield a line for each."""
    if not (query.updates_mirrors or answer.trained_folders):
        return
    from orchestrator.api.upkeep import mirrored

    for folder in answer.trained_folders:
        yield from map(str, mirrored(folder, is_new=True))
    for folder in folders:
        yield from map(str, mirrored(folder))


def subject_of(query: Query[Any], given: Mapping[str, Any], stack: ExitStack) -> tuple[Any, list[Path]]:
    """Return what ``query`` is asked of, and the folders of the sweeps among it; ``stack`` closes their ledgers."""
    results: Path = given["results"]
    match query.subject:
        case "sweep":
            folder = sweep_folder(given["name"], results)
            (table,) = _tables([folder], stack)
            return table, [folder]
        case "sweeps":
            folders = [sweep_folder(name, results) for name in given["names"]]
            return _tables(folders, stack), folders
        case "file":
            from orchestrator.api.sweep_files import overrides, read_sweep, sweep_of_text
            from orchestrator.sweepfile.spec import check_import

            names = ("axis", "drop", "set_", "seeds", "steps", "name")
            changes = overrides(*(given[name] for name in names))
            sweep = sweep_of_text(given["file"], results, changes) if query.takes_texts else None
            sweep = sweep or read_sweep(
                given["file"], results, changes, given["allow_import"], or_text=query.takes_texts
            )
            if query.imports_code:
                check_import(sweep, given["allow_import"])
            return (sweep, results), []
        case "machine":
            return (sweep_folder(given["name"], results) if given["name"] else None, results), []
        case "logs":
            return (given["paths"], results), []
        case _:
            return results, []


def _tables(folders: Iterable[Path], stack: ExitStack) -> list[Any]:
    """The tables of the sweeps in ``folders``; ``stack`` closes their ledgers."""
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.maps.table import read_table

    return [read_table(stack.enter_context(LedgerReader(folder / LEDGER))) for folder in folders]


def show(answer: Answer, output: Path | None, json_file: Path | None, folders: Iterable[Path]) -> None:
    """Print ``answer``, write what `--output` and `--json` ask for, or else the figures and files that it has.

    With `--json -` standard output has the JSON alone, and the text goes to standard error.
    """
    from orchestrator.ledger.reader import origin_notes

    text_to = sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout
    blocks = list(answer.blocks())
    print_blocks(blocks, text_to)
    for line in [*origin_notes(*folders), *_written(answer, blocks, output, json_file)]:
        print_text(line, text_to)


def _written(answer: Answer, blocks: Iterable[Any], output: Path | None, json_file: Path | None) -> list[str]:
    """Write the files of an answer, and return a line for each."""
    from orchestrator.render.answer import output_ending
    from orchestrator.render.blocks import Figure, File

    lines = []
    ending = output_ending(output)
    for block in blocks:
        if isinstance(block, File):
            _write_own(block.path, block.content)
        elif isinstance(block, Figure) and block.path is not None and ending not in PICTURES:
            _write_own(block.path, block.draw(block.path.suffix[1:]))
            lines += [f"picture: {block.path}"] if block.is_listed else []
    if output is not None:
        write_output(output, answer.rendered(ending))
        lines.append(f"wrote {output}")
    if json_file == STANDARD_OUTPUT:
        sys.stdout.write(str(answer.rendered("json")))
        sys.stdout.flush()
    elif json_file is not None:
        write_output(json_file, answer.rendered("json"))
        lines.append(f"wrote {json_file}")
    return lines


def _write_own(path: Path, content: bytes | str) -> None:
    """Write a file that belongs to a sweep into its folder."""
    check_no_links(path.parent.parent, path.parent, path)
    atomic_write(path, content)
