"""The table of what forks say of named causes counts each answer once."""

import csv
import re
from collections import Counter
from pathlib import Path
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


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "diagnosis.md").read_text()
FITTED = {("0.95", "0.001", "0"), ("0.98", "0.001", "2"), ("0.98", "0.002", "1"), ("0.99", "0.0001", "1")}


def table_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / "reference" / name).open() as file:
        return list(csv.DictReader(file))


def test_the_page_has_the_standings_of_the_table_and_four_of_five_named_causes_are_confirmed() -> None:
    rows = table_of("causes.csv")
    counts = Counter((row["sweep"], row["standing"]) for row in rows)
    for names, confirmed, refuted, still_open in re.findall(
        r"^\| (`lr_.*|`beta2.*|`short.*) \| \d+ of \d+ \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE
    ):
        sweeps = re.findall(r"`(\w+)`", names)
        shown = {"confirmed": int(confirmed), "refuted": int(refuted), "open": int(still_open)}
        assert shown == {each: sum(counts[sweep, each] for sweep in sweeps) for each in shown}, names
    judged = [row["standing"] for row in rows if row["standing"] not in ("chance", "unnamed")]
    assert f"forks confirm {judged.count('confirmed')} of {len(judged)} named causes" in PAGE
    assert judged.count("confirmed") >= 0.8 * len(judged)


def test_the_page_has_what_forks_say_of_fresh_decays_that_the_limit_for_bursts_leaves_and_excludes() -> None:
    fresh = [row for row in table_of("bursts.csv") if (*re.findall(r"=(\S+)", row["cell"]), row["seed"]) not in FITTED]
    counts = Counter((row["by_limit"], row["verdict"]) for row in fresh)
    named, excluded = (sum(n for (by, _), n in counts.items() if by == which) for which in ("named", "excluded"))
    assert (counts["named", "confirmed"], named) == (7, 10)
    assert (counts["excluded", "confirmed"], excluded) == (0, 4)
    said = "forks confirm seven of ten, and none of four that a burst of the gradient excludes"
    assert said in " ".join(PAGE.split())
