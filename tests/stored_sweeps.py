"""What trackers that write files hold of a sweep, read from the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.logs.event_files import Events, event_frames


@dataclass
class Stored:
    """What a store holds of a sweep, in words that all trackers share."""

    trials: dict[str, dict[str, Any]]  # by id: status, outcome, values, curve of the loss
    is_over: bool | None = None  # of the parent; None where there is none
    counts: Mapping[str, float] = field(default_factory=dict)
    artifacts: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, tuple[Mapping[str, str], float | None]] = field(default_factory=dict)  # values, stable fraction


@dataclass
class EventFolder:
    """The content of a folder of event files."""

    scalars: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    pictures: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # of the hparams plugin
    status: int | None = None


def read_events(folder: Path) -> EventFolder:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    found = EventFolder()
    for path in sorted(folder.glob("*tfevents*")):
        content, events = path.read_bytes(), Events()
        for row in [*events.rows(content), *events.finish()]:
            for name, value in row.items():
                found.scalars.setdefault(name, []).append((int(row["step"]), value))
        assert (events.damage, events.num_odd) == ("", 0)
        for begin, end in event_frames(content):
            for value in Event.FromString(content[begin + 12 : end - 4]).summary.value:
                if value.WhichOneof("value") == "image":
                    found.pictures.append(value.tag)
                elif value.metadata.plugin_data.plugin_name == "text":
                    found.texts[value.tag] = value.tensor.string_val[0].decode()
                elif value.metadata.plugin_data.plugin_name == "hparams":
                    data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                    for name, entry in data.session_start_info.hparams.items():
                        found.values[name] = getattr(entry, entry.WhichOneof("kind"))
                    if data.HasField("session_end_info"):
                        found.status = data.session_end_info.status
    return found


def in_tensorboard(folder: Path) -> Stored:
    import json

    store = folder / "tensorboard"
    trials = {}
    for place in store.glob("trials/*"):
        found = read_events(place)
        trial_id = json.loads((place / "sweep.json").read_text())["trial_id"]
        assert trial_id not in trials, "a trial has one folder"
        assert len(list(place.glob("*.main"))) == 1
        trials[trial_id] = {
            "status": found.texts.get("status"),
            "outcome": found.texts.get("outcome"),
            "values": shown(found.values, "trial"),
            "cell": found.texts["cell"],
            "loss": found.scalars.get("loss", []),
            "learned_share": dict(found.scalars.get("learned_share", [])).get(0),
        }
    if not (store / "sweep").exists():
        return Stored(trials)
    sweep = read_events(store / "sweep")
    counts = {name: points[-1][1] for name, points in sweep.scalars.items()}
    table = [line.strip("| ").split(" | ") for line in sweep.texts["settings"].splitlines()[2:]]
    cells = {
        found.texts["cell"]: (shown(found.values, "cell"), dict(found.scalars.get("stable_fraction", [])).get(0))
        for found in map(read_events, store.glob("cells/*"))
    }
    return Stored(trials, bool(counts.pop("is_over")), counts, sweep.pictures, dict(table), cells)


def shown(values: Mapping[str, Any], level: str) -> dict[str, str]:
    """Values as other stores have them: the plugin has numbers only as floating-point numbers."""
    assert values["level"] == level
    texts = {}
    for name, value in values.items():
        is_whole = isinstance(value, float) and value.is_integer() and name == "seed"
        texts[name] = str(int(value) if is_whole else value)
    del texts["level"]
    return texts


def as_in_event_files(value: float) -> float:
    """A number with 32 bits; infinite beyond them."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
