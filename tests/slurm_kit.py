"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, all below one temporary folder."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from fault_kit import wait_until

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # often not in the path of a user
_MEMORY = Path("/sys/fs/cgroup/memory")
CPUS, MEGABYTES, GPUS = 4, 4000, 2  # of a node

# The nodes are told to have more processors than the machine has, and each GPU is a file. A requeued job waits until
# its old credential has expired.
CONFIG = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
DefMemPerCPU=900
ReturnToService=2
GresTypes=gpu
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 State=UP {low}
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
DEFAULTS = {
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/linux",
    "JobAcctGatherFrequency": "1",
    "KillWait": "30",
    "OverTimeLimit": "0",
}
# How memory is limited: by the kernel, or by Slurm's own measurements.
KERNEL = {"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup"}
MEASURED = {"JobAcctGatherParams": "OverMemoryKill"}


class Slurm:
    """The daemons, and what one asks of them. Settings of slurm.conf replace DEFAULTS."""

    def __init__(self, nodes: int = 1, low: str = "", **settings: str) -> None:
        """``low`` has the settings of the partition whose jobs are preempted by those of the other."""
        _need_slurm()
        if settings.get("TaskPlugin") == KERNEL["TaskPlugin"] and not _MEMORY.is_dir():
            pytest.fail("control groups v1 with memory are needed: this Slurm has no others without systemd")
        self.home = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, as the path of a socket must be
        self.conf = self.home / "slurm.conf"
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = _free_ports(1 + nodes)
        lines = [CONFIG.format(host=socket.gethostname(), home=self.home, controller_port=ports[0], low=low)]
        lines += [f"{key}={value}" for key, value in (DEFAULTS | settings).items()]
        gpus = []
        for name, port in zip(self.nodes, ports[1:], strict=True):
            resources = f"CPUs={CPUS} RealMemory={MEGABYTES} Gres=gpu:{GPUS}"
            lines.append(
                f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} {resources}"
            )
            gpus.append(f"NodeName={name} Name=gpu File={self.home}/gpu[0-{GPUS - 1}]")
        for number in range(GPUS):
            os.mknod(self.home / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null
        self.conf.write_text("\n".join(lines) + "\n")
        (self.home / "gres.conf").write_text("\n".join(gpus) + "\n")
        limits = "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nAllowedSwapSpace=0\n"
        (self.home / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\n{limits}")
        (self.home / "state").mkdir()
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        """Start all daemons, and wait until the nodes take jobs."""
        munge = self.home / "munge"
        munge.mkdir()
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o600)
        files = [f"--{kind}={munge}/{kind.removesuffix('-file')}" for kind in ("key-file", "pid-file", "log-file")]
        self._start(
            "munged", *files, f"--seed-file={munge}/seed", f"--socket={munge}/socket", "--foreground", "--force"
        )
        wait_until((munge / "socket").exists, "munged", 10)
        self.start_controller()
        for name in self.nodes:
            self._start("slurmd", "-D", "-N", name, name=name)
        wait_until(
            lambda: self.say("sinfo", "-h", "-p", "low", "-t", "idle", "-o", "%D").strip() == str(len(self.nodes)),
            "nodes",
            30,
        )

    def start_controller(self) -> None:
        """Start slurmctld, with the jobs that an earlier one left."""
        self._start("slurmctld", "-D")
        wait_until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld", 30)

    def kill(self, name: str) -> None:
        """SIGKILL a daemon: slurmctld, or a node by its name."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    def say(self, *command: str) -> str:
        """The output of a command that must work."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """All jobs that the controller remembers, with their states."""
        lines = self.say("squeue", "-h", "--array", "--states=all", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def show(self, job: str) -> dict[str, str]:
        """What the controller knows of a job."""
        words = self.say("scontrol", "show", "--oneliner", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def submit(self, *arguments: str, script: str = "sleep 300") -> str:
        """Submit a job of somebody else; its number."""
        return self.say("sbatch", "--parsable", "--output=/dev/null", *arguments, f"--wrap={script}").strip()

    def wait_for(self, job: str, *states: str) -> None:
        """Wait until a job has one of ``states``."""
        wait_until(lambda: self.jobs().get(job) in states, f"{' or '.join(states)} of job {job}")

    def close(self) -> None:
        """End everything that was started, and all jobs with it."""
        for name in reversed(self.daemons):
            self.daemons[name].kill()
        for daemon in self.daemons.values():
            daemon.wait()
        deadline = time.monotonic() + 10
        while (left := list(_with_variable(f"SLURM_CONF={self.conf}"))) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        assert left == [], "processes of jobs are left"
        for name in self.nodes:
            for folder in sorted(Path("/sys/fs/cgroup").glob(f"*/slurm_{name}/**/"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        shutil.rmtree(self.home)

    def _start(self, daemon: str, *arguments: str, name: str = "") -> None:
        with open(self.home / f"{name or daemon}.out", "ab") as log:
            self.daemons[name or daemon] = subprocess.Popen(
                [_path_of(daemon), *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                cwd=self.home,
                start_new_session=True,
            )


def _path_of(command: str) -> str:
    return shutil.which(command) or shutil.which(command, path=":".join(_PLACES)) or ""


def _need_slurm() -> None:
    """Fail, and say what to install: whoever asks for these tests wants to know."""
    missing = [command for command in _DAEMONS if not _path_of(command)]
    if missing:
        pytest.fail(f"{', '.join(missing)} cannot be found: apt-get install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.fail("these tests start daemons and make device files: run them as root")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _with_variable(entry: str) -> Iterable[int]:
    """Processes that were started with ``entry`` in their environment, other than this one."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # That of a zombie is empty.
            if entry.encode() in (process / "environ").read_bytes().split(b"\0") and int(process.name) != os.getpid():
                yield int(process.name)
