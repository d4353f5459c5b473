from __future__ import annotations

from pathlib import Path

from sweep_cases import sweep_with

from orchestrator.driver.planning import check_same_axes


def test_a_ledger_that_another_driver_has_just_created_is_no_results_of_another_question(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    check_same_axes(sweep_with(), tmp_path)
