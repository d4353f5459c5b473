"""Start the processes of a trial in a Slurm job: on its own node, and for an elastic trial by srun on the others.

An elastic trial has the same number of processes on each node, and its job as many nodes as were free when it started:
`--nodes=1-N`. Slurm starts the job again when it loses a node, with the nodes that are free then.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from orchestrator.worker.launcher import CannotStart, Child, Launcher
from orchestrator.worker.torchrun import free_port, largest_that_fits, torchrun_environments

# Slurm sends it before the time limit and, on some clusters, at preemption. submitit reads the same variable.
WARNING = signal.Signals[f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}"]
_COMMAND_TIMEOUT_S = 30.0
_STARTS_NOW = timedelta(seconds=30)
_START = re.compile(r" to start at (\S+) ")  # in what `sbatch --test-only` says
# srun sends the signal on to a process of another node, which is then not that of this launcher.
_IGNORING = f'trap "" {WARNING.name.removeprefix("SIG")}; exec "$@"'


class JobLauncher(Launcher):
    """Starts processes on this machine; a signal handler can end them while another thread reads."""

    def __init__(self, minutes: int) -> None:
        """``minutes`` is the time limit of the job."""
        super().__init__()  # without preloading: a job has a single trial
        self._minutes = minutes
        self._is_ending = False
        self._nodes: list[str] = []  # of an elastic trial's job, this one first
        self._per_node = 1

    def fit(self, sizes: Sequence[int], cpus: int) -> int:
        """Return the largest of ascending ``sizes`` that the nodes of this job hold; each holds the smallest one."""
        self._nodes, self._per_node = _nodes_of_job(), sizes[0]
        if not self._nodes:  # a job without Slurm
            return super().fit(sizes, cpus)
        return largest_that_fits(_of_whole_nodes(sizes), len(self._nodes) * self._per_node)

    def has_room(self, size: int, cpus: int) -> bool:
        """Return whether a job could start now on as many other nodes as ``size`` processes need more."""
        if not self._nodes:
            return super().has_room(size, cpus)
        num_more = -(-size // self._per_node) - len(self._nodes)
        if num_more < 1:
            return False  # this job has them, and the trial cannot use them
        others = [f"--exclude={','.join(self._nodes)}", f"--nodes={num_more}"]
        return _starts_now([*others, *_needs(cpus * self._per_node, self._minutes)])

    def rank_environments(self, workers: int) -> list[dict[str, str]]:
        """Return torchrun's variables of processes on the nodes of this job."""
        if len(self._nodes) < 2:
            return super().rank_environments(workers)
        nodes = [node for node in self._nodes for _ in range(self._per_node)][:workers]
        return torchrun_environments(nodes, os.environ["SLURM_LAUNCH_NODE_IPADDR"], free_port())

    def start(self, rank: int, command: Sequence[str], folder: str, environment: Mapping[str, str], log: Path) -> Child:
        """Start a process, unless the job is ending. Raises CannotStart."""
        if self._is_ending:
            raise CannotStart("the job is ending")
        if (number := rank // self._per_node) and self._nodes:
            command = [*_step_on(self._nodes[number]), "sh", "-c", _IGNORING, "sh", *command]
        # Slurm sends the signal to all processes of the job; it would kill the trial before its last checkpoint.
        process = Child(command, folder, environment, log, ignored=WARNING)
        self._children.append(process)
        if self._is_ending:
            process.terminate()
        return process

    def terminate(self) -> None:
        """Ask all processes to end, and start no further ones."""
        self._is_ending = True
        for process in self._children:
            process.terminate()

    def kill(self) -> None:
        """Kill all processes; those on other nodes end with the job."""
        self._is_ending = True
        for process in self._children:
            process.close()


def _of_whole_nodes(sizes: Sequence[int]) -> list[int]:
    """Return the ``sizes`` that put the smallest one on each of several nodes."""
    return [size for size in sizes if size % sizes[0] == 0]


def _nodes_of_job() -> list[str]:
    """Return the nodes of this process's Slurm job, its own first; none without Slurm."""
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if listed is None:
        return []
    return _said_by("scontrol", "show", "hostnames", listed).split() or [os.environ.get("SLURMD_NODENAME", listed)]


def _step_on(node: str) -> list[str]:
    """Return the command that runs another one on a ``node`` of this job."""
    return ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--export=ALL", "--unbuffered"]


def _needs(cpus: int, minutes: int) -> list[str]:
    """Return the options of a job that needs of each node what this one has."""
    options = ["--ntasks-per-node=1", f"--cpus-per-task={cpus}", f"--time={minutes}"]
    for option, variable in (
        ("partition", "SLURM_JOB_PARTITION"),
        ("account", "SLURM_JOB_ACCOUNT"),
        ("qos", "SLURM_JOB_QOS"),
        ("gpus-per-node", "SLURM_GPUS_ON_NODE"),
    ):
        if value := os.environ.get(variable):
            options.append(f"--{option}={value}")
    return options


def _starts_now(options: Sequence[str]) -> bool:
    """Return whether Slurm would start a job with these ``options`` at once; False if it does not say."""
    match = _START.search(_said_by("sbatch", "--test-only", *options, "--wrap=true"))
    try:
        return match is not None and datetime.fromisoformat(match.group(1)) - datetime.now() < _STARTS_NOW
    except ValueError:
        return False


def _said_by(*command: str) -> str:
    """Return all that a Slurm command printed; empty if it failed."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_COMMAND_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
