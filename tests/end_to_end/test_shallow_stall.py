"""The planted shallow stall beside its control, the same change of the text with pre-norm, and the advised change."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.api.running import run_lines
from orchestrator.base.files import LEDGER
from orchestrator.causes.advice import advise
from orchestrator.causes.diagnosis import Diagnosis, examine
from orchestrator.ledger.reader import LedgerReader
from orchestrator.render.text import show
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep

FILE = Path(__file__).parents[2] / "sweeps/causes/shallow_stall.yaml"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerReader]:
    folder = tmp_path_factory.mktemp("results")
    both = Overrides(axes=("norm_place=values:post,pre",))
    sweep = load_sweep(FILE, both)
    assert show(run_lines(sweep, folder, "inline")) == 0
    with LedgerReader(folder / sweep.name / LEDGER) as ledger:
        yield ledger


def diagnoses(ledger: LedgerReader, **cell: Any) -> list[Diagnosis]:
    """Those of a cell's trials."""
    rows = ledger.trials()
    found = [examine(ledger, row, "every one", rows) for row in rows if matches(row.cell, cell)]
    assert found
    return found


def matches(cell: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(cell[name] == value for name, value in wanted.items())


def test_it_is_named_with_post_norm_and_not_with_pre_norm_where_the_text_changes_alike(trained: LedgerReader) -> None:
    stalled, control = (diagnoses(trained, norm_place=place) for place in ("post", "pre"))
    assert {found.evidence.onset for found in (*stalled, *control)} == {200}
    assert {found.cause and found.cause.mechanism for found in stalled} == {"shallow_stall"}
    assert "shallow_stall" not in {one.mechanism for found in control for one in found.of("supported")}


def test_the_gradient_of_the_stalled_blocks_grows_a_thousandfold_at_the_change(trained: LedgerReader) -> None:
    for found in diagnoses(trained, norm_place="post", eps=1e-2):
        norm = found.evidence.column("grad_norm/shallow")
        before, after = norm.between(150, 200).median(), norm.between(200, 250).largest()
        assert before is not None
        assert after is not None
        assert after > 1000 * before


def test_the_advised_change_saves_the_run(trained: LedgerReader, tmp_path: Path) -> None:
    stalled, advised = (diagnoses(trained, norm_place="post", eps=eps) for eps in (1e-2, 1e-3))
    for found in stalled:
        first = advise(found.evidence, found.cause.mechanism, tmp_path)[0]
        assert (first.move.setting, first.move.direction) == ("eps", "lower")
        assert first.nearest.value == 1e-3
    assert {found.trial.outcome for found in stalled} == {"diverged"}
    assert {found.trial.outcome for found in advised} == {"spiked"}, "back on the trend"
    worst, best = max(final_loss(found) for found in advised), min(final_loss(found) for found in stalled)
    assert worst < best / 3


def final_loss(found: Diagnosis) -> float:
    """The median of the last ten losses."""
    return float(np.median(found.evidence.loss.last(10).value_N))
