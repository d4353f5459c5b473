import os
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_cases import QUADRATIC

from orchestrator.base.errors import ExecutorError, InputError
from orchestrator.base.packs import PackStarted, Report
from orchestrator.base.processes import marked
from orchestrator.driver.packing import make_packs
from orchestrator.executors.subprocess_executor import SubprocessExecutor
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document

INLINE = ("inline", "orchestrator.executors.inline", "InlineExecutor", {}, {})


@pytest.mark.slow
def test_packs_and_reports_of_any_size_cross_each_other() -> None:
    """More than the buffers between the processes hold, both ways at once: neither may wait for the other."""
    text = QUADRATIC.replace("optimizer: sgd", "optimizer: sgd, dimension: 100000").replace("steps: 60", "steps: 3")
    sweep = build_sweep(parse_document(text, "edge.yaml"))
    pack = make_packs(sweep, sweep.trials, 1)[0]
    large = frozenset(f"{i:050d}" for i in range(40_000))
    executor = SubprocessExecutor(*INLINE)
    try:
        packs = [replace(pack, pack_id=f"pack{i}", skip=large, checkpoint_steps=1) for i in range(8)]
        for each in packs:
            executor.submit(each)
        ended: set[str] = set()
        while len(ended) < len(packs):
            events = executor.poll(30)
            assert events
            ended |= {event.pack_id for event in events if isinstance(event, Report) and event.ending is not None}
            assert all(isinstance(event, (PackStarted, Report)) for event in events)
    finally:
        executor.close()
    assert marked(executor.mark) == []


def test_an_executor_whose_process_dies_says_so() -> None:
    executor = SubprocessExecutor(*INLINE)
    executor._process.kill()
    with pytest.raises(ExecutorError, match="SIGKILL"):
        executor.poll(30)
    executor.close()


def refuse(**settings) -> None:
    """What a user's cluster address that leads nowhere comes to."""
    raise InputError("no cluster at nowhere:1")


def test_a_refusal_to_start_is_told_as_it_is() -> None:
    here = {"PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[depth]) for depth in (0, 2))}
    with pytest.raises(InputError, match=r"^no cluster at nowhere:1$"):
        SubprocessExecutor("inline", "test_subprocess_executor", "refuse", {}, here)
