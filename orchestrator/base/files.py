"""Files under results/, private to their owner: names, atomic writes, locks; and output files named by the user.

Apart from this module, only SQLite, MLflow, Weights & Biases and trials of custom trainers write under results/.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shlex
import sqlite3
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from orchestrator.base.errors import InputError, Problem, StorageError

LEDGER = "ledger.db"
STANDARD_OUTPUT = Path("-")  # as a value of --json
FROZEN_SWEEP = "sweep.yaml"
CHECKPOINTS = "checkpoints"
JOBS = "slurm"  # folder of cluster jobs
TRIALS = "trials"  # folder of a custom trainer's trials
PICTURES = ("png", "svg", "pdf")
COMPARISONS, REPLAYS = "compare", "replay"  # folders of pictures next to the sweeps
DIAGNOSES, EXPLANATION = "diagnosis", "explanation.png"  # pictures: a folder, a file
PREDICTION = "prediction.json"  # the question of the last `sweep predict`
REMEDIES, REMEDIES_PICTURE = "remedies", "remedies.png"  # in it a folder for a trial's forks, and their picture
REMEDY_MAP, REMEDY_TABLE = "remedies.png", "remedies.csv"  # the remedies of all unstable cells
CAUSES, CAUSE_ANSWER = "causes", "cause.json"  # in it a folder for the forks about a trial's causes, and the answer
FORKS_OF_EACH = f"{REMEDIES}/*/ledger.db"  # the ledgers of trials' forks
OPTUNA_STUDY = "optuna.db"
HEATMAP = "heatmap.png"  # the picture of the stability map
EXPORTED = "exported"  # the state of the ledger that the exports show
MIRRORED = "mirrored"  # the tracker's store that has the sweep, and the state of the ledger in it
_LOCK = "lock"
_begun: set[Path] = set()  # folders of sweeps that this process writes to
_USER = re.compile(r"(?<=://)[^/\s]*@")  # of an address, with the password


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError under ``path`` into a StorageError with path, cause and free space."""
    try:
        yield
    except OSError as error:
        is_of_path = isinstance(error, FileExistsError | NotADirectoryError)
        for parent in (path, *path.parents) if is_of_path else ():
            if parent.is_file():
                remedy = "name a folder, or a path in one"
                raise StorageError(f"{parent}: is a file, not a folder\n    remedy: {remedy}") from error
        raise StorageError(f"{path}: {error.strerror or error}{free_space(path)}") from error


def free_space(path: Path) -> str:
    """Return the free space on the disk of ``path`` in brackets, or empty if unknown."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            stat = os.statvfs(folder)
            return f" ({stat.f_bavail * stat.f_frsize / 2**20:.0f} MiB free)"
    return ""


def check_no_links(*paths: Path) -> None:
    """Raise StorageError if one of ``paths`` is a link, since writing there would change another folder."""
    for path in paths:
        if path.is_symlink():
            remedy = "replace it with a real folder or file"
            raise StorageError(f"{path}: is a link to {os.readlink(path)}\n    remedy: {remedy}")


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, private to this user regardless of the umask.

    Raises StorageError rather than creating the folder of a sweep again that was moved while this process wrote to it.
    """
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    for path in missing:
        if path.absolute() in _begun:
            raise _moved(path)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def check_in_place(folder: Path) -> None:
    """Raise StorageError if the results of a run are no longer in ``folder``."""
    if not (folder / LEDGER).exists():
        raise _moved(folder)


def _moved(folder: Path) -> StorageError:
    remedy = "move it back, or name its new place with --results, and run the sweep again: it goes on"
    return StorageError(f"{folder}: was moved or removed during the run\n    remedy: {remedy}")


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open ``path`` like ``open``; a created file is private to this user regardless of the umask."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600))


def make_private(path: Path) -> None:
    """Create an empty private file if it is missing, for a library that would create it with the umask.

    An existing file is not even opened, since closing it would drop SQLite's locks on it in this process.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def keep_token(path: Path) -> None:
    """Ensure that ``path`` holds a random token that this user alone can read, where the folder can be written."""
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        with contextlib.suppress(FileExistsError), open_private(path, "x") as file:
            file.write(secrets.token_hex(32))
        path.chmod(0o600)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Write a file under results/ atomically: readers and crashes leave the old or the new file, never a part.

    File and folder are private to this user. Raises StorageError, also if the folder is a link.
    """
    check_no_links(path.parent)
    with storage_errors(path):
        make_folder(path.parent)
        _replace(path, content, 0o600)


def write_output(path: Path, content: bytes | str) -> None:
    """Write a file named by the user atomically, with the mode of the umask; the folder must exist."""
    with storage_errors(path):
        _replace(path, content, 0o666)


def _replace(path: Path, content: bytes | str, mode: int) -> None:
    data = content.encode() if isinstance(content, str) else content
    # Without the name of the file: TensorBoard reads every file with tfevents in its name.
    name = path.with_name(f".{uuid.uuid4().hex[:8]}.part")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def check_output(path: Path | None, option: str = "--output") -> None:
    """Raise InputError if a file cannot be written: its folder is missing, or it is a folder or a device."""
    if path is None or (path == STANDARD_OUTPUT and option == "--json"):
        return
    if not path.parent.is_dir():
        remedy = f"create it (mkdir -p {shlex.quote(str(path.parent))}), or choose another path"
        raise InputError(Problem(option, str(path), f"folder {path.parent} does not exist", remedy))
    if path.exists() and not path.is_file():
        raise InputError(Problem(option, str(path), "not a regular file", "choose another path"))


def frozen_text(folder: Path) -> str:
    """Return the sweep file in ``folder`` as it was run, ``without_users``; empty for imported results."""
    path = folder / FROZEN_SWEEP
    with storage_errors(path):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return without_users(text)


def has_password(address: str) -> bool:
    """Return whether ``address`` has a password."""
    user = _USER.search(address)
    return user is not None and ":" in user[0]


def without_users(text: str) -> str:
    """Return ``text`` to be shown: its addresses without user and password."""
    return _USER.sub("", text)


def write_checkpoint(folder: Path, content: bytes) -> tuple[str, str]:
    """Write a checkpoint of the sweep in ``folder`` under a unique name; returns the name and its sha256."""
    check_no_links(folder, folder / CHECKPOINTS)
    sha256 = hashlib.sha256(content).hexdigest()
    name = f"{uuid.uuid4().hex[:12]}.pt"
    atomic_write(folder / CHECKPOINTS / name, content)
    return name, sha256


def read_checkpoint(folder: Path, name: str, sha256: str) -> bytes:
    """Return the verified content of the checkpoint ``name`` of the sweep in ``folder``.

    Raises StorageError if it is missing, a link, outside of its folder, or has another checksum.
    """
    path = folder / CHECKPOINTS / name
    if Path(name).name != name:
        raise StorageError(f"{path}: the name of a checkpoint must not have a folder")
    with storage_errors(path):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            content = file.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StorageError(f"{path}: is damaged: its checksum differs from the ledger")
    return content


def unneeded_checkpoints(folder: Path, needed: Collection[str]) -> list[Path]:
    """Return checkpoint files of the sweep in ``folder`` that are not ``needed``, including partly written ones."""
    if not (folder / CHECKPOINTS).is_dir() or (folder / CHECKPOINTS).is_symlink():
        return []
    return sorted(path for path in (folder / CHECKPOINTS).iterdir() if path.name not in needed)


def withdraw_jobs(folder: Path) -> None:
    """Cancel the jobs of an earlier driver of the sweep in ``folder`` by withdrawing their permission to run."""
    remove((folder / JOBS).glob("run-*"))


def remove(paths: Iterable[Path]) -> None:
    """Delete files, ignoring files that are missing or cannot be deleted. Deletes links, not their targets."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def write_if_changed(path: Path, content: bytes | str) -> None:
    """Write ``path`` atomically unless it has this ``content``, so that its modification time is meaningful."""
    data = content.encode() if isinstance(content, str) else content
    with storage_errors(path):
        if path.is_file() and path.read_bytes() == data:
            return
    atomic_write(path, content)


@contextlib.contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Lock the sweep in ``folder`` for one driver; the lock ends with the process.

    Raises InputError with the holder if another process has it.
    """
    check_no_links(folder, folder / LEDGER, folder / _LOCK)
    places = {path.absolute() for path in (folder, folder.parent)}
    _begun.difference_update(places)
    with storage_errors(folder):
        make_folder(folder)
        file = open_private(folder / _LOCK, "a+")
    _begun.update(places)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            problem = Problem(str(folder), "", f"is in use by {holder}", "wait for it, or stop it first")
            raise InputError(problem) from None
        now = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        file.truncate(0)
        file.write(f"pid {os.getpid()} since {now}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a driver holds the sweep in ``folder``."""
    try:
        with open(folder / _LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def litter(folder: Path) -> list[Path]:
    """Return partly written files, left by interruptions, in the folder of a sweep and its folders of event files."""
    paths = [*folder.glob(".*.*"), *folder.glob("tensorboard/**/.*.part")]
    return sorted(path for path in paths if path.is_file() or path.is_symlink())


@contextlib.contextmanager
def database_copy(path: Path, table: str) -> Iterator[Path]:
    """Yield a temporary copy of the SQLite file at ``path``, for a library that changes what it opens.

    Raises sqlite3.Error if the file cannot be read or has no ``table``.
    """
    with tempfile.TemporaryDirectory(prefix="sweep-read-") as folder:
        copy = Path(folder) / path.name
        with (
            contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            if not source.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                raise sqlite3.DatabaseError(f"{path} has no table {table}")
            source.backup(target)
        yield copy


@contextlib.contextmanager
def whole_database(path: Path) -> Iterator[Path]:
    """Yield a SQLite file to write in place of ``path``, which it becomes at the end; ``path`` itself if it exists.

    A file that exists is changed in one transaction. Raises StorageError.
    """
    if path.exists():
        yield path
        return
    new = path.with_name(f".{path.name}.new")
    files = [new.with_name(new.name + ending) for ending in ("", "-wal", "-shm")]
    remove(files)  # a killed process left them
    try:
        yield new
        with storage_errors(path):
            if files[1].exists():  # SQLite could not move its journal into the file
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.replace(new, path)
    finally:
        remove(files)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` after waiting for its other holders."""
    with storage_errors(path):
        make_folder(path.parent)
        file = open_private(path, "a")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep_names(results: Path) -> list[str]:
    """Return the folders in ``results`` that hold a sweep."""
    return sorted(path.parent.name for path in results.glob(f"*/{LEDGER}"))


def sweep_folder(name_or_folder: str, results: Path) -> Path:
    """Return the results folder of a planned sweep, by name or path.

    Raises InputError, with the existing sweeps, if there is none.
    """
    for folder in (results / name_or_folder, Path(name_or_folder)):
        if (folder / LEDGER).is_file():
            return folder if folder.name not in ("", "..") else folder.resolve()
    names = sweep_names(results)
    remedy = f"existing sweeps: {', '.join(names)}" if names else "create one with `sweep run FILE`"
    if (name := Path(name_or_folder).stem) in names and name != name_or_folder:
        remedy = f"did you mean `{name}`? {remedy}"
    raise InputError(Problem(str(results / name_or_folder), "", "holds no sweep", remedy))
