from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.base.errors import InputError
from orchestrator.sweepfile.settings import run_settings


def settings_in(folder: Path, text: str, *sets: str):
    (folder / "mine.yaml").write_text(text)
    return run_settings(folder / "mine.yaml", sets)


def test_a_flat_file_and_the_fixed_of_a_sweep_file_say_the_same(tmp_path: Path) -> None:
    flat = settings_in(tmp_path, "lr: 3e-3\nclip: none\nsteps: 200\nseed: 7\n")
    nested = settings_in(tmp_path, "name: mine\nobjective: gpt\nsteps: 200\nfixed: {lr: 0.003, clip: null}\n")
    assert flat.values == nested.values == {"lr": 0.003, "clip": None, "steps": 200}
    assert flat.places["clip"].endswith("mine.yaml:2")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    found = settings_in(tmp_path, "lr: 3e-3\n", "lr=1e-2", "fixed.beta2=0.95")
    assert found.values == {"lr": 0.01, "beta2": 0.95}
    assert found.places == {"lr": "--at lr=1e-2", "beta2": "--at fixed.beta2=0.95"}
    assert run_settings(None, ["lr=1e-2"]).values == {"lr": 0.01}


@pytest.mark.parametrize(
    ("text", "sets", "says"),
    [
        ("lr: 1e-3\nlr: 2e-3\n", [], "mine.yaml:2: lr: given twice"),
        ("lr: .nan\n", [], "mine.yaml:1: lr: nan is refused"),
        ("model:\n  lr: 1\n", [], "mine.yaml:1: model: holds further keys"),
        ("fixed: {lr: 1}\naxes: {beta2: {values: [0.9]}}\n", [], "mine.yaml:2: axes: are not settings of one run"),
        ("fixed: {lr: 1}\nstep: 3\n", [], "mine.yaml:2: step: is not a key .*\n.*`steps`"),
        ("fixed: 3\n", [], "mine.yaml:1: fixed: is not a mapping"),
        ("lr: 1\n", ["lr"], "--at lr: is not KEY=VALUE"),
        ("lr: 1\n", ["telemetry.every=3"], "--at telemetry.every=3: telemetry.every: is not the name of a setting"),
    ],
)
def test_what_is_no_flat_setting_is_refused_with_its_place(tmp_path: Path, text: str, sets: list, says: str) -> None:
    with pytest.raises(InputError, match=says):
        settings_in(tmp_path, text, *sets)


def test_without_a_file_or_a_setting_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--config: no setting is given"):
        run_settings(None, [])
    with pytest.raises(InputError, match="no such file"):
        run_settings(tmp_path / "mine.yaml", [])
