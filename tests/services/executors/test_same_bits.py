"""One sweep file gives the same bits on one machine: in any folder, with any cache, idle or busy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fault_kit import results_of, run, write_sweep

pytestmark = [pytest.mark.services, pytest.mark.slow]
SWEEP = """
name: edge
objective: gpt
steps: 30
axes: {lr: {values: [0.001, 0.01, 0.1, 1.0, 30.0]}, batch_size: {values: [2, 3]}}
seeds: [0, 1]
fixed: {width: 32, heads: 2, context: 16, depth: 1, validation_batches: 3}
telemetry: {every: 10, curvature: 10}
validate: {every: 10}
tracking: {enabled: false}
"""


@contextmanager
def busy() -> Iterator[None]:
    """Twice as many processes that never rest as there are cores, with the niceness that Ray gives its workers."""
    never_rests = "import os\nos.nice(15)\nwhile True: pass"
    with ExitStack() as running:
        for _ in range(2 * (os.cpu_count() or 1)):
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", never_rests]))
            running.callback(process.kill)
        yield


def test_ten_runs_in_ten_folders_with_and_without_a_cache_idle_and_busy_are_equal_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in range(10):
        is_busy, is_cached = number % 2 == 1, number >= 5
        monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / ("cache" if is_cached else f"cache {number}")))
        folder = tmp_path / f"run {number}"
        folder.mkdir()
        write_sweep(folder, SWEEP)
        with busy() if is_busy else ExitStack():
            code, output = run(folder, "run", "edge.yaml")
        assert code == 0, output
        found.append(results_of(folder))
    assert len(found[0]) == 20
    assert len({outcome for row in found[0].values() for outcome in row[1:2]}) > 1, "some trials diverge"
    assert [results == found[0] for results in found] == [True] * 10
