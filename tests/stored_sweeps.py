"""What trackers that write files hold of a sweep, read from the files."""

import json
from collections.abc import Iterator, Mapping, Sequence
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
    store = folder / "tensorboard"
    trials = {}
    for place in store.glob("trials/*"):
        found = read_events(place)
        trial_id = json.loads((place / "sweep.json").read_text())["trial_id"]
        assert trial_id not in trials, "a trial has one folder"
        files = [*place.glob("*.main"), *place.glob("*.growing")]
        assert sum(path.stat().st_size > 0 for path in files) == 1
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


def in_wandb(folder: Path) -> Stored:
    """What runs that were written offline hold."""
    runs = [read_run(path) for path in (folder / "wandb").glob("offline-run-*/*.wandb")]
    assert len({run["id"] for run in runs}) == len(runs), "a trial has one run"
    assert {run["group"] for run in runs} <= {folder.name}
    trials, parents = {}, [run for run in runs if run["kind"] == "sweep"]
    assert len(parents) <= 1
    tables = parents[0]["tables"] if parents else {}
    shares = {row["trial_id"]: row.get("learned_share") for row in tables.get("trials", [])}
    for run in runs:
        if run["kind"] == "trial":
            values = {name: str(value) for name, value in run["config"].items() if not name.startswith("_")}
            trial_id, cell = values.pop("trial_id"), values.pop("cell")
            trials[trial_id] = {
                "status": run["summary"].get("status"),
                "outcome": run["summary"].get("outcome"),
                "values": values,
                "cell": cell,
                "loss": [(step, row["loss"]) for step, row in run["history"] if "loss" in row],
                "learned_share": shares.get(trial_id),
            }
    if not parents:
        return Stored(trials)
    cells = {
        row["cell"]: ({name: str(value) for name, value in row.items()}, row["stable_fraction"])
        for row in tables["map"]
    }
    summary = parents[0]["summary"]
    counts = {name: value for name, value in summary.items() if name[0] != "_"}  # those are the library's own
    return Stored(trials, counts.pop("is_over"), counts, parents[0]["files"], parents[0]["config"], cells)


def read_run(path: Path) -> dict[str, Any]:
    """The records of a run's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {"config": {}, "summary": {}, "history": []}
    for content in records(path.read_bytes()):
        record = Record.FromString(content)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found |= {"id": record.run.run_id, "group": record.run.run_group, "kind": record.run.job_type}
            found["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "history":
            row = plain(record.history.item)
            found["history"].append((record.history.step.num, row))
            found["summary"] |= row
        elif kind == "summary":
            found["summary"] |= plain(record.summary.update)
    files = path.parent / "files"
    found["tables"] = {
        table.name.split("_")[0]: [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
        for table in (files / "media" / "table").glob("*.table.json")
        for content in [json.loads(table.read_text())]
    }
    found["files"] = sorted(file.name for file in files.glob("*") if file.is_file())
    return found


def plain(items: Sequence[Any]) -> dict[str, Any]:
    """The values that are no mapping, as those of pictures and tables are."""
    made = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in items if len(item.nested_key) < 2}
    return {name: value for name, value in made.items() if not isinstance(value, dict)}


def records(content: bytes) -> Iterator[bytes]:
    """The records of a file of Weights & Biases: blocks of 32 KiB with parts of records, as in LevelDB's logs."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # too little for the head of a part
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""
