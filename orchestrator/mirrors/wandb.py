"""Sweeps in Weights & Biases: a group for each sweep, with a run for each trial and one for the sweep.

Without an API key they stay in the sweep's folder, as runs that ``wandb sync`` uploads. The ids of runs follow from the
sweep's name and those of trials, so that what is written again replaces what was there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import netrc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.base.files import atomic_write, make_folder, open_private, refuse_links
from orchestrator.mirrors.tracker import SweepRecord, TrackingError, TrialRecord, with_numbers
from orchestrator.mirrors.wandb_service import (
    end_service,
    is_running,
    kill_service,
    limited,
    start_service,
    wait_for_end,
)
from orchestrator.sweepfile.sections import TrackingConfig

STORE = "wandb"  # in the folder of a sweep; the library chooses the name
WRITTEN = "sweep.jsonl"  # in it: a line for each trial that was written
_DATA = "data"  # in it: the library's copies of tables, which an upload needs
_PLACE = "place"  # in it: its own path
_HEATMAP = "heatmap.png"
_TIMEOUT_S = 20  # of a connection: shorter than the mirror's patience, so that the library's own error is shown
_LIMIT_S = 120.0  # of writing a run, which may be slow to upload; the end of a sweep is held no longer than by patience
_FILE_S = 10.0  # of writing what is buffered, once a run has ended

_SERVERS = ("api.wandb.ai", "api.forge.coreweave.com")  # the public one, by its old name and its new one

# Its reports of errors go to a third party.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


class WandbTracker:
    """One sweep's runs in Weights & Biases; ``Tracker`` describes the methods."""

    name = library = "wandb"
    title = "Weights & Biases"

    def __init__(self, folder: Path, tracking: TrackingConfig, sign_of_life: Callable[[], None]) -> None:
        """Read which trials were written. Raises TrackingError."""
        self.folder, self._project = folder, tracking.experiment
        self.where = self.shown_store(folder, tracking)
        self._store, self._is_online = folder / STORE, _is_online()
        self._place = self.where if self._is_online else "offline"  # also after the folder was moved
        self._sign_of_life = sign_of_life
        self._known: dict[str, str] = {}
        with self._told_as_tracking_errors():
            if os.environ.get("WANDB_MODE") == "disabled":
                raise TrackingError(f"{self.title} at {self.where}: WANDB_MODE is disabled; unset it")
            refuse_links(self._store)
            # The library itself would write to a temporary folder instead, and say so in passing.
            if self._store.exists() and not (self._store.is_dir() and os.access(self._store, os.W_OK | os.X_OK)):
                raise TrackingError(f"{self.title} at {self.where}: {self._store} is no folder that can be written")
            make_folder(self._store)
            self._read_known()

    @classmethod
    def load(cls) -> None:
        """Import the library now."""
        with contextlib.suppress(Exception):
            import wandb  # noqa: F401

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """The project on a server, or the folder that ``wandb sync`` takes."""
        return f"{_server()} (project {tracking.experiment})" if _is_online() else str(folder / STORE)

    @classmethod
    def is_there(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Whether there is a list of what was written, in the folder for which it was written.

        The sweep's run names the copies of its tables with their whole path, so it is written again after a move.
        """
        place = folder / STORE / _DATA / _PLACE
        is_moved = place.is_file() and place.read_text() != str(place.parent.resolve())
        return (folder / STORE / WRITTEN).is_file() and not is_moved

    @property
    def known(self) -> Mapping[str, str]:
        """Trials that were written, with the version of each."""
        return self._known

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's run."""
        run_id = self._run_id(trial.trial_id)
        with self._told_as_tracking_errors():
            config = {**with_numbers(trial.values), "cell": trial.cell.name, "trial_id": trial.trial_id}
            outcome = trial.tags.get("outcome")
            with self._run(run_id, trial.name, "trial", config, [outcome] if outcome else []) as run:
                by_step: dict[int, dict[str, float]] = {}
                for name, value, step in trial.points:
                    by_step.setdefault(step, {})[name] = value
                for step in sorted(by_step):
                    run.log(by_step[step], step=step)
                run.summary.update(dict(trial.tags))
            line = {"where": self._place, "trial_id": trial.trial_id, "version": trial.version}
            with open_private(self._store / WRITTEN, "a") as file:
                file.write(f"\n{json.dumps(line)}")  # apart from a line whose writer died
            self._known[trial.trial_id] = trial.version
        self._sign_of_life()

    def write_running(self, trial: TrialRecord) -> None:
        """Nothing: a trial is written whole when it ends."""

    def write_machine(self) -> None:
        """Nothing: the run of the sweep is written when it ends."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the run of the sweep, and end the library's process.

        What depends on other trials is in a table there: the summary of a run that has ended cannot be read offline.
        """
        with self._told_as_tracking_errors():
            import wandb

            if lost := self._lost():
                raise TrackingError(f"{self.title} at {self.where}: {len(lost)} trials were deleted during the run")
            shutil.rmtree(self._store / _DATA, ignore_errors=True)  # of the run that is replaced
            config = {**sweep.settings, **({"git_commit": sweep.git_commit} if sweep.git_commit else {})}
            with self._run(self._run_id("sweep"), self.folder.name, "sweep", config, ["sweep"]) as run:
                tables = {"map": _map_table(sweep), "trials": _shares_table(sweep), "remedies": _answers_table(sweep)}
                shown: dict[str, Any] = {
                    name: wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
                    for name, (columns, rows) in tables.items()
                    if rows
                }
                for answer in sweep.answers:
                    if answer.picture is not None:
                        shown[f"remedies/{answer.trial_id}"] = wandb.Image(str(answer.picture))
                for path in artifacts:
                    self._add_file(run, path)
                    if path.name == _HEATMAP:
                        shown["heatmap"] = wandb.Image(str(path))
                if shown:
                    with self._copies_beside_the_runs():
                        run.log(shown)
                run.summary.update({**sweep.metrics, "is_over": sweep.is_over})
            place = self._store / _DATA / _PLACE
            atomic_write(place, str(place.parent.resolve()))
            self._sign_of_life()
            end_service()

    @contextlib.contextmanager
    def _told_as_tracking_errors(self) -> Iterator[None]:
        """The library may raise anything, exit or hang; nothing of it may end a sweep, or hold it."""
        with limited(_LIMIT_S) as is_late:
            try:
                yield
            except TrackingError:
                raise
            except BaseException as error:
                was_running = is_running()
                if not isinstance(error, Exception):
                    kill_service()
                end_service()  # it may still hold the run, and refuse the next attempt
                if not isinstance(error, Exception | SystemExit):
                    raise
                cause = str(error).strip() or (type(error).__name__ if was_running else "its process has ended")
                cause = "does not answer, or too slowly" if is_late.is_set() else cause.splitlines()[0][:200]
                raise TrackingError(f"{self.title} at {self.where}: {cause}") from error

    def _read_known(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for line in (self._store / WRITTEN).read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    facts = json.loads(line)
                    if facts["where"] == self._place:
                        self._known[facts["trial_id"]] = facts["version"]
        self._known |= dict.fromkeys(self._lost(), "")

    def _lost(self) -> list[str]:
        """Trials that were written to runs which are no longer in the folder; what was uploaded is not looked for."""
        there = {path.name.rpartition("-")[2] for path in self._store.glob("offline-run-*")}
        return [trial for trial in self._known if not self._is_online and self._run_id(trial) not in there]

    def _run_id(self, key: str) -> str:
        """The id of a run: the same wherever the sweep's folder is."""
        return hashlib.sha256(f"{self.folder.name}\n{key}".encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def _run(self, run_id: str, name: str, kind: str, config: Mapping[str, Any], tags: Sequence[str]) -> Iterator[Any]:
        """A run that is written from the start; offline it replaces the one with this id."""
        import wandb

        start_service(_settings())  # settings, or it says where it found a key
        for old in self._store.glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(old)
        run = wandb.init(
            project=self._project,
            id=run_id,
            name=name[:128],
            group=self.folder.name[:128],
            job_type=kind,
            tags=tags,
            config=dict(config),
            dir=str(self.folder),
            mode="online" if self._is_online else "offline",
            resume="allow" if self._is_online else None,
            reinit="create_new",  # leaves a run of the user's in this process alone
            settings=_settings(),
        )
        try:
            yield run
        except Exception:
            with contextlib.suppress(Exception):
                run.finish(exit_code=1)
            raise
        run.finish()
        if not self._is_online:
            [place] = self._store.glob(f"offline-run-*-{run_id}")
            wait_for_end(place / f"run-{run_id}.wandb", _FILE_S)

    @contextlib.contextmanager
    def _copies_beside_the_runs(self) -> Iterator[None]:
        """Lets the library put copies of tables into the store: from the home folder they would not move with it."""
        own = not os.environ.get("WANDB_DATA_DIR")
        if own:
            os.environ["WANDB_DATA_DIR"] = str(self._store / _DATA)
        try:
            yield
        finally:
            if own:
                del os.environ["WANDB_DATA_DIR"]

    def _add_file(self, run: Any, path: Path) -> None:
        """A copy, so that a run can be uploaded after the sweep has changed."""
        copy = Path(run.dir) / path.name
        shutil.copyfile(path, copy)
        run.save(str(copy), base_path=run.dir, policy="now")


def _settings() -> Any:
    """Nothing printed, nothing measured, nothing read from the user's repository: the ledger has these facts."""
    import wandb

    return wandb.Settings(
        silent=True,
        console="off",
        symlink=False,
        disable_git=True,
        disable_code=True,
        save_code=False,
        init_timeout=_TIMEOUT_S,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def _server() -> str:
    """The address of the server to which runs are uploaded."""
    if address := os.environ.get("WANDB_BASE_URL"):
        return address
    import wandb

    return str(wandb.Settings.model_fields["base_url"].default)


def _is_online() -> bool:
    """Whether runs are uploaded: WANDB_MODE says so, or else a key is there, as `wandb login` stores it."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode not in ("offline", "dryrun", "disabled")
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    address = os.environ.get("WANDB_BASE_URL")
    servers = [urlsplit(address).netloc] if address else _SERVERS
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        known = netrc.netrc(os.environ.get("NETRC") or None)
        return any(known.authenticators(server) is not None for server in servers)
    return False


def _map_table(sweep: SweepRecord) -> tuple[list[Any], list[list[Any]]]:
    """Names of columns and rows: a row for each cell, with its values and what the map shows of it."""
    values = list(dict.fromkeys(name for cell in sweep.cells for name in cell.key.values))
    # A metric is there once more with the sweep's name, for MLflow's charts.
    metrics = list(dict.fromkeys(name for cell in sweep.cells for name in cell.metrics if "/" not in name))
    rows = []
    for cell in sweep.cells:
        own = with_numbers(cell.key.values)
        rows.append([cell.key.name, *(own.get(name) for name in values), *(cell.metrics.get(m) for m in metrics)])
    return ["cell", *values, *metrics], rows


def _shares_table(sweep: SweepRecord) -> tuple[list[Any], list[list[Any]]]:
    """Names of columns and rows: a row for each trial, with its results that depend on others."""
    names = list(dict.fromkeys(name for shares in sweep.shares.values() for name in shares))
    return ["trial_id", *names], [[trial_id, *map(own.get, names)] for trial_id, own in sweep.shares.items()]


def _answers_table(sweep: SweepRecord) -> tuple[list[Any], list[list[Any]]]:
    """Names of columns and rows: a row for each remedy, step and trial."""
    rows = [{"trial_id": answer.trial_id, **row} for answer in sweep.answers for row in answer.table]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[row.get(name) for name in names] for row in rows]
