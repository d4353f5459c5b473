"""Group trials into packs of one structure, in sizes that keep every worker busy to the end; dispatch and resume."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from objectives.base import Objective, Rounding, TrainingConfig
from objectives.native.library import KERNELS
from orchestrator.base.errors import StorageError
from orchestrator.base.files import TRIALS, read_checkpoint
from orchestrator.base.packs import Checkpoint, Keep, Launch, LaunchedPack, Member, Pack, StackedPack, Telemetry
from orchestrator.base.space import Trial, canonical_text, format_value
from orchestrator.ledger.reader import LedgerReader
from orchestrator.sweepfile.custom_trainer import CustomTrainer, holds_batch
from orchestrator.sweepfile.sections import ResourcesConfig
from orchestrator.sweepfile.spec import Sweep
from orchestrator.worker.machine import fastest_width, load_measurements

# The stacking width that pays off on most CPUs at proxy sizes; a measurement on the machine overrides it.
_EXPECTED_WIDTH = 16
_LATER = {"interventions", "control"}  # fields that change a trial while it trains


def make_packs(sweep: Sweep, trials: Sequence[Trial], workers: int) -> list[Pack]:
    """Group ``trials`` into packs of one structure; a trial of a custom trainer is a pack of its own.

    A pack trains some members at a time and the rest as rows become free. Early packs hold many members, to save
    start-up time; the last packs are one round each, so that no worker waits long for another. If slow trials are
    pruned, every pack is one round, because a pack is compared with the packs that ended before it; except if the
    width is not known beforehand.
    """
    if isinstance(sweep.objective, CustomTrainer):
        return [pack_of(sweep, [Member(t.trial_id, t.config, t.seed)], t.steps) for t in trials]
    is_width_known = sweep.resources.pack != "auto" or not sweep.resources.gpus
    one_round_each = sweep.stopping.slow is not None and is_width_known
    packs: list[Pack] = []
    for alike in map(_families_together, grouped(trials, lambda trial: structure_of(sweep, trial))):
        done = 0
        width = expected_width(sweep, alike[0])
        for size in _of_whole_families(_sizes(len(alike), width, workers, one_round_each=one_round_each), alike):
            taken = [Member(t.trial_id, t.config, t.seed) for t in alike[done : done + size]]
            packs.append(pack_of(sweep, taken))
            done += size
    return packs


def grouped(trials: Iterable[Trial], key: Callable[[Trial], str]) -> list[list[Trial]]:
    """Group ``trials`` with equal keys, in the order of their first members."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return list(groups.values())


def _family(trial: Trial) -> str:
    """A key shared by trials that train as one until their later changes differ."""
    return canonical_text({**{k: v for k, v in trial.config.items() if k not in _LATER}, "seed": trial.seed})


def _families_together(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Sort ``trials`` so that families are contiguous, in the order of their first members."""
    if not any(_LATER & trial.config.keys() for trial in trials):
        return trials
    return list(itertools.chain.from_iterable(grouped(trials, _family)))


def _of_whole_families(sizes: Sequence[int], trials: Sequence[Trial]) -> list[int]:
    """Move each cut between packs of ``sizes`` to the end of the family that it would split."""
    if not any(_LATER & trial.config.keys() for trial in trials):
        return list(sizes)
    names = list(map(_family, trials))
    cuts = [0]
    for cut in itertools.accumulate(sizes):
        end = next((i for i in range(cut, len(names)) if i == 0 or names[i] != names[i - 1]), len(names))
        # A family that fills whole packs is cut as ``sizes`` says.
        cuts.append(max(cuts[-1], end if end - cut < max(sizes) // 2 else cut))
    return [high - low for low, high in itertools.pairwise(cuts) if high > low]


def _stacked(sweep: Sweep) -> Objective:
    """The sweep's objective, which is not a custom trainer."""
    assert isinstance(sweep.objective, Objective)
    return sweep.objective


def structure_of(sweep: Sweep, trial: Trial | Member) -> str:
    """Return the settings that all members of a pack share, as canonical text."""
    # Includes defaults of inactive fields: without a warmup its shape is irrelevant, and the trial fits a pack with
    # one.
    objective = _stacked(sweep)
    config = objective.config_of(trial.config)
    return canonical_text(config.model_dump(mode="json", exclude=set(objective.per_member_fields)))


def with_numerics(sweep: Sweep, ledger: LedgerReader) -> Sweep:
    """Return ``sweep`` with the roundings of the results in ``ledger``, which further results share.

    They are frozen when a sweep first runs. In an older ledger each structure keeps what most of its trials recorded.
    """
    if isinstance(sweep.objective, CustomTrainer):
        return sweep
    if (frozen := ledger.roundings()) is not None:
        return replace(sweep, roundings=frozen)
    environments = {pack.pack_id: pack.environment for pack in ledger.packs()}
    recorded: dict[str, Counter[Rounding]] = {}
    for row in ledger.trials(removed=True) if environments else ():
        rounding = Rounding.of_facts(environments.get(row.pack_id or "", {}))
        if rounding is not None and (trial := sweep.trial_like(row)) is not None:
            recorded.setdefault(_key(structure_of(sweep, trial)), Counter())[rounding] += 1
    most = {structure: counts.most_common(1)[0][0] for structure, counts in recorded.items()}
    return replace(sweep, roundings={**sweep.roundings, **most})


def rounding_of(sweep: Sweep, trial: Trial | Member) -> Rounding:
    """Return what fixes the results of ``trial`` bit for bit, in every pack and on every machine."""
    rounding = sweep.roundings.get(_key(structure_of(sweep, trial))) or sweep.roundings.get("", Rounding())
    config = _stacked(sweep).config_of(trial.config)
    # A sweep that began on a CPU may go on with a GPU.
    if rounding.kernels == "native" and (sweep.resources.gpus or not config.has_native_kernels):
        rounding = replace(rounding, kernels="default")
    return replace(rounding, is_alone=rounding.is_alone or (rounding.compiled and not config.can_be_stacked))


def kernels_of(sweep: Sweep) -> tuple[str, ...]:
    """The native kernels that a new sweep like this one surely needs, if any."""
    if isinstance(sweep.objective, CustomTrainer) or not sweep.trials:
        return ()
    structural = [name for name in sweep.axis_names if name not in sweep.objective.per_member_fields]
    one_of_each = {tuple(trial.cell.get(name) for name in structural): trial for trial in sweep.trials}
    if not any(rounding_of(sweep, trial).kernels == "native" for trial in one_of_each.values()):
        return ()
    return tuple(name for name in KERNELS if name != "hessian" or sweep.telemetry.curvature)


def compile_note(sweep: Sweep) -> str | None:
    """Say that a sweep that began eager is not compiled because its file says so now, or return None."""
    if not sweep.resources.compile or sweep.roundings.get("", Rounding()).compiled:
        return None
    return "resources.compile has no effect on a sweep that began eager; give it another --name"


def _key(structure: str) -> str:
    return hashlib.sha256(structure.encode()).hexdigest()[:16]


def plan_text(sweep: Sweep, pack: Pack, reason: str) -> str:
    """Describe in one line how a pack trains, with the axes that set its structure apart from other packs.

    ``reason`` is the worker's choice of a plan; the measurements after its colon are for the ledger.
    """
    structure = structure_text(sweep, pack.members[0].config)
    of = f" of {structure}" if structure else ""
    return f"packs{of}: {reason.partition(':')[0]}"


def structure_text(sweep: Sweep, config: Mapping[str, Any]) -> str:
    """Name the values of the axes that set the structure of ``config`` apart; empty without any."""
    of_member = _stacked(sweep).per_member_fields
    structural = [name for name in sweep.axis_names if name in config and name not in of_member]
    return ", ".join(f"{name} {format_value(config[name])}" for name in structural)


def expected_width(sweep: Sweep, trial: Trial) -> int:
    """Members that will train at a time: as set in the sweep file, or as measured on this machine."""
    objective = _stacked(sweep)
    config = objective.config_of(trial.config)
    if not config.can_be_stacked:
        return 1
    if sweep.resources.pack != "auto":
        return sweep.resources.pack
    device = "cuda" if sweep.resources.gpus else "cpu"
    kernels = rounding_of(sweep, trial).measured
    known = load_measurements(objective, config, device, sweep.resources.cpus, kernels) if device == "cpu" else []
    num_trials = max(len(sweep.trials), sweep.max_trials or 0)
    return fastest_width(known, num_trials).width if known else _EXPECTED_WIDTH


def trials_at_a_time(sweep: Sweep, slots: int) -> tuple[int, int]:
    """Return the size of a whole pack, and how many trials ``slots`` workers train at a time.

    Packs are narrower if the search limits how many trials run at a time, but no worker is left without a trial.
    """
    if isinstance(sweep.objective, CustomTrainer) or not sweep.trials:
        return 1, slots
    width = expected_width(sweep, sweep.trials[0])
    if sweep.max_concurrent is not None:
        width = min(width, -(-sweep.max_concurrent // slots))
    return width, slots * width


def _sizes(num_trials: int, width: int, workers: int, *, one_round_each: bool = False) -> list[int]:
    """Sizes of packs that split ``num_trials`` among ``workers``, in rounds of at most ``width`` members.

    Each worker gets the same number of rounds, and a pack takes half of one worker's share of the remainder, or
    ``one_round_each``.
    """
    num_rounds = math.ceil(math.ceil(num_trials / width) / workers) * workers
    num_rounds = min(num_rounds, num_trials)
    bounds = [round(i * num_trials / num_rounds) for i in range(num_rounds + 1)]
    taken = [0]
    while taken[-1] < num_rounds:
        share = 1 if one_round_each else (num_rounds - taken[-1]) // (2 * workers)
        taken.append(taken[-1] + max(1, share))
    return [bounds[high] - bounds[low] for low, high in itertools.pairwise(taken)]


def pack_of(sweep: Sweep, members: Sequence[Member], width: int | None = None) -> Pack:
    """Make a pack of ``members``, at most ``width`` at a time; None uses the sweep's setting."""
    objective, resources = sweep.objective, sweep.resources
    shared: dict[str, Any] = {
        "pack_id": uuid.uuid4().hex[:12],
        "steps": members[0].config["steps"],
        "members": tuple(members),
        "stopping": sweep.stopping.model_dump(),
        "cpus": resources.cpus,
        "gpus": resources.gpus,
    }
    if isinstance(objective, CustomTrainer):
        return LaunchedPack(**shared, launch=_launch(sweep, objective, members[0].config))
    config = objective.config_of(members[0].config)
    if width is None and resources.pack != "auto" and config.can_be_stacked:
        width = resources.pack
    return StackedPack(
        **shared,
        objective=getattr(objective, "reference", "") or objective.name,
        folder=objective.folder,
        width=width,
        rounding=rounding_of(sweep, members[0]),
        validate_every=sweep.validation.every,
        telemetry=Telemetry(**sweep.telemetry.model_dump()),
        checkpoint_s=sweep.checkpoint.every_s,
        checkpoint_steps=sweep.checkpoint.every_steps,
        keep=None if sweep.keep is None else Keep(sweep.keep.every, sweep.keep.last),
        workers=resources.most_workers,
        sizes=world_sizes(objective, config, resources) if resources.is_elastic else (),
    )


def world_sizes(objective: Objective, config: TrainingConfig, resources: ResourcesConfig) -> tuple[int, ...]:
    """Return the numbers of processes, ascending, that can share each batch of a configuration."""

    def can_share(workers: int) -> bool:
        try:
            if workers > 1 and objective.check_workers is not None:
                objective.check_workers(config, workers)
        except ValueError:
            return False
        return True

    return tuple(filter(can_share, range(resources.fewest_workers, resources.most_workers + 1)))


def _launch(sweep: Sweep, trainer: CustomTrainer, config: Mapping[str, Any]) -> Launch:
    resume, resources = trainer.section.resume, sweep.resources
    sizes = range(resources.fewest_workers, resources.most_workers + 1) if resources.is_elastic else ()
    return Launch(
        folder=trainer.folder,
        workers=trainer.workers,
        gpus_per_worker=resources.gpus_per_worker or resources.gpus,
        checkpoint=resume.checkpoint if resume is not None else None,
        resume_arguments=tuple(resume.arguments) if resume is not None else (),
        grace_s=trainer.section.grace_s,
        silence_s=resources.stall_timeout_s,
        preload=trainer.preload,
        diverged_if=trainer.section.diverged_if,
        maximizes=trainer.section.metrics.score is not None and bool(trainer.section.metrics.score.maximize),
        sizes=tuple(size for size in sizes if holds_batch(config, size)),
    )


def planned_workers(sweep: Sweep) -> int:
    """Packs at a time on this machine, as the executor would choose."""
    if sweep.resources.parallel != "auto":
        return sweep.resources.parallel
    return max(1, len(os.sched_getaffinity(0)) // (sweep.resources.cpus * sweep.resources.most_workers))


def lookahead(sweep: Sweep) -> int:
    """Return how many packs are queued beyond the running ones, so that no worker waits for the driver.

    None if slow trials are stopped, since a pack is compared with the trials that have a result when it is dispatched;
    and none of elastic trials, whose first process would take a place that a trial before it may need.
    """
    return int(sweep.stopping.slow is None and not sweep.resources.is_elastic)


def dispatched(pack: Pack, sweep: Sweep, folder: Path, ledger: LedgerReader) -> Pack:
    """Return ``pack`` as it goes to a worker: with the current rung thresholds, and the folder of its trials."""
    slow = sweep.stopping.slow
    if slow is not None:
        from orchestrator.detection.slow import rung_thresholds  # numpy, which `sweep plan` does without

        pack = replace(pack, rung_thresholds=rung_thresholds(slow, pack.steps, ledger.reference_trials(pack.steps)))
    if isinstance(pack, LaunchedPack):
        pack = replace(pack, launch=replace(pack.launch, trials_folder=str((folder / TRIALS).absolute())))
    return pack


def resumed_pack(
    sweep: Sweep, ledger: LedgerReader, folder: Path, pack_id: str, trial_ids: Collection[str], width: int | None = None
) -> tuple[Pack | None, list[str]]:
    """Return the pack that resumes ``trial_ids`` from the last good checkpoint of ``pack_id``, or None without one.

    The second value lists the problems of unusable checkpoints.
    """
    problems = []
    for checkpoint in ledger.checkpoints(pack_id):
        try:
            content = read_checkpoint(folder, checkpoint.name, checkpoint.sha256)
        except StorageError as error:
            problems.append(str(error))
            continue
        members = ledger.members(pack_id)
        skip = frozenset(member.trial_id for member in members) - set(trial_ids)
        pack = pack_of(sweep, members, width)
        assert isinstance(pack, StackedPack), "only stacked packs have checkpoints"
        return replace(pack, resume=Checkpoint(content, checkpoint.ages), skip=skip), problems
    return None, problems
