"""Sweeps in Weights & Biases: a group per sweep, with a run for each trial and one for the sweep.

Without an API key, runs stay in the sweep's folder until ``wandb sync`` uploads them. A run's id is a hash of the
sweep's name and the trial's id, so a run that is written again replaces the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import netrc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.base.files import atomic_write, check_no_links, make_folder, open_private
from orchestrator.base.processes import inherited
from orchestrator.base.words import count
from orchestrator.mirrors.records import logs_as_numbers
from orchestrator.mirrors.tracker import SweepRecord, TrackingError, TrialRecord, table_of
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
# Inside the store:
WRITTEN = "sweep.jsonl"  # a line per trial that was written
_DATA = "data"  # the library's copies of tables, needed for an upload
_OWN_PATH = "place"  # in _DATA: its path, which the sweep's run refers to
_HEATMAP = "heatmap.png"
_TIMEOUT_S = 20  # of a connection: below the mirror's patience, so that the library's own error is shown
_LIMIT_S = 120.0  # for writing a run, which may be slow to upload; the mirror's patience limits the end of a sweep
_FLUSH_S = 10.0  # for writing buffered data after the end of a run
_PUBLIC_SERVERS = ("api.wandb.ai", "api.forge.coreweave.com")  # the old and the new name of one server

# Keep the library from reporting errors to a third party.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")


class WandbTracker:
    """One sweep's runs in Weights & Biases; see ``Tracker`` for the methods."""

    name = library = "wandb"
    title = "Weights & Biases"

    def __init__(self, folder: Path, tracking: TrackingConfig, on_response: Callable[[], None]) -> None:
        """Read the list of written trials. Raises TrackingError."""
        self.folder, self._project = folder, tracking.experiment
        self.where = self.shown_store(folder, tracking)
        self._store, self._is_online = folder / STORE, _is_online()
        self._destination = self.where if self._is_online else "offline"  # which does not change if the folder moves
        self._on_response = on_response
        self._known: dict[str, str] = {}
        with self._tracking_errors():
            if os.environ.get("WANDB_MODE") == "disabled":
                raise TrackingError(f"{self.title} at {self.where}: WANDB_MODE is disabled; unset it")
            check_no_links(self._store)
            # The library would silently write to a temporary folder instead.
            if self._store.exists() and not (self._store.is_dir() and os.access(self._store, os.W_OK | os.X_OK)):
                raise TrackingError(f"{self.title} at {self.where}: {self._store} is not a writable folder")
            make_folder(self._store)
            self._read_known()

    @classmethod
    def shown_store(cls, folder: Path, tracking: TrackingConfig) -> str:
        """Return the project on a server, or the folder for ``wandb sync``."""
        return f"{_server()} (project {tracking.experiment})" if _is_online() else str(folder / STORE)

    @classmethod
    def may_exist(cls, folder: Path, tracking: TrackingConfig) -> bool:
        """Return whether trials were written to this folder, and it has not moved since.

        The sweep's run refers to the copies of its tables by absolute path, so after a move it is written again.
        """
        path = folder / STORE / _DATA / _OWN_PATH
        has_moved = path.is_file() and path.read_text() != str(path.parent.resolve())
        return (folder / STORE / WRITTEN).is_file() and not has_moved

    @property
    def known(self) -> Mapping[str, str]:
        """Versions of the trials that were written; "" for lost ones."""
        return self._known

    def write_trial(self, trial: TrialRecord) -> None:
        """Write a trial's run."""
        run_id = self._run_id(trial.trial_id)
        with self._tracking_errors():
            config = {**logs_as_numbers(trial.values), "cell": trial.cell.name, "trial_id": trial.trial_id}
            outcome = trial.tags.get("outcome")
            with self._run(run_id, trial.name, "trial", config, [outcome] if outcome else []) as run:
                by_step: dict[int, dict[str, float]] = {}
                for name, value, step in trial.points:
                    by_step.setdefault(step, {})[name] = value
                for step in sorted(by_step):
                    run.log(by_step[step], step=step)
                run.summary.update(dict(trial.tags))
            line = {"where": self._destination, "trial_id": trial.trial_id, "version": trial.version}
            with open_private(self._store / WRITTEN, "a") as file:
                file.write(f"\n{json.dumps(line)}")  # on a new line: the writer of the last one may have died in it
            self._known[trial.trial_id] = trial.version
        self._on_response()

    def write_running(self, trial: TrialRecord) -> None:
        """Do nothing: a trial is written whole when it ends."""

    def write_machine(self) -> None:
        """Do nothing: the sweep's run is written when it ends."""

    def write_results(self, sweep: SweepRecord) -> None:
        """Do nothing: the sweep's run is written when it ends."""

    def write_sweep(self, sweep: SweepRecord, artifacts: Sequence[Path]) -> None:
        """Write the sweep's run and end the library's process.

        The trials' ``shares`` go into a table of this run: the summary of an ended run cannot be read offline.
        """
        with self._tracking_errors():
            import wandb

            if lost := self._lost():
                what = f"{count(len(lost), 'trial was', 'trials were')} deleted during the run"
                raise TrackingError(f"{self.title} at {self.where}: {what}")
            shutil.rmtree(self._store / _DATA, ignore_errors=True)  # it belongs to the run that is replaced
            config = {**sweep.settings, **({"git_commit": sweep.git_commit} if sweep.git_commit else {})}
            with self._run(self._run_id("sweep"), self.folder.name, "sweep", config, ["sweep"]) as run:
                shown: dict[str, Any] = {}
                for name, rows in _tables(sweep).items():
                    if rows:
                        columns, data = table_of(rows)
                        shown[name] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
                for answer in sweep.answers:
                    if answer.picture is not None:
                        shown[f"remedies/{answer.trial_id}"] = wandb.Image(str(answer.picture))
                for path in artifacts:
                    self._add_file(run, path)
                    if path.name == _HEATMAP:
                        shown["heatmap"] = wandb.Image(str(path))
                if shown:
                    with self._table_copies_in_store():
                        run.log(shown)
                run.summary.update({**sweep.metrics, "is_over": sweep.is_over})
            path = self._store / _DATA / _OWN_PATH
            atomic_write(path, str(path.parent.resolve()))
            self._on_response()
            end_service()

    @contextlib.contextmanager
    def _tracking_errors(self) -> Iterator[None]:
        """Turn whatever the library does into TrackingError: it may raise anything, exit or hang."""
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
                    if facts["where"] == self._destination:
                        self._known[facts["trial_id"]] = facts["version"]
        self._known |= dict.fromkeys(self._lost(), "")

    def _lost(self) -> list[str]:
        """Return the trials whose runs have disappeared from the folder. Uploaded runs are not checked."""
        present = {path.name.rpartition("-")[2] for path in self._store.glob("offline-run-*")}
        return [trial for trial in self._known if not self._is_online and self._run_id(trial) not in present]

    def _run_id(self, key: str) -> str:
        """Return the id of a run, which does not depend on the location of the sweep's folder."""
        return hashlib.sha256(f"{self.folder.name}\n{key}".encode()).hexdigest()[:16]

    @contextlib.contextmanager
    def _run(self, run_id: str, name: str, kind: str, config: Mapping[str, Any], tags: Sequence[str]) -> Iterator[Any]:
        """Write a run from scratch; offline it replaces the old run with this id."""
        import wandb

        start_service(_settings())  # without them it prints where it found a key
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
            reinit="create_new",  # leaves the user's own run in this process alone
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
            [run_folder] = self._store.glob(f"offline-run-*-{run_id}")
            wait_for_end(run_folder / f"run-{run_id}.wandb", _FLUSH_S)

    def _table_copies_in_store(self) -> AbstractContextManager[None]:
        """Make the library copy tables into the store, not into the home folder: the copies must move with it."""
        return inherited("WANDB_DATA_DIR", os.environ.get("WANDB_DATA_DIR") or str(self._store / _DATA))

    def _add_file(self, run: Any, path: Path) -> None:
        """Add a copy of a file, so that the run can be uploaded after the file has changed."""
        copy = Path(run.dir) / path.name
        shutil.copyfile(path, copy)
        run.save(str(copy), base_path=run.dir, policy="now")


def _settings() -> Any:
    """Return settings under which the library prints and measures nothing: the ledger has these facts."""
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
    """Return the address of the server that runs are uploaded to."""
    if address := os.environ.get("WANDB_BASE_URL"):
        return address
    import wandb

    return str(wandb.Settings.model_fields["base_url"].default)


def _is_online() -> bool:
    """Return whether runs are uploaded: WANDB_MODE decides, or else an API key as `wandb login` stores it."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode not in ("offline", "dryrun", "disabled")
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    address = os.environ.get("WANDB_BASE_URL")
    servers = [urlsplit(address).netloc] if address else _PUBLIC_SERVERS
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        known = netrc.netrc(os.environ.get("NETRC") or None)
        return any(known.authenticators(server) is not None for server in servers)
    return False


def _tables(sweep: SweepRecord) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the sweep's tables: cells, trials with their ``shares``, and remedies by trial and step."""
    # The metrics with the sweep's name after a slash serve MLflow's charts.
    cells = [
        {"cell": cell.key.name, **logs_as_numbers(cell.key.values)}
        | {name: value for name, value in cell.metrics.items() if "/" not in name}
        for cell in sweep.cells
    ]
    trials = [{"trial_id": trial_id, **shares} for trial_id, shares in sweep.shares.items()]
    remedies = [{"trial_id": answer.trial_id, **row} for answer in sweep.answers for row in answer.table]
    return {"map": cells, "trials": trials, "remedies": remedies}
