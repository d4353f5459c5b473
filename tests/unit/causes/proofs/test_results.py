"""What counts of forks prove about mechanisms."""

import numpy as np
import pytest
from diagnosis_cases import row_of

from orchestrator.causes.proofs.results import Proof, Proofs, judged, least_replicates

OPEN, LOST = 0, 8  # of eight forks, how many fail


def proof(name: str = "preconditioner_decay", spiked: int = OPEN, control: int = LOST, **changes) -> Proof:
    fields = {"fork": "its fork", "step": 90, "evidence": "supported", "tried": 8, "control_tried": 8}
    return Proof(name=name, spiked=spiked, control_spiked=control, **{**fields, **changes})


def verdicts(*proofs: Proof) -> list[str]:
    return [each.verdict for each in judged(proofs)]


def proofs_of(*found: Proof) -> Proofs:
    return Proofs(sweep="case", trial=row_of("diverged", 100), onset=100, named=None, mechanisms=judged(found))


def test_a_mechanism_without_which_no_fork_fails_is_confirmed_and_one_that_changes_nothing_refuted() -> None:
    assert verdicts(proof(spiked=0), proof("logit_growth", spiked=8)) == ["confirmed", "refuted"]
    assert proofs_of(proof(spiked=0), proof("logit_growth", spiked=8)).confirmed == ("preconditioner_decay",)


def test_a_difference_that_chance_explains_leaves_a_mechanism_open() -> None:
    assert verdicts(proof(spiked=5)) == ["not told apart"]
    assert verdicts(proof(spiked=0, tried=2, control=2, control_tried=2)) == ["not told apart"]


def test_more_mechanisms_need_more_evidence() -> None:
    """Three of five forks that survive would do for one mechanism, and do not for six."""
    fields = {"tried": 5, "control_tried": 5, "control": 5}
    assert verdicts(proof(spiked=1, **fields)) == ["confirmed"]
    others = [proof(name, spiked=5, **fields) for name in ("logit_growth", "sharpening", "bad_batch")]
    found = judged([proof(spiked=1, **fields), *others])
    assert found[0].verdict == "not told apart"
    assert found[0].p_value == pytest.approx(4 * found[0].chance)


@pytest.mark.parametrize("control", [0, 2, 4])
def test_a_run_that_survives_with_other_data_in_half_of_the_forks_failed_by_chance(control: int) -> None:
    found = proofs_of(proof(spiked=0, control=control), proof("logit_growth", spiked=8, control=control))
    assert found.is_chance
    assert found.confirmed == found.refuted == ()


def test_a_batch_that_fails_in_any_run_is_no_chance() -> None:
    found = proofs_of(proof("bad_batch", keeps_batch=True))
    assert not found.is_chance
    assert found.confirmed == ("bad_batch",)


def test_a_lower_rate_confirms_only_what_the_evidence_supports_and_nothing_next_to_a_better_fork() -> None:
    by_rate = proof("sharpening", changes_rate=True)
    assert verdicts(by_rate) == ["confirmed"]
    assert verdicts(proof("sharpening", changes_rate=True, evidence="unknown")) == ["not told apart"]
    assert verdicts(by_rate, proof()) == ["not told apart", "confirmed"]
    assert verdicts(by_rate, proof(spiked=8)) == ["confirmed", "refuted"]


def test_what_is_not_told_apart_has_a_reason_and_a_verdict_has_none() -> None:
    by_rate = proof("sharpening", changes_rate=True)
    found = [
        *judged([by_rate, proof(), proof("logit_growth", spiked=8)]),
        *judged([proof("sharpening", changes_rate=True, evidence="unknown")]),
        *judged([proof("sharpening", spiked=8, may_remain=True)]),
        *judged([proof(control=3)]),
        *judged([proof(spiked=5)]),
        *judged([proof(tried=0, spiked=0)]),
    ]
    assert [bool(each.reason) for each in found] == [each.verdict == "not told apart" for each in found]
    assert len({each.reason for each in found if each.reason}) == 6


@pytest.mark.parametrize("num_mechanisms", [1, 2, 4, 9])
def test_fewer_replicates_than_the_least_confirm_nothing_even_if_all_survive(num_mechanisms: int) -> None:
    least = least_replicates(num_mechanisms)
    for num, is_enough in ((least - 1, False), (least, True)):
        fields = {"tried": num, "control_tried": num, "control": num}
        others = [proof(name, spiked=num, **fields) for name in "abcdefgh"[: num_mechanisms - 1]]
        assert (judged([proof(spiked=0, **fields), *others])[0].verdict == "confirmed") == is_enough


def test_a_mechanism_that_may_remain_in_its_forks_is_not_refuted() -> None:
    assert verdicts(proof("over_the_threshold", spiked=LOST, changes_rate=True)) == ["refuted"]
    assert verdicts(proof("over_the_threshold", spiked=LOST, changes_rate=True, may_remain=True)) == ["not told apart"]


def test_forks_without_a_result_prove_nothing() -> None:
    found = proofs_of(proof(tried=0, control_tried=0, spiked=0, control=0))
    assert found.mechanisms[0].p_value is None
    assert found.mechanisms[0].verdict == "not told apart"
    assert not found.is_chance


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_chance_alone_confirms_a_cause_in_at_most_one_of_twenty_runs(share: float) -> None:
    """Each fork fails with the same chance, whatever it takes away: six mechanisms, 400 runs."""
    draws = np.random.default_rng(0).binomial(8, share, (400, 7))
    names = ("preconditioner_decay", "logit_growth", "epsilon_floor", "short_memory", "shallow_stall", "bad_batch")
    runs = (
        [proof(name, spiked=int(n), control=int(run[6])) for name, n in zip(names, run, strict=False)] for run in draws
    )
    assert sum(any(each.verdict == "confirmed" for each in judged(run)) for run in runs) <= 20
