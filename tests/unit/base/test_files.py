import os
import stat
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from orchestrator.answers.list import ListQuery
from orchestrator.base.errors import InputError, StorageError
from orchestrator.base.files import (
    LEDGER,
    atomic_write,
    check_output,
    frozen_text,
    keep_token,
    make_folder,
    make_private,
    open_private,
    sweep_folder,
    sweep_lock,
    write_if_changed,
    write_output,
)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "map.csv"
    atomic_write(path, "old")

    def fail(*arguments) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, fail)
            with pytest.raises(StorageError, match=r"map\.csv: No space left on device .*MiB free"):
                atomic_write(path, "new")
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["map.csv"]


def test_content_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    write_if_changed(path, "a")
    before = path.stat().st_mtime_ns
    write_if_changed(path, "a")
    assert path.stat().st_mtime_ns == before
    write_if_changed(path, "b")
    assert path.read_text() == "b"


def test_a_sweep_is_found_by_name_or_folder_and_a_wrong_name_lists_what_there_is(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "ledger.db").touch()
    assert sweep_folder("mine", tmp_path) == sweep_folder(str(folder), Path("elsewhere")) == folder
    with chdir(folder):
        assert sweep_folder(".", tmp_path).name == "mine"
    with pytest.raises(InputError, match="existing sweeps: mine"):
        sweep_folder("other", tmp_path)


# --- who may read what -----------------------------------------------------------------------------


@pytest.fixture(params=[0, 0o022, 0o077], ids=oct)
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_under_results_is_for_its_owner_alone(umask: int, tmp_path: Path) -> None:
    atomic_write(tmp_path / "results" / "edge" / "diagnosis" / "a.png", b"a")
    make_folder(tmp_path / "results" / "edge" / "trials" / "b")
    make_private(tmp_path / "results" / "c.db")
    with open_private(tmp_path / "results" / "d.log", "ab") as file:
        file.write(b"d")
    with sweep_lock(tmp_path / "results" / "edge"):
        pass
    found = list((tmp_path / "results").rglob("*"))
    assert len(found) == 8
    assert {path.name: mode_of(path) for path in [tmp_path / "results", *found] if path.is_dir()} == dict.fromkeys(
        ("results", "edge", "diagnosis", "trials", "b"), 0o700
    )
    assert {path.name: mode_of(path) for path in found if path.is_file()} == dict.fromkeys(
        ("a.png", "c.db", "d.log", "lock"), 0o600
    )


def test_a_file_that_a_person_named_is_for_whom_the_umask_says(umask: int, tmp_path: Path) -> None:
    write_output(tmp_path / "map.csv", "a")
    assert mode_of(tmp_path / "map.csv") == 0o666 & ~umask


def test_what_is_there_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("a")
    make_private(tmp_path / "ledger.db")
    assert (tmp_path / "ledger.db").read_text() == "a"


def test_nothing_is_written_through_a_link_in_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "compare").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is a link to"):
        atomic_write(tmp_path / "compare" / "a.png", b"a")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- files that a person names -------------------------------------------------------------------


def test_no_folder_is_made_for_a_file_that_a_person_names(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.png"
    with pytest.raises(InputError, match=r"mkdir -p '.*new folder'"):
        check_output(path)
    with pytest.raises(InputError, match=r"--json: .*does not exist"):
        check_output(path, "--json")
    (tmp_path / "b.png").mkdir()
    for other in (tmp_path / "b.png", Path("/dev/null")):
        with pytest.raises(InputError, match="not a regular file"):
            check_output(other)
    assert [each.name for each in tmp_path.iterdir()] == ["b.png"]
    check_output(Path("in this folder.png"))
    check_output(None)


def test_the_sweep_file_of_a_folder_is_empty_where_there_is_none(tmp_path: Path) -> None:
    assert frozen_text(tmp_path) == ""
    (tmp_path / "sweep.yaml").write_text("name: case\n")
    assert frozen_text(tmp_path) == "name: case\n"


def test_the_file_of_a_sweep_in_place_of_its_name_is_understood(tmp_path: Path) -> None:
    (tmp_path / "edge").mkdir()
    (tmp_path / "edge" / LEDGER).touch()
    for given in ("edge.yaml", "sweeps/edge.yaml"):
        with pytest.raises(InputError, match="did you mean `edge`\\? existing sweeps: edge"):
            sweep_folder(given, tmp_path)
    with pytest.raises(InputError) as refused:
        sweep_folder("other.yaml", tmp_path)
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize("uri", ["http://me:pa55@host/x", "postgresql://me:p@a55@host:5432/db", "http://:pa55@host"])
def test_no_password_of_a_sweep_file_is_shown(tmp_path: Path, uri: str) -> None:
    (tmp_path / "sweep.yaml").write_text(f"tracking: {{uri: {uri}}}\n")
    assert "a55" not in frozen_text(tmp_path)
    assert "://host" in frozen_text(tmp_path)


def test_a_token_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "ray" / "auth_token"
    old = os.umask(0)
    try:
        keep_token(path)
    finally:
        os.umask(old)
    token = path.read_text()
    path.chmod(0o644)
    keep_token(path)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (token, 0o600)
    assert len(token) == 64


@pytest.mark.parametrize("below", ["weights.bin", "deeper/weights.bin"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(StorageError, match=r"taken: is a file, not a folder\n    remedy: ") as refused:
        atomic_write(tmp_path / "taken" / below, "new")
    assert "free" not in str(refused.value)
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_file_in_place_of_the_results_is_not_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError) as refused:
        ListQuery().ask(tmp_path / "taken")
    (problem,) = refused.value.problems
    assert (problem.where, problem.message) == ("--results", "is a file, not a folder")
    assert not ListQuery().ask(tmp_path / "missing").sweeps
