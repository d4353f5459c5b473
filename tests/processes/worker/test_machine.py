"""Measured in processes of their own: memory of a container, and packs of odd sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.worker.machine import free_memory


def test_free_memory_is_no_more_than_a_container_leaves() -> None:
    """In a control group of its own with a limit; where there are none, the machine's memory is the limit."""
    group = Path("/sys/fs/cgroup/memory/sweep-memory-test")
    if not (group.parent / "memory.limit_in_bytes").is_file() or not os.access(group.parent, os.W_OK):
        assert 0 < free_memory("cpu") <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return
    group.mkdir(exist_ok=True)
    try:
        (group / "memory.limit_in_bytes").write_text(str(600 * 2**20))
        code = "from orchestrator.worker.machine import free_memory; print(free_memory('cpu'))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )  # fmt: skip
        assert 0 < int(done.stdout) * os.cpu_count() <= 600 * 2**20
    finally:
        group.rmdir()


ODD = """
import torch
from objectives.base import OBJECTIVES
from objectives.base import ExecutionPlan
from orchestrator.worker.machine import prepare_process

prepare_process()
torch.set_num_threads(1)
config = OBJECTIVES["gpt"].config_class(steps=9, width=10, heads=2, context=5, batch_size=3, lr=1e-2)
def losses(seeds):
    trainer = OBJECTIVES["gpt"].start([config] * len(seeds), seeds, "cpu", ExecutionPlan(len(seeds)))
    return [float(trainer.step()["loss"][-1]) for _ in range(9)]
print(losses([4]) == losses([0, 1, 2, 3, 4]) == losses([2, 3, 4]))
"""


def test_a_member_of_any_size_trains_alike_whoever_shares_its_pack() -> None:
    """In a process of its own: the setting counts from the first product on."""
    done = subprocess.run([sys.executable, "-c", ODD], capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
