"""Which forks would prove or refute each mechanism that the evidence on a trial leaves open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from objectives.base import Objective
from objectives.entries import Intervention, plain
from orchestrator.base.space import canonical_text
from orchestrator.base.vocabulary import COLLAPSED
from orchestrator.causes.diagnosis import Diagnosis
from orchestrator.causes.mechanisms.catalogue import MECHANISMS
from orchestrator.causes.mechanisms.mechanism import Finding
from orchestrator.causes.mechanisms.removal import Removal
from orchestrator.causes.mechanisms.routing import router_collapse
from orchestrator.causes.remedies.forking import refusal
from orchestrator.causes.remedies.remedy import Entry, name_of, own_interventions

_NUDGE = 1e-2  # of the learning rate of one step: replicates of a run whose steps all see the same data


@dataclass(frozen=True, slots=True)
class ProofFork:
    """A run that has ``entries`` from a step of the trial."""

    entries: tuple[Entry, ...]

    @property
    def step(self) -> int:
        """The step of the fork."""
        return min(entry["at"] for entry in self.entries)

    def interventions(self, own: Sequence[Entry] = ()) -> list[dict[str, Any]]:
        """The ``interventions`` of the forked run, including the original's ``own``."""
        return [*map(plain, own), *map(plain, self.entries)]


@dataclass(frozen=True, slots=True)
class Experiment:
    """Forks without one mechanism, and forks with everything; both have other data, or a rate that differs little."""

    finding: Finding
    removal: Removal
    without: tuple[ProofFork, ...]
    controls: tuple[ProofFork, ...]

    @property
    def mechanism(self) -> str:
        """The key of the mechanism."""
        return self.finding.mechanism

    @property
    def name(self) -> str:
        """The fork in words."""
        if self.removal.keeps is not None:
            return f"another batch at {self.removal.keeps}"
        return name_of(self.removal.entries)


@dataclass(frozen=True, slots=True)
class Plan:
    """The experiments on one trial, and the mechanisms that are open and that no fork takes away alone."""

    experiments: tuple[Experiment, ...]
    untried: tuple[Finding, ...]

    @property
    def forks(self) -> list[ProofFork]:
        """All forks, each once, by their step: forks of one step share their past."""
        forks = [fork for each in self.experiments for fork in (*each.controls, *each.without)]
        different = {key_of(fork.entries): fork for fork in forks}.values()
        return sorted(different, key=lambda fork: fork.step)


def plan_of(diagnosis: Diagnosis, objective: Objective, replicates: int) -> Plan:
    """The forks with so many ``replicates`` of each kind; a mechanism whose fork the settings refuse is not tried.

    Of a trial whose loss was calm while its router collapsed, only the router is open, as in its diagnosis.
    """
    trial, evidence = diagnosis.trial, diagnosis.evidence
    sees_all = objective.is_full_batch(trial.config) and not trial.config.get("noise")
    experiments, untried = [], []
    for finding in diagnosis.findings:
        mechanism = MECHANISMS[finding.mechanism]
        # That one step jumped is seen in any run; only a batch that the evidence blames is worth a fork.
        is_open = finding.verdict == "supported" or (finding.verdict == "unknown" and finding.mechanism != "bad_batch")
        if not is_open or mechanism.is_companion or evidence.outcome == "stable":
            continue
        if evidence.outcome == COLLAPSED and finding.mechanism != router_collapse.key:
            continue
        removal = mechanism.removal(evidence, finding.began_step)
        if removal is None or removal.step >= trial.steps - 1:
            untried.append(finding)
            continue
        numbers = range(1, replicates + 1)
        controls = tuple(_control(removal, number, sees_all=sees_all) for number in numbers)
        without = tuple(_without(removal, number, sees_all=sees_all) for number in numbers)
        if refusal(objective, trial, without[0]) is None:
            experiments.append(Experiment(finding, removal, without, controls))
        else:
            untried.append(finding)
    return Plan(tuple(experiments), tuple(untried))


def _control(removal: Removal, number: int, *, sees_all: bool) -> ProofFork:
    if removal.keeps is not None and removal.keeps > removal.step:
        other: Entry = {"at": removal.step, "data": number, "lasts": removal.keeps - removal.step}
        return ProofFork((other,))
    return ProofFork((_varied(removal.step, number, sees_all=sees_all),))


def _without(removal: Removal, number: int, *, sees_all: bool) -> ProofFork:
    entries = ({**entry, "at": entry["at"] + removal.step} for entry in removal.entries)
    return ProofFork((_varied(removal.step, number, sees_all=sees_all), *entries))


def _varied(step: int, number: int, *, sees_all: bool) -> Entry:
    """Other data from a step, or one step of a little more length where every step sees the same data."""
    if sees_all:
        return {"at": step, "set": {"lr": f"x{1 + _NUDGE * number:.4g}"}, "lasts": 1}
    return {"at": step, "data": number}


def key_of(interventions: Sequence[Entry]) -> str:
    """One text for interventions that mean the same."""
    entries = [Intervention.model_validate(dict(entry), strict=False).model_dump() for entry in interventions]
    return canonical_text(sorted(entries, key=lambda entry: entry["at"]))


def keys_of(forks: Sequence[ProofFork], diagnosis: Diagnosis) -> Iterator[str]:
    """The texts of the ``forks`` of a diagnosed trial."""
    own = own_interventions(diagnosis.trial)
    yield from (key_of(fork.interventions(own)) for fork in forks)
