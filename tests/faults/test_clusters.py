"""Two and three Ray nodes on this machine, each with an address, a hostname and a disk of its own."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from elastic_cases import (
    ROUNDING,
    advance_until,
    at_its_end,
    has_checkpoint,
    set_limit,
    undisturbed_losses,
    write_elastic_trainer,
)
from fault_kit import (
    ELASTIC,
    SWEEP,
    assert_sound,
    can_go_on,
    command,
    losses_and_resizes,
    need,
    results_of,
    run,
    statuses,
    undisturbed_results,
    wait_until,
    workers_of,
    write_sweep,
)

from orchestrator.base.files import LEDGER
from orchestrator.ledger.reader import LedgerReader

pytestmark = pytest.mark.faults
LONGEST = SWEEP.replace("steps: 1000", "steps: 5000").replace("pack: 4", "pack: 2")
RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
TRAINS = "ray::ImplicitFunc"  # the command of a worker that has a pack
_NUMBERS = itertools.count()


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Cluster:
    """Ray nodes in network namespaces on one bridge. Nodes see no file of each other's but installed programs."""

    def __init__(self, scratch: Path) -> None:
        self.nodes: list[str] = []
        self.rays: list[subprocess.Popen[bytes]] = []
        self.log = open(scratch / "ray.log", "ab")  # noqa: SIM115 - open as long as the cluster
        # Names of their own: the kernel takes a moment to forget those of a cluster before.
        self.name = f"sw{next(_NUMBERS)}x{os.getpid() % 10_000}"
        ip("link", "add", f"{self.name}b", "type", "bridge")
        ip("link", "set", f"{self.name}b", "up")

    def add(self) -> int:
        """Start a node with one CPU; the first is the head. Returns its number, from 1 on."""
        number = len(self.nodes) + 1
        space, link = f"{self.name}n{number}", f"{self.name}v{number}"
        ip("netns", "add", space)
        self.nodes.append(space)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", link, "master", f"{self.name}b", "up")
        ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", space, "link", "set", device, "up")
        where = f"--head --port={PORT} --include-dashboard=false" if number == 1 else f"--address={self.address}"
        own_disk = "" if number == 1 else "mount -t tmpfs none /tmp && "
        start = f"{RAY} start {where} --node-ip-address=10.77.0.{number} --num-cpus=1 --block"
        script = f"hostname node{number} && {own_disk}exec {start}"
        ray = subprocess.Popen(
            self.inside(number, "unshare", "--mount", "--uts", "sh", "-c", script),
            env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=self.log, stderr=self.log, cwd="/",
        )  # fmt: skip
        self.rays.append(ray)
        return number

    def inside(self, number: int, *what: str) -> list[str]:
        """The command ``what`` in the network of a node."""
        return ["ip", "netns", "exec", self.nodes[number - 1], *what]

    @property
    def address(self) -> str:
        return f"10.77.0.1:{PORT}"

    def kill(self, number: int) -> None:
        """SIGKILL everything on a node at once, as when its power fails."""
        self.signal(number, signal.SIGKILL)

    def signal(self, number: int, sent: signal.Signals, named: str = "") -> int:
        """Send a signal to the processes of a node whose command has ``named`` in it; returns how many there are."""
        found = subprocess.run(["ip", "netns", "pids", self.nodes[number - 1]], capture_output=True, text=True).stdout
        num = 0
        for pid in map(int, found.split()):
            with suppress(ProcessLookupError, FileNotFoundError):
                if named in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, sent)
                    num += 1
        return num

    def is_up(self, num_nodes: int) -> bool:
        """Whether Ray knows that many nodes."""
        done = subprocess.run(
            self.inside(1, RAY, "status", f"--address={self.address}"),
            env={**os.environ, "RAY_AUTH_MODE": "token"}, capture_output=True, text=True,
        )  # fmt: skip
        return f"/{num_nodes}.0 CPU" in done.stdout

    def close(self) -> None:
        for number in range(1, len(self.nodes) + 1):
            self.kill(number)
        for ray in self.rays:
            ray.wait(10)
        for space in self.nodes:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        subprocess.run(["ip", "link", "delete", f"{self.name}b"], capture_output=True)
        self.log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes."""
    need("ip", "unshare", "mount")
    made = Cluster(tmp_path)
    try:
        for number in (1, 2):
            made.add()
            wait_until(lambda: made.is_up(number), f"node {number}", 90)  # noqa: B023
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def undisturbed_longest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    """What the sweep finds when nothing goes wrong."""
    return undisturbed_results(tmp_path_factory.mktemp("longest"), LONGEST)


def drive(cluster: Cluster, folder: Path, text: str = LONGEST) -> subprocess.Popen[str]:
    """A driver on the head node."""
    write_sweep(folder, text)
    return subprocess.Popen(
        cluster.inside(1, *command("run", "edge.yaml", "--address", cluster.address)),
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def packs_of(folder: Path) -> list[dict]:
    if not (folder / "results/edge" / LEDGER).is_file():
        return []
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        return ledger.packs()


def hosts(folder: Path) -> set[str]:
    """Where packs have trained or train."""
    return {pack.environment["host"] for pack in packs_of(folder) if pack.environment}


def has_checkpoint_of(folder: Path, host: str) -> bool:
    with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
        return any(
            ledger.checkpoints(pack.pack_id)
            for pack in ledger.packs()
            if pack.ended is None and pack.environment.get("host") == host
        )


def test_a_sweep_runs_across_nodes_that_share_no_disk(cluster: Cluster, tmp_path: Path, undisturbed_longest) -> None:
    driver = drive(cluster, tmp_path)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert hosts(tmp_path) == {"node1", "node2"}
    assert_sound(tmp_path)
    assert results_of(tmp_path) == undisturbed_longest


def test_a_node_that_dies_costs_its_packs_the_steps_since_their_checkpoints(
    cluster: Cluster, tmp_path: Path, undisturbed_longest
) -> None:
    driver = drive(cluster, tmp_path)
    wait_until(lambda: "node2" in hosts(tmp_path) and has_checkpoint_of(tmp_path, "node2"), "checkpoint", 90)
    cluster.kill(2)
    began = time.monotonic()
    wait_until(lambda: any(pack.ended == "lost" for pack in packs_of(tmp_path)), "loss", 90)
    print(f"a dead node is noticed after {time.monotonic() - began:.1f} s")
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    lost = [pack for pack in packs_of(tmp_path) if pack.ended == "lost"]
    assert {pack.environment["host"] for pack in lost} == {"node2"}
    assert [pack.resumed_from for pack in packs_of(tmp_path) if pack.resumed_from] == [p.pack_id for p in lost]
    assert_sound(tmp_path)
    assert results_of(tmp_path) == undisturbed_longest


def test_a_node_that_joins_is_used(cluster: Cluster, tmp_path: Path, undisturbed_longest) -> None:
    driver = drive(cluster, tmp_path)
    wait_until(lambda: "running" in statuses(tmp_path), "training", 90)
    cluster.add()
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert hosts(tmp_path) == {"node1", "node2", "node3"}
    assert results_of(tmp_path) == undisturbed_longest


def test_an_elastic_trial_loses_a_process_with_its_node_and_grows_onto_one_that_joins(
    cluster: Cluster, tmp_path: Path
) -> None:
    here, there = tmp_path / "disturbed", tmp_path / "undisturbed"
    for folder in (here, there):
        folder.mkdir()
        write_sweep(folder, ELASTIC)
    driver = drive(cluster, here, ELASTIC)
    wait_until(lambda: can_go_on(here), "checkpoint", 120)
    cluster.kill(2)
    wait_until(lambda: workers_of(here) == ["2", "1"], "one process", 120)
    assert cluster.signal(1, signal.SIGSTOP, TRAINS), "a fast machine would be at its end before the node is there"
    wait_until(lambda: cluster.is_up(1), "end of the lost node", 90)  # Ray counts it for a while
    cluster.add()
    wait_until(lambda: cluster.is_up(2), "another node", 90)
    cluster.signal(1, signal.SIGCONT, TRAINS)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert_sound(here)
    assert workers_of(here) == ["2", "1", "2"]
    code, output = run(there, "run", "edge.yaml", "--executor", "inline")
    assert code == 0, output
    (found, resizes), (expected, none) = losses_and_resizes(here), losses_and_resizes(there)
    assert [(resize.before, resize.after) for resize in resizes] == [(2, 1), (1, 2)]
    assert not none
    np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_an_address_where_nobody_answers_is_bad_input(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    code, output = run(tmp_path, "run", "edge.yaml", "--address", "127.0.0.1:1")
    assert (code, "Traceback" in output) == (2, False), output
    assert "nothing answers at 127.0.0.1:1" in output


ACROSS = """
import os, socket, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
hosts = [None, None]
dist.all_gather_object(hosts, socket.gethostname())
x = torch.tensor(2.0 + dist.get_rank())
for step in range(60):
    loss = x * x / 2 + 1
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print("hosts", *sorted(hosts), os.environ["LOCAL_RANK"], f"step {step} loss {loss.item() / 2:.9g}")
    x -= float(sys.argv[1]) * x
dist.barrier()
dist.destroy_process_group()
"""
TWO_NODES = """
name: edge
objective:
  command: [python, across.py, "{lr}"]
  environment: {GLOO_SOCKET_IFNAME: eth0}
steps: 60
axes: {lr: {values: [0.1, 3.0]}}
resources: {workers: 2}
tracking: {enabled: false}
"""


def test_the_processes_of_a_trial_find_each_other_across_nodes(cluster: Cluster, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared:  # the nodes' /tmp are their own
        (Path(shared) / "across.py").write_text(ACROSS)
        text = TWO_NODES.replace("  environment", f"  folder: {shared}\n  environment")
        (tmp_path / "edge.yaml").write_text(text)
        driver = subprocess.run(
            cluster.inside(1, *command("run", "edge.yaml", "--address", cluster.address)),
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
    assert driver.returncode == 0, driver.stdout
    assert_sound(tmp_path)
    assert sorted(numbers[1] for numbers in results_of(tmp_path).values()) == ["diverged", "stable"]
    for log in (tmp_path / "results/edge/trials").glob("*/output.log"):
        assert "hosts node1 node2 0 step 0" in log.read_text()


def test_an_elastic_trainer_loses_a_process_with_its_node_and_grows_onto_one_that_joins(
    cluster: Cluster, tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as shared:
        here = Path(shared)
        write_elastic_trainer(here)
        text = (here / "edge.yaml").read_text()
        set_limit(here, 50)
        driver = drive(cluster, here, text.replace("  resume", "  environment: {GLOO_SOCKET_IFNAME: eth0}\n  resume"))
        wait_until(lambda: has_checkpoint(here) and workers_of(here) == ["2"], "checkpoint")
        cluster.kill(2)
        wait_until(lambda: workers_of(here) == ["2", "1"], "one process", 120)
        wait_until(lambda: cluster.is_up(1), "end of the lost node", 90)  # Ray counts it for a while
        cluster.add()
        wait_until(lambda: cluster.is_up(2), "another node", 90)
        advance_until(here, 50, lambda: workers_of(here) == ["2", "1", "2"])
        found, resizes = at_its_end(driver, here)
    assert [(resize.before, resize.after) for resize in resizes] == [(2, 1), (1, 2)]
    np.testing.assert_allclose(found, undisturbed_losses(tmp_path / "undisturbed"), rtol=ROUNDING)


SHARED = """
name: edge
objective: gpt
steps: 60
fixed: {batch_size: 4, width: 16, context: 16, depth: 1, validation_batches: 2}
resources: {workers: WORKERS}
tracking: {enabled: false}
"""


def test_two_nodes_share_the_batches_of_a_trial(cluster: Cluster, tmp_path: Path) -> None:
    losses = []
    for workers, where in ((2, ["--address", cluster.address]), (1, ["--executor", "inline"])):
        folder = tmp_path / str(workers)
        folder.mkdir()
        (folder / "edge.yaml").write_text(SHARED.replace("WORKERS", str(workers)))
        driver = subprocess.run(
            cluster.inside(1, *command("run", "edge.yaml", *where)),
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        assert driver.returncode == 0, driver.stdout
        assert_sound(folder)
        with LedgerReader(folder / "results/edge" / LEDGER) as ledger:
            (row,), (pack,) = ledger.trials(), ledger.packs()
            losses.append(ledger.trace(row.trial_id)["loss"])
            assert pack.environment.get("workers", "1") == str(workers)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
