"""What reading configurations imports."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_configurations_and_batches_are_read_without_torch_and_training_brings_it() -> None:
    code = (
        "import sys; from objectives.base import OBJECTIVES, ExecutionPlan;"
        "configs = {name: o.config_class(steps=1) for name, o in OBJECTIVES.items()};"
        "assert OBJECTIVES['gpt'].batch_text(configs['gpt'], 0, 7).startswith('bytes ');"
        "before = 'torch' in sys.modules;"
        "OBJECTIVES['quadratic'].start([configs['quadratic']], [0], 'cpu', ExecutionPlan(1));"
        "print(before, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
