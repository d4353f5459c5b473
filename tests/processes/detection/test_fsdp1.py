"""FSDP1, whose processes have parts of joined parameters: what works in a training loop, and what is refused."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAINING = """
    import json, sys
    from pathlib import Path
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from orchestrator.detection.watch import Watch

    shards, rank, folder = sys.argv[1] == "sharded", int(sys.argv[2]), Path(sys.argv[3])
    keeps_names = sys.argv[4] == "1"
    if shards:
        store = dist.FileStore(str(folder / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 3))
    x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
    model = inner
    if shards:
        model = FullyShardedDataParallel(inner, use_orig_params=keeps_names, device_id=torch.device("cpu"))
    refused = {}

    def tried(name, action):
        try:
            action()
        except ValueError as error:
            refused[name] = str(error)

    def train(rule):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        watch, losses = Watch(control=[rule]), []
        watch.keep(model, optimizer, every=1)
        for step in range(12):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            action = watch.report(step, loss)
            watch.apply(optimizer, action)
            optimizer.step()
            losses.append(loss.item())
        return losses

    at = {"on": "step", "above": 4, "every": 1, "at_most": 1}
    found = [train({**at, "do": do}) for do in ({"lr": "x0.1"}, {"skip": 2}, {"back": 2})]
    tried("clip", lambda: train({**at, "do": {"clip": 0.1}}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loss_of_batch = lambda: torch.nn.functional.cross_entropy(model(x), y)
    for by in ("products", "forwards"):
        tried(by, lambda: Watch().telemetry(model, optimizer, loss_of_batch, by=by))
    if shards:
        dist.barrier()
        dist.destroy_process_group()
    print(json.dumps({"found": found, "refused": refused}), flush=True)
"""


def trained(kind: str, folder: Path, *, keeps_names: bool = True) -> list[dict]:
    """What each process tells at its end."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(TRAINING), kind]
    running = [
        subprocess.Popen(
            [*command, str(rank), folder, str(int(keeps_names))], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2 if kind == "sharded" else 1)
    ]
    outputs = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0 for _ in running]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("keeps_names", [True, False])
def test_fsdp1_follows_rates_skips_and_snapshots_and_refuses_clipping_and_telemetry(
    tmp_path: Path, keeps_names: bool
) -> None:
    (alone,) = trained("alone", tmp_path)
    assert alone["refused"] == {}
    # By products only rank 0 reads.
    for told, refused in zip(
        trained("sharded", tmp_path, keeps_names=keeps_names),
        ({"clip", "products", "forwards"}, {"clip", "forwards"}),
        strict=True,
    ):
        assert told["found"] == [pytest.approx(losses, rel=1e-4) for losses in alone["found"]]
        assert set(told["refused"]) == refused
        assert all("FullyShardedDataParallel" in text and "\n" not in text for text in told["refused"].values())
