"""A small training script that saves and resumes, as somebody's own, and a sweep with a run that it loses."""

from pathlib import Path

from orchestrator.driver.runner import run_sweep
from orchestrator.sweepfile.spec import load_sweep

# Gradient descent whose curvature grows: at 1.5 it leaves its trend at step 56, while 0.5 is stable to the end.
TRAIN = """
import json, os, sys, time
o = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
lr, beta, steps, seed, out = float(o["lr"]), float(o["beta"]), int(o["steps"]), int(o["seed"]), o["out"]
x, v, first, data = 2.0 + 0.1 * seed, 0.0, 0, int(o.get("data", 0))
path = os.path.join(out, "ckpt.json")
if "--resume" in sys.argv:
    x, v, first, *saved = json.load(open(o.get("from", path)))
for step in range(first, steps):
    if step and step % 10 == 0:
        target = path.replace("ckpt", "ckpt-%03d" % step) if "--all" in sys.argv else path
        json.dump([x, v, step, beta], open(target + ".new", "w"))
        os.replace(target + ".new", target)
    h = 0.2 + step / 20
    print(f"step {step} | loss {h * x * x / 2 + 1:.9g} | norm {abs(h * x):.9g}", flush=True)
    v = beta * v + h * x + 0.01 + 0.001 * data
    x -= lr * v
    time.sleep(float(o.get("pause", 0.004)))
"""
SWEEP = """
name: mine
objective:
  command: [python, train.py, "--lr={lr}", "--beta={beta}", "--steps={steps}", "--seed={seed}", "--out={folder}"]
  resume: {checkpoint: "{folder}/ckpt.json", arguments: [--resume]}
steps: 100
axes: {lr: {values: [0.5, 1.5]}}
fixed: {beta: 0.1}
tracking: {enabled: false}
"""
ONSET = 55


def swept(folder: Path, script: str = TRAIN, text: str = SWEEP, *, allow_import: bool = False) -> Path:
    """The results folder of a sweep over ``script``, trained in this process."""
    from orchestrator.executors.inline import InlineExecutor

    (folder / "train.py").write_text(script)
    (folder / "mine.yaml").write_text(text)
    results = folder / "results" / "mine"
    run_sweep(load_sweep(folder / "mine.yaml", allow_import=allow_import), results, InlineExecutor)
    return results
