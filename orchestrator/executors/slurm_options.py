"""The `--slurm KEY=VALUE` options of the command line, and their translation for submitit."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from orchestrator.base.errors import InputError, Problem, did_you_mean

COMMANDS = ("sbatch", "squeue", "scancel", "srun")
CLUSTERS = ("local", "slurm")
_LOCAL_MINUTES = 7 * 24 * 60
_SIGNAL_DELAY_S = 90
# Set by `resources` in the sweep file, or fixed by the executor.
_RESERVED = {
    *("cpus_per_gpu", "cpus_per_task", "gpus_per_node", "gpus_per_task", "nodes", "ntasks_per_node", "num_gpus"),
    *("additional_parameters", "array_parallelism", "stderr_to_stdout", "use_srun"),
}


def read_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse the KEY=VALUE options of the command line. Raises InputError."""
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(Problem("--slurm", "", f"{text!r} is not KEY=VALUE", "write e.g. --slurm partition=gpu"))
        options[key.replace("-", "_")] = value
    return options


def submission_parameters(options: Mapping[str, str], submitit_knows: Collection[str], cpus: int, gpus: int) -> dict:
    """Return the parameters of submitit's AutoExecutor for jobs of ``cpus`` and ``gpus``.

    Raises InputError for invalid options.
    """
    known = (set(submitit_knows) | {"cluster", "mem_gb"}) - _RESERVED
    problems = [problem for key, text in options.items() if (problem := _problem(key, text, known))]
    if problems:
        raise InputError(*problems)
    if not is_local(options):
        _check_slurm(options)
    parameters: dict[str, Any] = {
        "timeout_min": int(options.get("time", _LOCAL_MINUTES)),
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": cpus,
        "slurm_signal_delay_s": int(options.get("signal_delay_s", _SIGNAL_DELAY_S)),
        "slurm_additional_parameters": {"requeue": True},
        # Since 22.05, srun does not inherit it from sbatch and may bind the trial to one core.
        "slurm_srun_args": [f"--cpus-per-task={cpus}", *shlex.split(options.get("srun_args", ""))],
    }
    if gpus and not options.get("gres", "").startswith("gpu"):
        parameters["gpus_per_node"] = gpus
    if "mem_gb" in options:
        parameters["mem_gb"] = float(options["mem_gb"])
    for key in options.keys() - {"cluster", "time", "mem_gb", "signal_delay_s", "srun_args"}:
        text = options[key]
        is_script = key in ("setup", "teardown")
        parameters[f"slurm_{key}"] = [text] if is_script else {"true": True, "false": None}.get(text, text)
    return parameters


def is_local(options: Mapping[str, str]) -> bool:
    """Whether jobs are processes on this machine, for testing without a cluster."""
    return options.get("cluster") == "local"


def _problem(key: str, text: str, known: Collection[str]) -> Problem | None:
    """Return the problem of --slurm KEY=TEXT, or None."""
    if key in _RESERVED:
        return Problem("--slurm", key, "is set by `resources` or fixed by sweep", "set `resources`, or omit it")
    if key not in known:
        choices = ", ".join(sorted(known))
        return Problem("--slurm", key, f"is unknown; choose one of: {choices}", did_you_mean(key, known))
    if not text or not text.isprintable():
        return Problem("--slurm", key, f"{text!r} is not a valid value", "write KEY=VALUE")
    if key == "cluster" and text not in CLUSTERS:
        message = f"{text!r} is unknown; choose one of: {', '.join(CLUSTERS)}"
        return Problem("--slurm", key, message, did_you_mean(text, CLUSTERS))
    if key in ("time", "signal_delay_s") and not re.fullmatch("[1-9][0-9]{0,6}", text):
        unit = "minutes" if key == "time" else "seconds"
        return Problem("--slurm", key, f"{text!r} is not a positive integer, in {unit}", f"write e.g. {key}=120")
    if key == "mem_gb" and not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", text):
        return Problem("--slurm", key, f"{text!r} is not a number of GB", "write e.g. mem_gb=16")
    if key == "srun_args":
        try:
            shlex.split(text)
        except ValueError as error:
            return Problem("--slurm", key, f"{text!r} cannot be parsed: {error}", "close the quotes")
    return None


def _check_slurm(options: Mapping[str, str]) -> None:
    """Raise InputError if Slurm's commands are missing here, or if jobs have no time limit."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        what = f"needs Slurm, but cannot find {', '.join(missing)}"
        remedy = "run it on a login node of the cluster, or test it here with --slurm cluster=local"
        raise InputError(Problem("--executor", "slurm", what, remedy))
    if "time" not in options:
        what = "is missing; it limits the time of a trial's job, in minutes"
        remedy = "set e.g. --slurm time=240; with objective.resume a trial continues in its next job"
        raise InputError(Problem("--slurm", "time", what, remedy))
