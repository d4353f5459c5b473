"""What looks after results: `sweep sync`, `report`, `export optuna`, `gc`, `ui` and `page`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from orchestrator.answers._tracked import tracked_answers
from orchestrator.base.environment import install_command
from orchestrator.base.errors import EXIT_OK, InputError, Problem, SweepError
from orchestrator.base.files import (
    DIAGNOSES,
    EXPLANATION,
    EXPORTED,
    FROZEN_SWEEP,
    LEDGER,
    REMEDIES,
    REMEDY_MAP,
    REMEDY_TABLE,
    litter,
    remove,
    sweep_lock,
    unneeded_checkpoints,
)
from orchestrator.base.processes import MARK, dead_scratch, end_marked, new_mark
from orchestrator.base.words import count
from orchestrator.driver.progress import stop_signals
from orchestrator.ledger.reader import LedgerReader, is_imported
from orchestrator.mirrors.mirror import Mirror, has_been_mirrored
from orchestrator.mirrors.mlflow_server import PASSWORD, TOKEN, closed_server, server_command
from orchestrator.mirrors.mlflow_store import STORE, rehome, run_pages, tracking_uri
from orchestrator.mirrors.tracker import TrackingError, tracker_class
from orchestrator.render.optuna_study import export_study
from orchestrator.render.text import Lines, say_progress
from orchestrator.sweepfile.sections import TrackingConfig
from orchestrator.sweepfile.spec import load_sections


def sync(folder: Path, tracking_uri: str | None, to: Sequence[str] = ()) -> Lines:
    """Write missing results of the sweep in ``folder`` to the trackers ``to``, or to the trackers that its file names.

    A tracker that fails does not keep the others from being written. Raises InputError while a driver has the sweep.
    """
    from orchestrator.pages.report import export_all

    frozen = folder / FROZEN_SWEEP
    has_file = frozen.is_file() or not is_imported(folder)
    tracking = load_sections(frozen).tracking if has_file else TrackingConfig()
    if tracking_uri is not None:
        tracking = tracking.model_copy(update={"uri": tracking_uri})
    trackers = [tracker_class(name) for name in dict.fromkeys(to or tracking.to)]
    failures: list[str] = []
    with sweep_lock(folder):
        artifacts = [*([frozen] if has_file else []), *export_all(folder)]
        answers = tracked_answers(folder)
        for tracker in trackers:
            try:
                with Mirror(folder, tracking, tracker=tracker) as mirror:
                    mirror.mirror_sweep(artifacts, answers, say_progress)
                known = count(len(mirror.tracker.known), "trial is", "trials are")
                yield f"{known} in {mirror.tracker.title} at {mirror.tracker.where}"
            except TrackingError as error:
                failures.append(str(error))
    if failures:
        raise TrackingError("\n".join(failures))
    return EXIT_OK


def report(folder: Path) -> Lines:
    """Write map, tables and HTML report of the sweep in ``folder``."""
    from orchestrator.pages.report import export_all

    for path in export_all(folder):
        yield f"wrote {path}"
    return EXIT_OK


def export_optuna(folder: Path) -> Lines:
    """Write the study of the sweep in ``folder``, and say how to open it. Raises InputError."""
    path = export_study(folder)
    yield f"wrote {path}"
    yield f"optuna-dashboard sqlite:///{path} shows it ({install_command('optuna-dashboard')})"
    return EXIT_OK


def mirrored(folder: Path, is_new: bool = False) -> Lines:
    """Bring the trackers that have the sweep up to date, so that they have the answer too; all of a new sweep's."""
    frozen = folder / FROZEN_SWEEP
    tracking = load_sections(frozen).tracking if frozen.is_file() else TrackingConfig(enabled=False)
    names = [name for name in tracking.to if tracking.enabled and (is_new or has_been_mirrored(folder, name))]
    if names:
        try:
            yield from sync(folder, None, names)
        except (InputError, TrackingError) as error:  # a tracker fails, or a run of the sweep has it
            yield f"warning: {error}\n    remedy: `sweep sync {folder.name}` writes what is missing"
    return EXIT_OK


# What answers write into a sweep's folder.
_MADE_AGAIN = {
    "pictures of remedies": (f"{REMEDIES}/*/remedies.*",),
    "files of the remedies of all cells": (REMEDY_MAP, REMEDY_TABLE),
    "diagnoses": (f"{DIAGNOSES}/*", EXPLANATION),
}


def gc(folder: Path, exports: bool, dry_run: bool) -> Lines:
    """Clean the folder of a sweep, and scratch folders of dead runs; one line per kind of file.

    With ``exports`` also maps, pictures and reports, which `sweep report`, `diagnose`, `explain`, `remedy` and
    `remedies` write again. A dry run only lists what would be removed. Raises InputError while a driver has the sweep.
    """
    from orchestrator.pages.report import existing_exports

    is_empty = True
    with sweep_lock(folder), LedgerReader(folder / LEDGER) as ledger:
        doomed = {
            "checkpoints that no run needs": unneeded_checkpoints(folder, ledger.checkpoint_names()),
            "partial files of interrupted writes": litter(folder),
        }
        if exports:
            doomed["exports"] = [*existing_exports(folder), *folder.glob(EXPORTED)]
            for what, patterns in _MADE_AGAIN.items():
                doomed[what] = [path for pattern in patterns for path in folder.glob(pattern)]
        for what, paths in doomed.items():
            if paths:
                is_empty = False
                yield _line(what, paths, dry_run)
                if not dry_run:
                    remove(paths)
    if scratch := dead_scratch(os.getuid()):
        is_empty = False
        yield _line("scratch folders of runs that died", scratch, dry_run)
        if not dry_run:
            for path in scratch:
                shutil.rmtree(path, ignore_errors=True)
    if is_empty:
        yield "nothing to remove"
    return EXIT_OK


def _line(what: str, paths: list[Path], dry_run: bool) -> str:
    size = sum(_size(path) for path in paths)
    return f"{'would remove' if dry_run else 'removed'} {len(paths)} {what}, {size / 2**20:.1f} MiB"


def _size(path: Path) -> int:
    inside = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in inside if not file.is_dir())


_SHOWN_LINES = 15  # of a server that has failed


def ui(results: Path, uri: str | None, port: int) -> Lines:
    """Serve MLflow's pages on loopback, behind a login, until Ctrl-C or SIGTERM. Raises InputError, SweepError."""
    store = tracking_uri(TrackingConfig(uri=uri), results)
    if uri is None:
        if not (results / STORE).is_file():
            raise InputError(Problem(str(results / STORE), "", "no MLflow store yet", "`sweep run FILE` creates one"))
        with contextlib.suppress(sqlite3.Error):  # MLflow reports errors of its store
            rehome(results / STORE, results)
    mark, token = new_mark(), secrets.token_urlsafe(16)
    address = f"http://127.0.0.1:{port}/?{TOKEN}={token}"
    yield f"note: open to you alone; other programs need {PASSWORD}, your own or {token}, and any user name"
    # MLflow logs every request; its log is shown only if it fails. Files that it writes are private to this user.
    try:
        with tempfile.TemporaryFile() as log, stop_signals(_interrupt), closed_server(token) as (app, words):
            # MLflow's workers judge chats, which sweeps do not have.
            environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, **words, MARK: mark}
            command = server_command(store, results, port, sys.executable, app)
            server = subprocess.Popen(command, env=environment, umask=0o077, stdout=log, stderr=log)
            yield from run_pages(store, address)
            yield f"all of MLflow: {address}, which opens at an overview without the sweeps (Ctrl-C ends it)"
            code = server.wait()
            log.seek(0)
            yield from log.read().decode(errors="replace").splitlines()[-_SHOWN_LINES:]
            return code
    except OSError as error:
        raise SweepError(f"cannot start MLflow: {error}") from error
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        end_marked(mark)


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


def page(results: Path, name: str | None, port: int | None, opens: bool) -> Lines:
    """Serve the page of the sweep ``name``, or the index of all, on loopback until Ctrl-C.

    Raises InputError without a folder of results, or if the port is taken.
    """
    from orchestrator.pages.loopback import address_of, listening_socket
    from orchestrator.pages.server import serve

    if not results.is_dir():
        raise InputError(Problem(str(results), "", "is not a folder of sweeps", "`sweep run FILE` makes one"))
    listener = listening_socket(port)
    address = address_of(listener, name)
    yield f"page at {address} (Ctrl-C ends it)"
    if opens:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        serve(listener, results)
    return EXIT_OK
