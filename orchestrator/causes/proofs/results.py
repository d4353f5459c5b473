"""What forks prove: how often runs fail with and without each mechanism, and the verdict on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

from orchestrator.base.intervals import CONFIDENCE, exact_interval, fisher, holm
from orchestrator.base.query import hidden, reported
from orchestrator.base.trial_result import TrialResult
from orchestrator.causes.mechanisms.catalogue import title_of

Judgement = Literal["confirmed", "refuted", "not told apart"]
ALPHA = 1 - CONFIDENCE  # the highest p-value that confirms


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the forks about one mechanism came to.

    ``spiked`` of ``tried`` forks without it failed soon, and ``control_spiked`` of ``control_tried`` with it.
    ``p_value`` is the chance that forks without it fail so much more seldom, corrected for the number of mechanisms;
    None without results. ``evidence`` is the verdict of the diagnosis, ``step`` the first step of the fork, ``reason``
    why the mechanism is neither confirmed nor refuted.
    """

    name: str
    fork: str
    step: int
    evidence: str
    tried: int
    spiked: int
    control_tried: int
    control_spiked: int
    changes_rate: bool = hidden(default=False)
    keeps_batch: bool = hidden(default=False)
    may_remain: bool = hidden(default=False)
    p_value: float | None = None
    verdict: Judgement = "not told apart"
    reason: str = hidden(default="")

    @property
    def title(self) -> str:
        """The title of the mechanism."""
        return title_of(self.name)

    @property
    def is_complete(self) -> bool:
        """Whether there are forks to compare."""
        return self.tried > 0 and self.control_tried > 0

    @property
    def survives(self) -> bool:
        """Whether at least half of the forks with the mechanism survive: then chance decided."""
        return self.control_tried > 0 and 2 * self.control_spiked <= self.control_tried

    @property
    def chance(self) -> float | None:
        """Fisher's p-value, for this mechanism alone."""
        if not self.is_complete:
            return None
        alive = self.tried - self.spiked, self.tried, self.control_tried - self.control_spiked, self.control_tried
        return fisher(*alive)

    @property
    def helps(self) -> bool:
        """Whether forks without it fail more seldom than chance explains, and in at most half of all."""
        return self.p_value is not None and self.p_value <= ALPHA and 2 * self.spiked <= self.tried


def judged(proofs: Sequence[Proof]) -> tuple[Proof, ...]:
    """The ``proofs`` with p-values and verdicts.

    Without a mechanism that is confirmed, forks fail seldom, and with it most do. Forks without one that is refuted
    fail in more than half of all, at 95 %. Another learning rate helps whatever the mechanism is: it confirms one only
    if the evidence supports it and no other fork helps. A mechanism that may remain in its forks is not refuted.
    """
    corrected = holm([proof.chance for proof in proofs])
    tested = [replace(proof, p_value=p) for proof, p in zip(proofs, corrected, strict=True)]
    confirmed = {proof.name for proof in tested if proof.helps and not proof.survives and not proof.changes_rate}
    if not confirmed:
        by_rate = [proof for proof in tested if proof.helps and not proof.survives and proof.evidence == "supported"]
        confirmed = {proof.name for proof in by_rate[:1]}
    verdicts = [_verdict(proof, proof.name in confirmed) for proof in tested]
    return tuple(
        replace(proof, verdict=verdict, reason=_why_open(proof) if verdict == "not told apart" else "")
        for proof, verdict in zip(tested, verdicts, strict=True)
    )


def _verdict(proof: Proof, is_confirmed: bool) -> Judgement:
    if is_confirmed:
        return "confirmed"
    if not proof.is_complete or proof.survives or proof.helps or proof.may_remain:
        return "not told apart"
    return "refuted" if exact_interval(proof.spiked, proof.tried)[0] > 0.5 else "not told apart"


def least_replicates(num_mechanisms: int) -> int:
    """The fewest forks of each kind that can confirm one of so many mechanisms, if all survive without it."""
    return next(num for num in count(1) if num_mechanisms * fisher(num, num, 0, num) <= ALPHA)


def _why_open(proof: Proof) -> str:
    """Why a mechanism is neither confirmed nor refuted."""
    if not proof.is_complete:
        return "no result yet"
    if proof.survives:
        return "half or more survive with it"
    if proof.helps and proof.evidence != "supported":
        return "another rate helps against most causes, and the evidence does not support this one"
    if proof.helps:
        return "another rate helps against most causes, and another cause is confirmed"
    if proof.may_remain and 2 * proof.spiked > proof.tried:
        return "even so a step may be over the threshold"
    return "chance may explain the difference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs:
    """The proofs about one trial; ``named`` is the mechanism of the diagnosis.

    Mechanisms in ``untried`` are open, and no fork takes them away alone. ``num_missing`` forks have no result yet,
    ``spent_steps`` were trained after the forks. With ``replicates_nudged`` forks differ by a step of another length;
    if they are ``replicates_alike``, other data changed nothing, and one of each kind counts.
    """

    sweep: str
    trial: TrialResult = hidden()
    onset: int | None = hidden()
    named: str | None
    mechanisms: tuple[Proof, ...] = ()
    untried: tuple[str, ...] = ()
    num_forks: int = 0
    num_missing: int = 0
    spent_steps: int = 0
    control_repeats: bool | None = None
    replicates_nudged: bool = False
    replicates_alike: bool = False

    @reported
    def is_chance(self) -> bool:
        """Whether the run would have survived with other data in half of the forks, as seen from the latest step."""
        tried = [proof for proof in self.mechanisms if proof.control_tried and not proof.keeps_batch]
        latest = max(tried, key=lambda proof: proof.step, default=None)
        return latest is not None and latest.survives

    @reported
    def confirmed(self) -> tuple[str, ...]:
        """The confirmed mechanisms."""
        return self._with("confirmed")

    @reported
    def refuted(self) -> tuple[str, ...]:
        """The refuted mechanisms."""
        return self._with("refuted")

    def _with(self, verdict: Judgement) -> tuple[str, ...]:
        return tuple(proof.name for proof in self.mechanisms if proof.verdict == verdict)
