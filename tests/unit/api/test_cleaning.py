from __future__ import annotations

from pathlib import Path

from sweep_cases import ledger_at, map_ledger, sweep_of

from orchestrator.api.upkeep import gc


def test_pictures_of_the_edge_and_the_front_that_earlier_versions_wrote_are_exports(tmp_path: Path) -> None:
    with ledger_at(tmp_path / "case") as ledger:
        map_ledger(ledger, sweep_of("axes: {lr: {values: [0.1, 1]}}\n"), ["stable", "diverged"])
    written = [tmp_path / "case" / name for name in ("edge.png", "edge.csv", "front.png", "front.csv")]
    for path in written:
        path.touch()
    list(gc(tmp_path / "case", exports=False, dry_run=False))
    assert all(path.exists() for path in written)
    said = list(gc(tmp_path / "case", exports=True, dry_run=False))
    assert any("removed 2 files of the edge" in line for line in said)
    assert not any(path.exists() for path in written)
