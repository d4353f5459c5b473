"""Files under results/: atomic writes and locks. Nothing else writes there but SQLite, MLflow and the trials of a
trainer of one's own, each in its folder."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import os
import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from orchestrator.errors import InputError, Problem, StorageError

LEDGER = "ledger.db"
FROZEN_SWEEP = "sweep.yaml"
CHECKPOINTS = "checkpoints"
JOBS = "slurm"  # of commands that run as jobs on a cluster
DIAGNOSES, EXPLANATION = "diagnosis", "explanation.png"  # pictures: a folder, a file
EXPORTED = "exported"  # the state of the ledger that the exports show
MIRRORED = "mirrored"  # names the MLflow store that has the sweep, and the state of the ledger that it has
_LOCK = "lock"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError under ``path`` into a StorageError that names path, cause and free space."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}{free_space(path)}") from error


def free_space(path: Path) -> str:
    """How much room there is on the disk of ``path``, in brackets; nothing where nobody knows."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            stat = os.statvfs(folder)
            return f" ({stat.f_bavail * stat.f_frsize / 2**20:.0f} MiB free)"
    return ""


def refuse_links(*paths: Path) -> None:
    """Raise StorageError where one of ``paths`` is a link: what is written there would land elsewhere."""
    for path in paths:
        if path.is_symlink():
            raise StorageError(f"{path}: is a link to {os.readlink(path)}\n    remedy: put a real folder or file there")


def make_folder(folder: Path) -> None:
    """Make ``folder`` where it is missing, for this user alone whatever the umask; those above it as usual."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Write ``path`` so that a reader, or a crash, sees the old file or the new, never a part."""
    data = content.encode() if isinstance(content, str) else content
    with storage_errors(path):
        make_folder(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def write_checkpoint(folder: Path, content: bytes) -> tuple[str, str]:
    """Write a checkpoint of the sweep in ``folder`` under a name of its own; returns its name and its sha256."""
    refuse_links(folder, folder / CHECKPOINTS)
    sha256 = hashlib.sha256(content).hexdigest()
    name = f"{uuid.uuid4().hex[:12]}.pt"
    atomic_write(folder / CHECKPOINTS / name, content)
    return name, sha256


def read_checkpoint(folder: Path, name: str, sha256: str) -> bytes:
    """The checkpoint ``name`` of the sweep in ``folder``, if it is what was written.

    Raises StorageError where it is missing, a link, not in its folder, or has another checksum.
    """
    path = folder / CHECKPOINTS / name
    if Path(name).name != name:
        raise StorageError(f"{path}: a checkpoint has a plain name")
    with storage_errors(path):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            content = file.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise StorageError(f"{path}: is damaged, its checksum is not the one in the ledger")
    return content


def unneeded_checkpoints(folder: Path, needed: Collection[str]) -> list[Path]:
    """Checkpoint files of the sweep in ``folder`` that are not among ``needed``, and parts of unfinished ones."""
    if not (folder / CHECKPOINTS).is_dir() or (folder / CHECKPOINTS).is_symlink():
        return []
    return sorted(path for path in (folder / CHECKPOINTS).iterdir() if path.name not in needed)


def withdraw_jobs(folder: Path) -> None:
    """Take back the word by which jobs still run that an earlier driver of the sweep in ``folder`` has left."""
    remove((folder / JOBS).glob("run-*"))


def remove(paths: Iterable[Path]) -> None:
    """Delete files; one that is gone already, or cannot go, is no fault. Links go, not what they point to."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def write_if_changed(path: Path, content: bytes | str) -> None:
    """Write ``path`` atomically unless it holds ``content`` already, so that its time means something."""
    data = content.encode() if isinstance(content, str) else content
    with storage_errors(path):
        if path.is_file() and path.read_bytes() == data:
            return
    atomic_write(path, content)


@contextlib.contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """Hold the sweep in ``folder``: one driver at a time. The lock falls with the process.

    Raises InputError naming the holder when another process has it.
    """
    refuse_links(folder, folder / LEDGER, folder / _LOCK)
    with storage_errors(folder):
        make_folder(folder)
        file = open(folder / _LOCK, "a+")  # noqa: SIM115 - the next line is its context
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise InputError(
                Problem(str(folder), "", f"is in use by {holder}", "wait for it, or stop it first")
            ) from None
        now = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
        file.truncate(0)
        file.write(f"pid {os.getpid()} since {now}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a driver has the sweep in ``folder``."""
    try:
        with open(folder / _LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def litter(folder: Path) -> list[Path]:
    """Parts of files whose writing was interrupted, in the folder of a sweep."""
    return sorted(path for path in folder.glob(".*.*") if path.is_file() or path.is_symlink())


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for others to let go of it."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a")  # noqa: SIM115 - the next line is its context
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sweep_folder(name_or_folder: str, results: Path) -> Path:
    """The results folder of a sweep that was planned, by its name or its path.

    Raises InputError when there is none, listing what there is.
    """
    for folder in (results / name_or_folder, Path(name_or_folder)):
        if (folder / LEDGER).is_file():
            return folder
    there = sorted(path.parent.name for path in results.glob(f"*/{LEDGER}"))
    remedy = f"there are: {', '.join(there)}" if there else "`sweep run FILE` makes one"
    raise InputError(Problem(str(results / name_or_folder), "", "holds no sweep", remedy))
