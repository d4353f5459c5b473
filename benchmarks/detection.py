"""How well spikes and lost runs are detected on labelled real logs, compared to rules in use today.

    python benchmarks/detection.py FOLDER --peers --json FILE

FOLDER has CSV files (step, loss, maybe grad_norm) and a MANIFEST.tsv that names for each its label, the
steps at which its episodes begin and end, whether the label is ambiguous and, if it likes, the set it belongs to.
Each set is scored for itself. With --peers the packages of ``detection_peers`` are scored too, if installed.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.detection_peers import Peer, available
from benchmarks.detection_rules import RULES, Flags, Rule
from orchestrator import StoppingConfig
from orchestrator.base.errors import InputError, Problem, SweepError
from orchestrator.logs.columns import Columns
from orchestrator.logs.files import read_log
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import Replayed, replay_logs

_CALM = 5  # points without a flag that end an episode of a rule
_LOST = ("diverged", "nan")


@dataclass(frozen=True, slots=True)
class Labelled:
    """A real log and its label. Episodes are points (first, last), in order."""

    log: Log
    source: str
    label: str
    is_ambiguous: bool
    episodes: tuple[tuple[int, int], ...]
    set_name: str = "all"

    @property
    def is_lost(self) -> bool:
        """Whether the run never recovered."""
        return self.label in _LOST


@dataclass(frozen=True, slots=True)
class Told:
    """The result of a rule on a log: points at which episodes start, and where it would stop the run."""

    onsets: tuple[int, ...]
    stop: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Score:
    """One rule on one log."""

    hits: int
    false_alarms: int
    misses: int
    is_wrong_stop: bool
    is_lost: bool
    is_lost_stopped: bool
    points_until_stop: int | None
    is_outcome_right: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Score our detector and the other rules; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="logs with a MANIFEST.tsv")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--peers", action="store_true", help="score the packages of others that are installed")
    parser.add_argument("--details", action="store_true", help="say what ours gets wrong, log by log")
    chosen = parser.parse_args(arguments)
    try:
        traces = read_manifest(chosen.folder)
    except SweepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    peers, missing = available() if chosen.peers else ({}, {})
    told_by_all = {**_all(traces), **{name: [told_by_peer(peer, t) for t in traces] for name, peer in peers.items()}}
    scores = {n: [score(trace, t) for trace, t in zip(traces, told, strict=True)] for n, told in told_by_all.items()}
    figures = {
        "all": {name: summary(found) for name, found in scores.items()},
        "unambiguous": _picked(scores, [not trace.is_ambiguous for trace in traces]),
        "by_set": {
            name: {
                "all": _picked(scores, [trace.set_name == name for trace in traces]),
                "unambiguous": _picked(scores, [trace.set_name == name and not trace.is_ambiguous for trace in traces]),
            }
            for name in sorted({trace.set_name for trace in traces})
        },
        "by_source": {
            source: _picked(scores, [trace.source == source for trace in traces])
            for source in sorted({trace.source for trace in traces})
        },
    }
    for name, of_set in figures["by_set"].items():
        mine = [trace for trace in traces if trace.set_name == name]
        _show(of_set, f"{name}: ", len(mine), sum(not trace.is_ambiguous for trace in mine))
    for name, why in missing.items():
        print(f"left out: {name} is not installed ({why})")
    if chosen.details:
        _details(traces, scores["ours"])
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
        print(f"wrote {chosen.json}")
    return 0


def read_manifest(folder: Path) -> list[Labelled]:
    """The labelled logs in ``folder``. Raises InputError when the manifest or a log is not usable."""
    path = folder / "MANIFEST.tsv"
    if not path.is_file():
        raise InputError(Problem(str(path), "", "no such file", "it names file, label, onset_steps, recovery_steps"))
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [_checked(folder, row, number) for number, row in enumerate(rows, start=2)]


def _checked(folder: Path, row: Mapping[str, str], line: int) -> Labelled:
    where = f"{folder / 'MANIFEST.tsv'}:{line}"
    try:
        trace = _labelled(folder, row)
    except (KeyError, AttributeError) as error:
        missing = error.args[0] if isinstance(error, KeyError) else "of this line"
        raise InputError(Problem(where, "", f"the column {missing} is missing")) from None
    except ValueError as error:
        raise InputError(Problem(where, "", f"onset_steps and recovery_steps: {error}", "END is no recovery")) from None
    if trace.is_lost and not trace.episodes:
        raise InputError(Problem(where, "", f"is labelled {trace.label} but has no onset"))
    return trace


def _labelled(folder: Path, row: Mapping[str, str]) -> Labelled:
    log = read_log(folder / row["file"], Columns(step="step", loss="loss"))

    def points(text: str) -> list[int]:
        last = len(log.step_N) - 1
        words = [word.strip() for word in text.split(";") if word.strip()]
        return [last if word == "END" else int(np.searchsorted(log.step_N, float(word))) for word in words]

    return Labelled(
        log=log,
        source=row["source_repo"],
        label=row["label"],
        is_ambiguous=row["ambiguous"] == "yes",
        set_name=row.get("set") or "all",
        episodes=tuple(zip(points(row["onset_steps"]), points(row["recovery_steps"]), strict=True)),
    )


def _all(traces: Sequence[Labelled]) -> dict[str, list[Told]]:
    replayed = replay_logs([trace.log for trace in traces], StoppingConfig())
    others = {name: [told_by(rule, trace) for trace in traces] for name, rule in RULES.items()}
    return {"ours": [told_by_us(one) for one in replayed], **others}


def told_by_us(replayed: Replayed) -> Told:
    """The result of our detector. A lost run without an episode gets one at its onset."""
    record, steps = replayed.record, replayed.log.step_N
    onsets = [episode.onset_step for episode in record.episodes]
    is_lost = replayed.result.outcome == "diverged"
    if is_lost and not any(e.recovery_step is None for e in record.episodes) and replayed.result.onset_step is not None:
        onsets.append(replayed.result.onset_step)
    stop = None if record.lost_step is None else int(np.searchsorted(steps, record.lost_step))
    names = {"diverged": "lost", "spiked": "spiked"}
    return Told(
        tuple(int(np.searchsorted(steps, onset)) for onset in dict.fromkeys(onsets)),
        stop,
        names.get(replayed.result.outcome, "clean"),
    )


def told_by(rule: Rule, trace: Labelled) -> Told:
    """The result of another rule."""
    flags, stop = rule(*_series(trace))
    onsets = _onsets(flags)
    return Told(onsets, stop, "lost" if stop is not None else "spiked" if onsets else "clean")


def told_by_peer(peer: Peer, trace: Labelled) -> Told:
    """The result of another package, which stops no run."""
    flags, is_lost = peer(*_series(trace))
    onsets = _onsets(flags)
    return Told(onsets, None, "lost" if is_lost else "spiked" if onsets else "clean")


def _series(trace: Labelled) -> tuple[list[float], list[float] | None]:
    norms = trace.log.grad_norm_N
    return trace.log.loss_N.tolist(), None if norms is None else norms.tolist()


def _onsets(flags: Flags) -> tuple[int, ...]:
    """Where episodes start: flags less than ``_CALM`` points apart are one."""
    onsets, last = [], -_CALM - 1
    for point in np.flatnonzero(flags):
        if point - last > _CALM:
            onsets.append(int(point))
        last = int(point)
    return tuple(onsets)


def score(trace: Labelled, told: Told) -> Score:
    """``told`` compared to the label. Onsets match within the larger of 2 points and 10 % of the episode.

    An onset inside a labelled episode that matches none is a fragment of it, or a jump of a regime that is labelled
    by its first: neither a hit nor a false alarm.
    """
    unmatched = list(told.onsets)
    hits = 0
    for first, last in trace.episodes:
        tolerance = max(2.0, 0.1 * (last - first))
        near = [onset for onset in unmatched if abs(onset - first) <= tolerance]
        if near:
            unmatched.remove(min(near, key=lambda onset: abs(onset - first)))
            hits += 1
    expected = "lost" if trace.is_lost else "spiked" if trace.label == "recovered-spike" else "clean"
    lost_at, tolerance = None, 0.0
    if trace.is_lost:
        first, last = trace.episodes[-1]
        lost_at, tolerance = first, max(2.0, 0.1 * (last - first))
    # A run that is lost later must not be stopped for an earlier episode from which it recovers.
    is_stop_right = told.stop is not None and lost_at is not None and told.stop >= lost_at - tolerance
    return Score(
        hits=hits,
        false_alarms=sum(not any(first <= onset <= last for first, last in trace.episodes) for onset in unmatched),
        misses=len(trace.episodes) - hits,
        is_wrong_stop=told.stop is not None and not is_stop_right,
        is_lost=trace.is_lost,
        is_lost_stopped=is_stop_right,
        points_until_stop=max(0, told.stop - lost_at) if is_stop_right else None,
        is_outcome_right=told.outcome == expected,
    )


def summary(scores: Sequence[Score]) -> dict[str, float | int | None]:
    """Sums and fractions over logs."""
    hits, alarms, misses = (sum(getattr(s, name) for s in scores) for name in ("hits", "false_alarms", "misses"))
    waits = [s.points_until_stop for s in scores if s.points_until_stop is not None]
    return {
        "traces": len(scores),
        "wrong_stops": sum(s.is_wrong_stop for s in scores),
        "lost_stopped": sum(s.is_lost_stopped for s in scores),
        "lost_total": sum(s.is_lost for s in scores),
        "median_points_until_stop": median(waits) if waits else None,
        "episode_precision": hits / (hits + alarms) if hits + alarms else None,
        "episode_recall": hits / (hits + misses) if hits + misses else None,
        "episode_f1": 2 * hits / (2 * hits + alarms + misses) if hits + alarms + misses else None,
        "outcome_accuracy": sum(s.is_outcome_right for s in scores) / len(scores) if scores else None,
        "false_alarms": alarms,
    }


def _picked(scores: Mapping[str, Sequence[Score]], mask: Sequence[bool]) -> dict[str, dict[str, float | int | None]]:
    return {name: summary([s for s, is_in in zip(found, mask, strict=True) if is_in]) for name, found in scores.items()}


def _show(
    figures: Mapping[str, Mapping[str, Mapping[str, float | int | None]]], name: str, num: int, num_clear: int
) -> None:
    console = Console(width=140)
    for part, title in (("unambiguous", f"{name}the {num_clear} unambiguous logs"), ("all", f"{name}all {num} logs")):
        table = Table(
            "rule", "wrong stops", "lost runs stopped", "after points", "false alarms", "precision", "recall", "F1",
            "outcomes right",
            title=title, title_justify="left", box=None,
        )  # fmt: skip
        for name, f in figures[part].items():
            table.add_row(
                name,
                str(f["wrong_stops"]),
                f"{f['lost_stopped']} of {f['lost_total']}",
                _number(f["median_points_until_stop"], ".0f"),
                str(f["false_alarms"]),
                *(_number(f[key], ".2f") for key in ("episode_precision", "episode_recall", "episode_f1")),
                _number(f["outcome_accuracy"], ".0%"),
            )
        console.print(table)
        console.print()


def _number(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _details(traces: Sequence[Labelled], scores: Sequence[Score]) -> None:
    for trace, found in zip(traces, scores, strict=True):
        wrong = [
            *([f"{found.misses} missed"] if found.misses else []),
            *([f"{found.false_alarms} false alarms"] if found.false_alarms else []),
            *(["wrongly stopped"] if found.is_wrong_stop else []),
            *(["not stopped"] if found.is_lost and not found.is_lost_stopped else []),
            *([] if found.is_outcome_right else ["another outcome"]),
        ]
        if wrong:
            print(f"{Path(trace.log.name).name} ({trace.label}): {', '.join(wrong)}")


if __name__ == "__main__":
    sys.exit(main())
