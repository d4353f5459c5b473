"""The curvature by forward passes where products with the Hessian are impossible: several processes, compiled code."""

import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from orchestrator.detection.watch import TRIAL_VARIABLE

ROOT = Path(__file__).parents[3]

# Both ranks see the same batch, so two processes train what one does. Each keeps its part of the weights at the end.
TRAINING = """
    import hashlib, json, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from orchestrator.detection.watch import Watch

    kind, reads, rank, folder = sys.argv[1], sys.argv[2] == "reads", int(sys.argv[3]), Path(sys.argv[4])
    if kind in ("ddp", "fsdp"):
        store = dist.FileStore(str(folder / f"store-{reads}"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 3)]
    module = torch.nn.Sequential(*layers)
    inputs, targets = torch.randn(64, 8), torch.randint(0, 3, (64,))
    if kind == "ddp":
        module = torch.nn.parallel.DistributedDataParallel(module)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for layer in (module[0], module[3]):
            fully_shard(layer)
        fully_shard(module)
    if kind == "compiled":
        module = torch.compile(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, foreach=kind != "ddp", fused=kind == "ddp")

    def loss_of_batch():
        return torch.nn.functional.cross_entropy(module(inputs), targets)

    watch, found = Watch(), []
    if reads:
        watch.telemetry(module, optimizer, loss_of_batch, curvature=2, by="forwards")
    for step in range(9):
        optimizer.zero_grad()
        loss = loss_of_batch()
        loss.backward()
        optimizer.step()
        watch.report(step, loss)
        found += [watch.readings["lambda_crit"]] if reads and step % 2 == 0 else []
    parts = [getattr(p, "to_local", p.clone)().detach().numpy().tobytes() for p in module.parameters()]
    weights, has_norm = hashlib.sha256(b"".join(parts)).hexdigest(), "grad_norm/all" in watch.readings
    told = {"found": found, "weights": weights, "has_norm": has_norm}
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    print(json.dumps(told), flush=True)
"""


def trained(kind: str, folder: Path, *, reads: bool) -> list[dict]:
    """What each process of a training tells at its end."""
    environment = {name: value for name, value in os.environ.items() if name != TRIAL_VARIABLE}
    ranks = range(2 if kind in ("ddp", "fsdp") else 1)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(TRAINING), kind, "reads" if reads else "not", str(rank), folder],
            cwd=ROOT,
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    outputs = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0 for _ in ranks], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The readings of one process with whole parameters."""
    (told,) = trained("plain", tmp_path_factory.mktemp("alone"), reads=True)
    assert sum(map(math.isfinite, told["found"])) == 5
    return told["found"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "compiled"])
def test_it_reads_what_one_process_reads_and_changes_no_bit_of_the_training(
    kind: str, tmp_path: Path, alone: list[float]
) -> None:
    read, plain = (trained(kind, tmp_path, reads=reads) for reads in (True, False))
    assert [told["weights"] for told in read] == [told["weights"] for told in plain]
    for told in read:
        assert told["found"] == read[0]["found"]  # on all ranks
        assert told["found"] == pytest.approx(alone, rel=0.02)
    assert all(told["has_norm"] == (kind != "fsdp") for told in read)  # of sharded parameters nothing else is read
