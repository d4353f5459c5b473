"""What looking up an optimizer's name imports."""

import subprocess
import sys


def test_names_are_looked_up_without_importing_torch() -> None:
    code = (
        "import sys; from objectives.optimizers.facts.library import problem_with; "
        "assert problem_with('torch.optim.NAdam') is None; assert problem_with('pytorch_optimizer.ADOPT') is None; "
        "assert problem_with('torch.optim.Nadam'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
