"""An optimizer and an objective that are added to their tables alone are planned, trained, listed and diagnosed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The two files of an optimizer: its fields and facts without torch, and its update.
FACTS = """
from pydantic import BaseModel
from objectives.fields import per_member, when
from objectives.optimizers.facts.optimizer import Optimizer, never

class LazyFields(BaseModel):
    lazy_share: float = per_member(0.5, "1", "Lazy: share of a step", acts=when("optimizer", "lazy"), gt=0)

LAZY = Optimizer("lazy", "lazy_rule:Lazy", LazyFields, reads=("beta1",), divides_by_root=never)
"""
RULE = """
from objectives.optimizers.rules.sgd import Sgd

class Lazy(Sgd):
    def update(self, states, grad_Kn, params_Kn, scalars_K1):
        return super().update(states, grad_Kn, params_Kn, scalars_K1) * scalars_K1["share"]

    def scalars(self, numbers, lr_K, age_K):
        return {**super().scalars(numbers, lr_K, age_K), "share": numbers["lazy_share"]}
"""
OBJECTIVE = """
from dataclasses import replace
from objectives.fields import per_member
from objectives.models.facts.quadratic import QUADRATIC, QuadraticConfig

class BowlConfig(QuadraticConfig):
    '''A bowl.'''
    depth: float = per_member(1.0, "1", "how deep it is", gt=0)

BOWL = replace(QUADRATIC, name="bowl", config_class=BowlConfig, starter_steps=77)
"""
# What a line in each table does, before anybody reads them.
TABLES = """
import json, sys
from objectives.optimizers import facts
if "lazy" in sys.argv:
    from lazy_facts import LAZY
    facts.OPTIMIZERS["lazy"] = LAZY
    from objectives.models import facts as models
    from bowl import BOWL
    models.OBJECTIVES["bowl"] = BOWL
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.starter import objectives_with_rows, starter_file
from orchestrator.sweepfile.strict_yaml import parse_document

def sweep_of(body, objective="quadratic"):
    return build_sweep(parse_document(f"name: case\\nobjective: {objective}\\nsteps: 20\\n{body}", "case.yaml"))

found = {
    "known": [t.trial_id for t in sweep_of("axes: {optimizer: {values: [adamw, sgd, spam, adam8bit]}}\\n").trials],
    "fields": {one.name: [row[0] for row in rows] for one, rows in objectives_with_rows()},
    "torch": "torch" in sys.modules,
}
if "lazy" in sys.argv:
    import math
    from objectives.base import OBJECTIVES
    from objectives.base import ExecutionPlan
    from orchestrator.causes.moments import is_adam
    found["config"] = sweep_of("fixed: {optimizer: lazy}\\n").trials[0].config
    found["is_adam"] = is_adam({"optimizer": "lazy"})
    found["starter"] = starter_file("mine", "bowl", Overrides(sets=["fixed.optimizer=lazy"]))
    config_class = OBJECTIVES["bowl"].config_class
    configs = [config_class(steps=9, lr=0.1, optimizer="lazy", lazy_share=share) for share in (0.5, 1.0)]
    trainer = OBJECTIVES["bowl"].start(configs, [0, 0], "cpu", ExecutionPlan(2))
    half, whole = trainer.step()["update_norm"].tolist()
    found["is_half"] = math.isclose(2 * half, whole)
print(json.dumps(found))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"lazy_facts": FACTS, "lazy_rule": RULE, "bowl": OBJECTIVE, "tables": TABLES}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def said(folder: Path, *words: str) -> dict:
    command = [sys.executable, str(folder / "tables.py"), *words]
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_an_optimizer_and_an_objective_of_their_tables_alone_are_known_everywhere(folder: Path) -> None:
    before, after = said(folder), said(folder, "lazy")
    assert after["known"] == before["known"], "no trial of another optimizer is a new one"
    assert not before["torch"]
    assert "lazy_share" in after["fields"]["gpt"]
    assert {"lazy_share", "depth"} <= set(after["fields"]["bowl"])
    assert (after["config"]["lazy_share"], "beta2" in after["config"]) == (0.5, False)
    assert after["is_adam"] is False
    assert "objective: bowl\n" in after["starter"]
    assert "steps: 77\n" in after["starter"]
    assert after["is_half"]
