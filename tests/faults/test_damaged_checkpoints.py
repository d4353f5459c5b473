"""Checkpoints that were damaged, swapped or lost on disk: the sweep ends with the same numbers all the same."""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from driver_cases import Observer
from fault_kit import SWEEP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples, thinned

from orchestrator.base.errors import StorageError
from orchestrator.base.files import CHECKPOINTS, LEDGER, read_checkpoint, write_checkpoint
from orchestrator.base.packs import PackLost, Report
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.ledger.writer import LedgerWriter
from orchestrator.sweepfile.spec import Sweep, build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document
from orchestrator.worker.packed_run import Pace

SHORT = SWEEP.replace("steps: 1000", "steps: 80").replace("every_steps: 100", "every_steps: 8")


@pytest.fixture
def sweep() -> Sweep:
    return build_sweep(parse_document(SHORT, "edge.yaml"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    """What the sweep ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_sweep(build_sweep(parse_document(SHORT, "edge.yaml")), folder, InlineExecutor)
    with LedgerReader(folder / LEDGER) as ledger:
        return results_of(ledger.trials())


class DyingOnce(InlineExecutor):
    """Loses its first pack when two checkpoints of it are on disk, after something has happened to them."""

    def __init__(self, folder: Path, damage: Callable[[list[Path]], None]) -> None:
        super().__init__(Pace(report_s=0.0))
        self.folder, self.damage, self.is_over = folder, damage, False

    def poll(self, timeout_s: float):
        events = super().poll(timeout_s)
        with LedgerReader(self.folder / LEDGER) as ledger:
            names = [row.name for pack in ledger.packs() for row in ledger.checkpoints(pack.pack_id)]
        if self.is_over or len(names) < 2 or not isinstance(events[0], Report) or events[0].ending is not None:
            return events
        self.is_over, self._reports = True, None
        self.damage([self.folder / CHECKPOINTS / name for name in names])
        return [PackLost(events[0].pack_id, "it was killed")]


def results_of(rows: list[dict]) -> list[tuple]:
    return [(row.trial_id, row.status, row.outcome, row.final_loss, row.reason) for row in rows]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def zero_tail(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-500] + bytes(500))


def link(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


DAMAGES = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "a bit flipped": flip,
    "a tail of zeros": zero_tail,
    "missing": Path.unlink,
    "a link": link,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}
QUICK = (("truncated", 1), ("a bit flipped", 2), ("missing", 1))


@pytest.mark.parametrize(
    ("damage", "num_damaged"), thinned(itertools.product(DAMAGES, (1, 2)), lambda case: case in QUICK)
)
def test_the_one_before_is_used_and_without_one_the_pack_starts_over(
    train, rows, tmp_path: Path, sweep: Sweep, undisturbed: list[tuple], damage: str, num_damaged: int
) -> None:
    def spoil(paths: list[Path]) -> None:
        for path in paths[:num_damaged]:
            DAMAGES[damage](path)

    seen: list[Sequence[str]] = []
    notes = Observer(lambda progress, _: seen.append([*progress.notes]))
    summary = train(sweep, lambda: DyingOnce(tmp_path / "edge", spoil), [notes])
    assert summary.exit_code == 0
    assert results_of(rows("edge")) == undisturbed
    assert sum("checkpoints/" in note for note in seen[-1]) == num_damaged, "each is named once"
    with LedgerReader(tmp_path / "edge" / LEDGER) as ledger:
        assert sum(bool(pack.resumed_from) for pack in ledger.packs()) == (num_damaged == 1)


def test_a_checkpoint_that_belongs_elsewhere_but_passes_its_checksum_is_refused_by_the_worker(
    train, rows, tmp_path: Path, sweep: Sweep, undisturbed: list[tuple]
) -> None:
    def swap(paths: list[Path]) -> None:
        name, sha256 = write_checkpoint(tmp_path / "edge", b"of another sweep")
        with LedgerWriter(tmp_path / "edge" / LEDGER) as ledger, ledger._transaction() as db:
            db.execute("UPDATE checkpoints SET name = ?, sha256 = ?", (name, sha256))

    assert train(sweep, lambda: DyingOnce(tmp_path / "edge", swap)).exit_code == 0
    assert results_of(rows("edge")) == undisturbed


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_passes_the_checksum(tmp_path: Path, data: st.DataObject) -> None:
    content = os.urandom(3000)
    name, sha256 = write_checkpoint(tmp_path, content)
    path = tmp_path / CHECKPOINTS / name
    assert read_checkpoint(tmp_path, name, sha256) == content
    at, bit = data.draw(st.integers(0, 2999)), data.draw(st.integers(0, 7))
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match="damaged"):
        read_checkpoint(tmp_path, name, sha256)


@pytest.mark.parametrize("name", ["../ledger.db", "/etc/passwd", "a/b", ".."])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        read_checkpoint(tmp_path, name, "0" * 64)
