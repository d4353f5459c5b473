"""What importing the watch costs, and a training of several processes."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from watch_cases import MakeTrial, sweeps_trial

import orchestrator
from orchestrator.detection.config import StoppingConfig
from orchestrator.detection.detector import SpikeDetector
from orchestrator.detection.rows import read_rows
from orchestrator.detection.watch import TRIAL_VARIABLE

ROOT = Path(__file__).parents[3]


trial = sweeps_trial


def test_importing_the_watch_imports_no_training_library() -> None:
    code = (
        "import sys; from orchestrator.detection.watch import Watch; Watch().report(0, 1.0);"
        "heavy = {'torch', 'transformers', 'lightning', 'ray', 'mlflow', 'pandas', 'scipy'} & set(sys.modules);"
        "print(heavy); sys.exit(len(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# Each rank trains on losses of its own: those of rank 1 are what rank 0 must be deaf to.
TWO_PROCESSES = """
    import json, math, os, sys, warnings
    from pathlib import Path
    warnings.simplefilter("error")
    import torch
    import torch.distributed as dist
    from orchestrator.detection.watch import Watch

    rank, folder = 0, Path(sys.argv[1])
    other = os.fork()  # after the imports, which take longer than all that is tested
    if other == 0:
        rank = 1
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    told = {}

    watch = Watch()
    losses = [[3.0, 2.0, 1.5, math.inf, 1.0], [math.nan, 3.0, 9.0, 1.0, 1.0]][rank]
    told["answers"] = [bool(watch.report(step, loss, 1.0)) for step, loss in enumerate(losses)]
    told["record"] = str(watch.record())
    told["reason"] = watch.lost_reason

    # As on another machine, which does not see the rows.
    if rank == 1:
        (folder / "trial1.json").write_text((folder / "trial.json").read_text().replace("rows.jsonl", "none.jsonl"))
    os.environ["SWEEP_TRIAL"] = str(folder / ("trial.json" if rank == 0 else "trial1.json"))
    watch = Watch()
    told["resumed"] = [bool(watch.report(step, loss)) for step, loss in enumerate(losses[:3], 1)]
    told["resumed record"] = str(watch.record())
    for step in (3, 9 + rank):
        try:
            watch.report(step, 1.0)
        except ValueError as error:
            told[f"step {step}"] = str(error)
    Watch().report(9, 1.0)

    # Rules act on what rank 0 sees, on every process.
    del os.environ["SWEEP_TRIAL"]
    rules = [
        {"on": "loss", "above": 2, "every": 1, "do": {"lr": "x0.5"}},
        {"on": "step", "above": 10, "every": 4, "do": {"skip": 1}},
    ]
    watch = Watch(control=rules)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    told["actions"] = []
    for step in range(14):
        weight.grad = torch.ones(1)
        action = watch.report(step, [[1.0] * 9 + [3.0] + [1.0] * 9, [5.0] * 20][rank][step])
        watch.apply(optimizer, action)
        optimizer.step()
        told["actions"].append([action.kind, action.factor])
    told["weight"], told["fired"] = weight.item(), watch.fired
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"told{rank}.json").write_text(json.dumps(told))
    if rank == 0:
        assert os.waitpid(other, 0)[1] == 0
"""


def test_all_processes_of_a_training_get_the_answer_of_rank_0(trial: MakeTrial, tmp_path: Path) -> None:
    path = trial()
    path.write_text('{"step": 0, "loss": 4.0}\n{"step": 1, "loss": 3.5}\n')
    environment = {name: value for name, value in os.environ.items() if name != TRIAL_VARIABLE}
    environment["OMP_NUM_THREADS"] = "1"
    code = textwrap.dedent(TWO_PROCESSES)
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((tmp_path / f"told{rank}.json").read_text()) for rank in range(2)]

    assert told[0]["answers"] == [False, False, False, True, True]
    assert told[0]["reason"] == "the loss is not finite"
    for name in ("answers", "record", "reason", "resumed", "resumed record", "step 3"):
        assert told[0][name] == told[1][name], name
    assert told[0]["actions"][8:] == [
        ["none", 1.0], ["change", 0.5], ["none", 0.5], ["none", 0.5], ["skip", 0.5], ["none", 0.5],
    ]  # fmt: skip
    for name in ("actions", "weight", "fired"):
        assert told[0][name] == told[1][name], name
    assert "num_steps=4, initial_loss=4.0" in told[0]["resumed record"]
    assert "step 3 was reported after step 3" in told[1]["step 3"]
    assert told[1]["step 10"] == "step 10 was reported while rank 0 reported step 9"
    assert [(row["step"], row["loss"]) for row in read_rows(path)] == [(0, 4.0), (1, 3.5), (2, 2.0), (3, 1.5), (9, 1.0)]
    assert not (tmp_path / "none.jsonl").exists()


def test_the_detector_is_found_at_the_top_and_costs_nothing_until_then() -> None:
    code = (
        "import sys, orchestrator; assert 'numpy' not in sys.modules;"
        "from orchestrator import SpikeDetector, StoppingConfig; assert 'numpy' in sys.modules;"
        "assert SpikeDetector(config=StoppingConfig()).update(float('nan'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert orchestrator.SpikeDetector is SpikeDetector
    assert orchestrator.StoppingConfig is StoppingConfig
    with pytest.raises(AttributeError, match="Detector"):
        _ = orchestrator.Detector
