"""A larger batch as a remedy: of a run that trains on some of the micro-batches that are drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pack_cases import SMALL
from sweep_cases import sweep_of

from orchestrator.base.errors import InputError
from orchestrator.causes.remedies.training import Asked, find_remedies

HEAD = "name: batches\nobjective: gpt\nsteps: 60\n"
BODY = "axes: {{lr: {{values: [0.01, 3.0]}}}}\nfixed: {}\ntracking: {{enabled: false}}\n"
FIXED = {**SMALL["gpt"], "norm": None, "init": "fan_in", "batch_size": 8, "accumulate": 4}


@pytest.fixture
def lost(train: Callable, tmp_path: Path) -> Callable[..., Path]:
    """The folder of a sweep with a run that is lost, and that trains on so many micro-batches."""

    def made(**changes: float) -> Path:
        train(sweep_of(BODY.format(json.dumps({**FIXED, **changes})), HEAD))
        return tmp_path / "batches"

    return made


def test_twice_the_batch_is_tried_where_there_is_more_of_it(lost: Callable[..., Path]) -> None:
    folder = lost(micro_batches=2)
    found = find_remedies(folder, None, {}, Asked(at=("0",), replicates=1, pairs=False))
    assert found.control_repeats is True
    (twice,) = (one for one in found.tallies if one.remedy.name == "micro_batches x2")
    assert twice.tried == 1
    # The same change written as a number has the same result.
    asked = Asked(("micro_batches=4",), ("0",), 1, pairs=False)
    (written_out,) = (one for one in find_remedies(folder, None, {}, asked).tallies if one.remedy.entries)
    assert found.control is not None
    assert written_out.final_loss == twice.final_loss != found.control.final_loss
    assert twice.final_loss is not None


def test_a_run_on_the_whole_batch_has_no_more_of_it(lost: Callable[..., Path]) -> None:
    folder = lost()
    found = find_remedies(folder, None, {}, Asked(at=("0",), replicates=1, pairs=False))
    assert not any("micro_batches" in one.remedy.name for one in found.tallies)
    with pytest.raises(InputError, match="factor on micro_batches, which is null"):
        find_remedies(folder, None, {}, Asked(("micro_batches=x2",), ("0",), 1))
