"""A script is trained as a sweep file says."""

from pathlib import Path

from custom_cases import sweep_in

from orchestrator.health import examine_sweep


def test_the_doctor_finds_a_finished_sweep_of_a_script_sound(tmp_path: Path) -> None:
    from custom_cases import trained

    trained(sweep_in(tmp_path), tmp_path)
    bad = [f.text for f in examine_sweep(tmp_path / "results" / "mine") if f.level in ("fault", "warning")]
    assert bad == []
