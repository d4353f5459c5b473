"""Results on disks that are full, read-only, without inodes, or that are pulled away."""

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from fault_kit import (
    assert_sound,
    command,
    is_training,
    need,
    results_of,
    run,
    start,
    wait_until,
    write_sweep,
)

pytestmark = pytest.mark.faults
RUN = " ".join(command("run", "edge.yaml", "--executor", "inline"))
STATUS = " ".join(command("status", "edge"))
EXIT_STORAGE = 4


def in_own_mounts(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell ``script`` in ``folder`` where mounts are its own; $RUN is the run."""
    need("unshare", "mount")
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=folder, env={**os.environ, "RUN": RUN, "STATUS": STATUS}, capture_output=True, text=True,
    )  # fmt: skip


def assert_stopped_by_storage(output: str, *words: str) -> None:
    assert f"exit {EXIT_STORAGE}" in output, output
    assert "Traceback" not in output, output
    for word in ("error:", *words):
        assert word in output, output


@pytest.mark.parametrize(
    ("full", "enough", "words"),
    [("size=300k", "size=200m", ("MiB free",)), ("nr_inodes=12,size=200m", "nr_inodes=9000,size=200m", ())],
    ids=["no space", "no inodes"],
)
def test_a_full_disk_ends_the_run_with_its_cause_and_space_lets_it_go_on(
    folder: Path, undisturbed, full: str, enough: str, words: tuple[str, ...]
) -> None:
    done = in_own_mounts(
        folder,
        f"mkdir results && mount -t tmpfs -o {full} none results; $RUN 2>&1; echo exit $?;"
        f"mount -o remount,{enough} results; echo SECOND; $RUN 2>&1; echo exit $?; cp -r results copy",
    )
    first, second = done.stdout.split("SECOND")
    assert_stopped_by_storage(first, "results", *words)
    assert "exit 0" in second, second
    shutil.move(folder / "copy", folder / "results" / "copy")
    (folder / "results" / "copy" / "edge").rename(folder / "results" / "edge")
    assert_sound(folder)
    assert results_of(folder) == undisturbed


def test_a_finished_sweep_on_a_read_only_disk_has_nothing_to_do(folder: Path) -> None:
    done = in_own_mounts(
        folder,
        "$RUN >&2; mount --bind results results; mount -o remount,ro,bind results; $RUN; echo exit $?;"
        "$STATUS > /dev/null; echo exit $?; $RUN --set steps=61; echo exit $?; umount results",
    )
    assert done.stdout.count("nothing to train: every trial has run") == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 0", "exit 0", "exit 4"]
    assert "Read-only" in done.stderr.splitlines()[-1]
    assert_sound(folder)


def test_a_disk_that_turns_read_only_ends_the_run_and_loses_nothing(folder: Path, undisturbed) -> None:
    done = in_own_mounts(
        folder,
        "mkdir results && mount -t tmpfs -o size=200m none results; ($RUN; echo exit $?) > said 2>&1 &"
        "while ! ls results/edge/checkpoints/*.pt > /dev/null 2>&1; do sleep 0.1; done;"
        # A busy file system cannot turn read-only, but another one over it can.
        "mount --bind results results; mount -o remount,ro,bind results; wait; cat said;"
        "(cd results && true); echo SECOND; $RUN 2>&1; echo exit $?;"
        "umount results; echo THIRD; $RUN 2>&1; echo exit $?; cp -r results copy",
    )
    first, rest = done.stdout.split("SECOND")
    second, third = rest.split("THIRD")
    assert_stopped_by_storage(first + second, "ead-only")
    assert "exit 0" in third, third
    (folder / "results").mkdir(exist_ok=True)
    (folder / "copy" / "edge").rename(folder / "results" / "edge")
    assert results_of(folder) == undisturbed


def test_results_that_are_removed_under_way_end_the_run_with_the_cause(folder: Path, undisturbed) -> None:
    driver = start(folder, "--executor", "inline")
    wait_until(lambda: is_training(folder), "checkpoint")
    shutil.rmtree(folder / "results")
    output, _ = driver.communicate()
    assert driver.returncode == EXIT_STORAGE, output
    assert "Traceback" not in output
    assert "results/edge" in output
    assert run(folder, "run", "edge.yaml", "--executor", "inline")[0] == 0
    assert results_of(folder) == undisturbed


def test_results_that_are_swapped_for_a_link_send_no_write_elsewhere(folder: Path) -> None:
    driver = start(folder, "--executor", "inline")
    wait_until(lambda: is_training(folder), "checkpoint")
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (folder / "results/edge").rename(folder / "results/moved")
    (folder / "results/edge").symlink_to(elsewhere)
    output, _ = driver.communicate()
    assert driver.returncode == EXIT_STORAGE, output
    assert "Traceback" not in output
    assert list(elsewhere.iterdir()) == []
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline")
    assert (code, "link" in output) == (EXIT_STORAGE, True), output
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["heatmap.png", "report.html", "trials.csv", "checkpoints"])
def test_a_link_among_the_results_is_replaced_or_refused_but_never_followed(folder: Path, name: str) -> None:
    target = folder / "precious"
    target.mkdir() if name == "checkpoints" else target.write_text("precious")
    (folder / "results/edge").mkdir(parents=True)
    (folder / "results/edge" / name).symlink_to(target)
    steps = ["--steps", "50"] if name != "checkpoints" else []
    code, output = run(folder, "run", "edge.yaml", "--executor", "inline", *steps)
    assert "Traceback" not in output
    if name == "checkpoints":
        assert (code, list(target.iterdir())) == (EXIT_STORAGE, []), output
        assert "is a link" in output
    else:
        assert (code, target.read_text()) == (0, "precious")


def test_results_are_for_their_owner_alone_whatever_the_umask(folder: Path) -> None:
    done = subprocess.run(
        command("run", "edge.yaml", "--executor", "inline", "--steps", "50"),
        cwd=folder, umask=0, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE((folder / "results/edge").stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ['it\'s "quoted"', "line\nbreak", "größe-測試 \x1b[31m[b]red"])
def test_folders_with_any_name_hold_results(tmp_path: Path, place: str) -> None:
    folder = tmp_path / place
    folder.mkdir()
    write_sweep(folder)
    code, output = run(
        folder, "run", "edge.yaml", "--executor", "inline", "--steps", "50", "--results", f"{folder}/out"
    )
    assert code == 0, output
    assert "\x1b" not in output
    assert run(folder, "export", "heatmap", "edge", "--results", f"{folder}/out")[0] == 0
    assert run(folder, "doctor", "edge", "--results", f"{folder}/out")[0] == 0


def test_a_file_that_may_not_grow_is_a_storage_fault(folder: Path) -> None:
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    driver = start(folder, "--executor", "inline", preexec_fn=limit)
    output, _ = driver.communicate()
    assert driver.returncode == EXIT_STORAGE, output
    assert "Traceback" not in output
    assert run(folder, "run", "edge.yaml", "--executor", "inline")[0] == 0
    assert_sound(folder)
