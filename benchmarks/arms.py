"""The arms of the CPU comparison: how each creates its two single-threaded trainers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.crew import WORKERS, Advance, Crew
from benchmarks.sizes import Size
from benchmarks.sweep_files import SEEDS, grid_text
from objectives.base import GptConfig
from orchestrator.base.packs import Pack
from orchestrator.driver.packing import make_packs
from orchestrator.sweepfile.spec import Sweep, load_sweep
from orchestrator.worker.run import run_pack

VMAP_MEMBERS = 16
CELLS = (8, 6)
# No measurement window may reach the end of a trial; a sweep of this length would run for hours.
ENDLESS = 1_000_000
EAGER = ("eager default", "eager foreach", "eager fused")
OURS = "ours"
ARMS = (OURS, *EAGER, "compiled", "vmap", "vmap compiled")
_STEPS_AT_A_TIME = 5


def start_arm(name: str, size: Size) -> Crew:
    """The processes of one arm, ready to be measured."""
    sweep = stable_sweep(size, ENDLESS)
    if name == OURS:
        packs = make_packs(sweep, sweep.trials, WORKERS)[:WORKERS]
        return Crew(OurPack, [(pack,) for pack in packs])
    configs = [GptConfig.model_validate(dict(trial.config), strict=False) for trial in sweep.trials]
    seeds = [trial.seed for trial in sweep.trials]
    if name.startswith("vmap"):
        parts = [slice(i * VMAP_MEMBERS, (i + 1) * VMAP_MEMBERS) for i in range(WORKERS)]
        return Crew(vmapped, [(configs[part], seeds[part], name == "vmap compiled") for part in parts])
    return Crew(plain, [(configs[i], seeds[i], name) for i in range(WORKERS)])


def stable_sweep(size: Size, steps: int) -> Sweep:
    """As many trials of this size as in the main sweep, none of which is ever lost."""
    return sweep_of_text(grid_text(size.name, size.fields, steps, CELLS, SEEDS))


def sweep_of_text(text: str) -> Sweep:
    """A sweep as a user writes it: read from a file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.yaml"
        path.write_text(text)
        return load_sweep(path)


class OurPack:
    """A worker of sweep: it yields the reports of a pack, about every second, as the driver gets them."""

    def __init__(self, pack: Pack) -> None:
        self._reports = run_pack(pack)
        self._done = 0
        self.note = ""

    def __call__(self) -> int:
        """Train until the next report; returns the member-steps in it."""
        report = next(self._reports)
        if report.error:
            raise RuntimeError(report.error.strip().splitlines()[-1])
        if report.ending is not None:
            raise RuntimeError("the pack has ended: give it more steps")
        self.note = report.environment.get("way", self.note)
        before, self._done = self._done, report.member_steps
        return self._done - before


def plain(config: GptConfig, seed: int, name: str) -> Advance:
    """One trial of the plain trainer, which stores its losses."""
    import torch

    from benchmarks.plain_gpt import PlainTrainer

    torch.set_num_threads(1)
    trainer, curve = PlainTrainer(config, seed, plain_style(name), "cpu"), []

    def advance() -> int:
        curve.extend(trainer.step() for _ in range(_STEPS_AT_A_TIME))
        return _STEPS_AT_A_TIME

    return advance


def plain_style(name: str) -> Any:
    """The set-up of the plain trainer for the arm ``name``."""
    from benchmarks.plain_gpt import Style

    if name == "compiled":
        return Style("fused", is_compiled=True)
    kind = name.removeprefix("eager ")
    if kind not in ("default", "foreach", "fused"):
        raise ValueError(f"no arm {name!r}: choose from {', '.join(ARMS)}")
    return Style(kind)


def vmapped(configs: list[GptConfig], seeds: list[int], is_compiled: bool) -> Advance:
    """A stack of trials by torch.func.vmap."""
    import torch

    from benchmarks.vmapped_gpt import VmappedTrainer

    torch.set_num_threads(1)
    trainer, curve = VmappedTrainer(configs, seeds, "cpu", is_compiled=is_compiled), []

    def advance() -> int:
        curve.append(trainer.step())
        return len(configs)

    return advance


def best_eager(medians: Mapping[str, float]) -> float | None:
    """The fastest eager one-member trainer that was measured."""
    return max((medians[name] for name in EAGER if name in medians), default=None)
