"""The ledger of a driver that is killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import ledger_at
from tiers import one_of


@pytest.mark.parametrize("attempt", one_of(3, range(3)))
def test_kill_9_in_the_middle_of_writing_loses_no_acknowledged_result(tmp_path: Path, attempt: int) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from sweep_cases import *
from orchestrator.driver.packing import make_packs
sweep = sweep_of("axes: {lr: {linear: [0.1, 1], num: 400}}\\nresources: {pack: 1}\\n")
with ledger_at(Path(sys.argv[1])) as ledger:
    ledger.plan("quadratic", sweep.trials, {})
    for trial in sweep.trials:
        (pack,) = make_packs(sweep, [trial], 1)
        ledger.start_pack(pack, "test")
        ledger.record(Report(pack.pack_id, 1, 1, 1.0, {}, (finished(pack.trial_ids[0], "stable"),)))
        print(pack.trial_ids[0], flush=True)
"""
    tests = str(Path(__file__).parents[2])
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), tests], stdout=subprocess.PIPE, text=True)
    with child:
        acknowledged = [child.stdout.readline().strip() for _ in range(5 + 20 * attempt)]
        child.kill()
        acknowledged += [line.strip() for line in child.stdout if len(line.strip()) == 16]
    with ledger_at(tmp_path) as ledger:
        done = {row.trial_id for row in ledger.trials() if row.status == "finished"}
        assert set(acknowledged) <= done
        assert len(done) <= len(acknowledged) + 1
