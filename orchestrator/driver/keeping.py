"""Whether the states of weights that a sweep keeps fit on the disk that it may take."""

from __future__ import annotations

from orchestrator.base.errors import InputError, Problem
from orchestrator.base.space import Trial
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.spec import Sweep

_MIB = 2**20
_BESIDES = 4096  # bytes of a file that are not weights; more than the weights of a small problem


def kept_bytes(sweep: Sweep) -> int | None:
    """Return the bytes on disk that the states of ``sweep`` take at most; None if it keeps none.

    Raises InputError if the weights are not known to sweep.
    """
    if sweep.keep is None:
        return None
    sizes = [_bytes_of(sweep, trial) for trial in sweep.trials]
    # Trials that a search has yet to propose count as its largest.
    later = max(0, (sweep.max_trials or 0) - len(sizes))
    return sum(sizes) + later * max(sizes)


def check_kept(sweep: Sweep) -> None:
    """Raise InputError if what ``sweep`` keeps would take more than ``keep.disk_mib``."""
    needed = kept_bytes(sweep)
    if sweep.keep is None or needed is None or needed <= sweep.keep.disk_mib * _MIB:
        return
    message = f"the states would take {needed / _MIB:,.1f} MiB, more than {sweep.keep.disk_mib:g}"
    remedy = "keep fewer (last), or train fewer trials, or raise keep.disk_mib"
    raise InputError(Problem(f"sweep {sweep.name}", "keep.disk_mib", message, remedy))


def _bytes_of(sweep: Sweep, trial: Trial) -> int:
    from objectives.models.facts.sizes import bytes_per_weight, num_weights

    assert sweep.keep is not None
    size = None
    if not isinstance(sweep.objective, CustomTrainer):
        config = sweep.objective.config_of(trial.config)
        declared = sweep.objective.num_weights
        size = num_weights(config) if declared is None else declared(config)
    if size is None:
        message = f"the weights of {sweep.objective.name} are not known to sweep"
        remedy = "leave keep out, and save them in your own code"
        if not isinstance(sweep.objective, CustomTrainer):
            remedy = "say how many in its Objective, num_weights=lambda config: ..., or leave keep out"
        raise InputError(Problem(f"sweep {sweep.name}", "keep", message, remedy))
    num_states = min(sweep.keep.last, -(-trial.steps // sweep.keep.every))
    return num_states * (size * bytes_per_weight(config) + _BESIDES)
