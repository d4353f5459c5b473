"""The table of what forks say of named causes counts each answer once."""

from typing import Any

import pytest
from diagnosis_cases import preconditioner_decay

from benchmarks.bursts import DECAY, without_limit
from benchmarks.causes import CellCause, Standing, Total, standing, summary
from orchestrator.causes.mechanisms.catalogue import MECHANISMS


def answer(
    named: str | None, confirmed: tuple[str, ...] = (), refuted: tuple[str, ...] = (), *, chance: bool = False
) -> dict[str, Any]:
    """What `sweep cause` stores of one trial, as far as the table reads it."""
    return {"named": named, "confirmed": confirmed, "refuted": refuted, "is_chance": chance}


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        (answer("sharpening", ("sharpening",)), "confirmed"),
        (answer("sharpening", ("bad_batch",)), "another"),
        (answer("sharpening", refuted=("sharpening",)), "refuted"),
        (answer("sharpening", ("bad_batch",), ("sharpening",)), "refuted"),
        (answer("sharpening", refuted=("bad_batch",)), "open"),
        (answer("sharpening", chance=True), "chance"),
        (answer(None), "unnamed"),
    ],
)
def test_a_cell_has_the_standing_of_the_cause_that_its_evidence_names(stored: dict[str, Any], says: str) -> None:
    assert standing(stored) == says


def test_the_share_of_confirmed_causes_leaves_chance_failures_out() -> None:
    facts: dict[str, Any] = {"sweep": "s", "trial_id": "0", "outcome": "spiked", "onset_step": 1, "named": "n"}
    standings: tuple[Standing, ...] = ("confirmed", "confirmed", "confirmed", "refuted", "chance", "another")
    cells = [CellCause(**facts, cell=str(i), standing=s, confirmed="", refuted="") for i, s in enumerate(standings)]
    total = Total(9, cells)
    assert (total.num_judged, total.of("confirmed")) == (5, 3)
    (line,) = summary({"s": total})
    assert line.startswith("s: 6 of 9 unstable cells forked: 3 confirmed, 1 refuted, 1 chance, 1 another")
    assert line.endswith("60% of the named confirmed")


def test_a_burst_excludes_a_decay_by_the_limit_alone() -> None:
    case = preconditioner_decay()
    norm_N = case.trace["grad_norm"].copy()
    norm_N[225] = 20.0
    evidence = case.with_trace(grad_norm=norm_N).evidence()
    with without_limit():
        assert MECHANISMS[DECAY].examine(evidence).verdict == "supported"
    assert MECHANISMS[DECAY].examine(evidence).verdict == "excluded"
