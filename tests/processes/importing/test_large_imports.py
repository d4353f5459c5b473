"""The memory that the largest imports need. Time is not measured, since tests share a machine."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "orchestrator.cli", *sys.argv[1:]], capture_output=True, text=True)
assert done.returncode == 0, done.stderr
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def peak_mib(folder: Path, *arguments: str) -> int:
    """The most memory that `sweep` with ``arguments`` had at once."""
    command = [sys.executable, "-c", MEASURED, *arguments]
    return int(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def scattered_rows(num: int) -> Iterator[str]:
    """Cells over two ranges, stable below an edge that bends."""
    random = np.random.default_rng(0)
    yield "lr,beta2,outcome,loss"
    for lr, beta2 in 10 ** random.uniform([-4, -3], [-1, -0.5], (num, 2)):
        over = np.log10(lr) + 2.3 + 0.5 * np.sin(3 * np.log10(beta2))
        outcome = "stable" if random.random() * (1 + np.exp(over / 0.1)) < 1 else "diverged"
        yield f"{lr:.8g},{1 - beta2:.8g},{outcome},{1 + abs(np.log10(lr) + 2.5) + 0.1 * random.random():.6g}"


@pytest.mark.slow
def test_ten_thousand_scattered_cells_are_imported_and_exported_in_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n".join(scattered_rows(10_000)))
    options = ("--name", "case", "--axis", "lr=log", "--axis", "beta2=log1m", "--outcome", "outcome", "--loss", "loss")
    assert peak_mib(tmp_path, "import", "table.csv", *options) < 1024
    assert (tmp_path / "results/case/report.html").is_file()


RUNS_AT_EXPORT = """
import gc
from pathlib import Path
from orchestrator.api import importing
from orchestrator.base.trial_result import TrialResult
from orchestrator.importing.options import import_options
from orchestrator.importing.runs import Run
importing.export_all = lambda folder: [print(sum(isinstance(o, Run | TrialResult) for o in gc.get_objects()))] * 0
list(importing.import_results(["table.csv"], "made", import_options(axis=["lr"], outcome="loss"), Path()))
"""


@pytest.mark.slow
def test_what_was_read_of_a_table_is_gone_when_it_is_read_again_for_the_exports(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("lr,loss\n" + "".join(f"{lr},2\n" for lr in range(1, 9)))
    done = subprocess.run([sys.executable, "-c", RUNS_AT_EXPORT], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


# --- long tables -------------------------------------------------------------------------------------------

COLLECTED = """
import resource, sys
from pathlib import Path
from orchestrator.importing.collecting import collect, record
from orchestrator.importing.options import import_options
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
collected = collect([sys.argv[1]], import_options(axis=["lr"], step="step", loss="loss"), Path())
record(Path("made"), "made", collected, replaces=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def long_table(path: Path, num_steps: int) -> Path:
    """A table with the losses of twenty runs, step by step."""
    noise = np.random.default_rng(0).normal(0, 0.02, (num_steps, 20)).tolist()
    rows = (f"{run / 1000},{step},{3 + of_step[run]:.6f}\n" for step, of_step in enumerate(noise) for run in range(20))
    path.write_text("lr,step,loss\n" + "".join(rows))
    return path


def collected(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", COLLECTED, *arguments], cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_the_memory_of_an_import_hardly_grows_with_the_length_of_a_table(tmp_path: Path) -> None:
    few, many = (
        int(collected(tmp_path, str(long_table(tmp_path / f"{num_steps}.csv", num_steps))).stdout)
        for num_steps in (40, 5000)
    )
    assert many - few < 40, "100,000 rows as dictionaries of texts take 100 MiB"


def test_without_room_for_temporary_files_a_long_table_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    ended = collected(tmp_path, str(long_table(tmp_path / "table.csv", 4000)), str(2**20))
    assert ended.stderr.splitlines()[-1].startswith("orchestrator.base.errors.StorageError")
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
