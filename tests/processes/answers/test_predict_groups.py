"""Which layer groups bind, on a real ladder of three widths."""

from pathlib import Path

import pytest

from orchestrator import run


@pytest.mark.slow
@pytest.mark.usefixtures("without_files")
def test_attention_and_mlp_bind_together_in_gpt_and_their_exponents_add_up_to_minus_one(tmp_path: Path) -> None:
    """Without norms a rate that is lower everywhere is a lower rate, and the other groups hardly bind."""
    share = {"log": [0.1, 3.0]}
    sweep = {
        "name": "groups",
        "objective": "gpt",
        "steps": 150,
        "seeds": [0],
        "sample": {"method": "sobol", "num": 96},
        "axes": {
            "lr": {"log": [4e-3, 0.256]},
            "mlp_lr": share,
            "attention_lr": share,
            "width": {"values": [8, 16, 32]},
        },
        "fixed": {"norm": "none", "init": "fan_in", "beta2": 0.95, "warmup": 10, "clip": None, "batch_size": 8},
        "tracking": {"enabled": False},
    }
    answer = run(sweep, results=tmp_path, executor="inline").predict(at=("width=64", "mlp_lr=1", "attention_lr=1"))
    exponents = answer.to_plain()["exponents"]
    assert [exponents[name]["binds"] for name in ("width", "mlp_lr", "attention_lr")] == [None, True, True]
    assert exponents["mlp_lr"]["at"] + exponents["attention_lr"]["at"] == pytest.approx(-1, abs=0.3)
