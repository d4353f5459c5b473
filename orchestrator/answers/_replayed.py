"""How verdicts on logs, and trials of sweeps under other settings, read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.render.blocks import Block, Line, Table

if TYPE_CHECKING:
    from orchestrator.detection.excursions import Episode
    from orchestrator.maps.replay import Replayed, ReplayedTrial

EPISODES_SHOWN = 3
_LONGEST_NAME = 200  # characters of a file name, whose limit is 255 bytes
_CHANGES_SHOWN = 20
_RISES_SHOWN = 5


def log_blocks(replayed: Sequence[Replayed], *, lists_faint: bool) -> Iterator[Block]:
    rows = []
    for one, name in zip(replayed, _shown_names(replayed), strict=True):
        stop = "-" if one.record.lost_step is None else f"step {one.record.lost_step:,}"
        rows.append(
            (
                name,
                f"{len(one.log.step_N):,}",
                one.result.outcome,
                _listed(one.record.episodes),
                f"{stop} (wrong: it came back)" if one.is_wrong_stop else stop,
                f"{one.share_saved:.0%}" if one.record.lost_step is not None else "-",
            )
        )
    yield Table(("log", "points", "outcome", "episodes", "would stop", "saves"), tuple(rows), right=(1, 5))
    for one in replayed:
        if lists_faint:
            yield Line(f"faint episodes of {one.log.name}: {_listed(one.record.faint)}")
        for note in (*one.log.notes, *_notes_on(one)):
            yield Line(f"note: {one.log.name}: {note}")
    columns = {(str(o.log.columns.step), str(o.log.columns.loss), str(o.log.columns.grad_norm)) for o in replayed}
    for step, loss, norm in sorted(columns):
        yield Line(f"columns: step={step} loss={loss} grad-norm={norm}")


def _notes_on(one: Replayed) -> Iterator[str]:
    """What the detector saw that is neither a verdict nor an episode."""
    from orchestrator.detection.run_monitor import NOTE

    record = one.record
    if one.result.risen_share is not None:
        yield f"since step {record.risen_since_step:,} it has given up {record.risen_share:.0%} of what it had learned"
    if record.norm_rises:
        shown = [f"{step:,}" for step in record.norm_rises[:_RISES_SHOWN]]
        more = len(record.norm_rises) - _RISES_SHOWN
        yield f"{NOTE}, at step {', '.join(shown)}" + (f" and {more} more" if more > 0 else "")


def _shown_names(replayed: Sequence[Replayed]) -> list[str]:
    """Names without their common folders."""
    parts = [Path(one.log.name).parts for one in replayed]
    shared = 0
    if len(parts) > 1:
        while all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
            shared += 1
    return [str(Path(*p[shared:])) if shared else one.log.name for p, one in zip(parts, replayed, strict=True)]


def _listed(episodes: Sequence[Episode]) -> str:
    def shown(step: int | None) -> str:
        return "end" if step is None else f"{step:,}"

    texts = [f"{shown(e.onset_step)} to {shown(e.recovery_step)}" for e in episodes[:EPISODES_SHOWN]]
    if len(episodes) > EPISODES_SHOWN:
        texts.append(f"{len(episodes) - EPISODES_SHOWN} more")
    return f"{len(episodes)}: {', '.join(texts)}" if episodes else "none"


def picture_names(replayed: Sequence[Replayed]) -> list[str]:
    """A file name for each picture: the name of the log, after as many folders as make it unique."""
    names: list[str] = []
    for one in replayed:
        parts = [re.sub(r"[^\w.=-]+", "_", part) for part in Path(one.log.name).parts if part not in ("/", "..", ".")]
        for num in range(1, len(parts) + 1):
            name = _ending("__".join(parts[-num:])) + ".png"
            if name not in names:
                break
        names.append(name if name not in names else f"{name.removesuffix('.png')}_{len(names)}.png")
    return names


def _ending(name: str) -> str:
    """The end of ``name``, short enough for a file name."""
    return name.encode()[-_LONGEST_NAME:].decode(errors="ignore")


def sweep_blocks(name: str, trials: Sequence[ReplayedTrial]) -> Iterator[Block]:
    """The outcomes of a sweep that change under other settings."""
    changed = [trial for trial in trials if trial.is_changed]
    yield Line(f"{name}: {len(trials)} finished trials, {len(changed)} with another outcome")
    for (before, after), count in sorted(Counter((t.outcome, t.new_outcome) for t in changed).items()):
        yield Line(f"{before} -> {after}: {count}", 1)
    trained, needed = sum(t.steps_done for t in trials), sum(t.new_steps_done for t in trials)
    yield Line(f"member-steps: {trained:,} trained, {needed:,} until the new verdicts")
    if any(trial.new_outcome == "unknown" for trial in trials):
        why = "training was stopped before the new settings would have judged, or not every step was kept"
        yield Line(f"unknown: {why}")
    if not changed:
        return
    rows = tuple(
        (
            trial.cell.name,
            str(trial.seed), trial.outcome, trial.new_outcome, f"{trial.new_steps_done - 1:,}", trial.reason,
        )
        for trial in changed[:_CHANGES_SHOWN]
    )  # fmt: skip
    yield Table(("trial", "seed", "was", "is", "at step", "because"), rows)
    if len(changed) > _CHANGES_SHOWN:
        yield Line(f"... and {len(changed) - _CHANGES_SHOWN} more; --json FILE writes them all")
