"""A sweep as the file in its results folder: valid in any folder, with the command line's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from objectives.base import Objective
from orchestrator.base.space import Axis, thawed
from orchestrator.sweepfile.custom_trainer import CustomTrainer
from orchestrator.sweepfile.fields import Fields
from orchestrator.sweepfile.sections import SweepFile, keys_of
from orchestrator.sweepfile.strict_yaml import Document


class _Dumper(yaml.SafeDumper):
    """Floats in readable form, short lists on one line, explicit null."""


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    # Other YAML readers take 1e-12 as text; all of them read 1.0e-12 as a number.
    digits = repr(value)
    text = digits.replace("e", ".0e") if "e" in digits and "." not in digits else digits
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def frozen_text(
    document: Document,
    fixed: Mapping[str, Any],
    axes: Sequence[Axis],
    fields: Fields,
    objective: Objective | CustomTrainer,
) -> str:
    """The sweep as a file for any folder: question and keys as written, with the changes of the command line."""
    data = {key: document.data[key] for key in keys_of(SweepFile) if key in document.data}
    if isinstance(data["objective"], dict):
        data["objective"] = {**data["objective"], "folder": objective.folder}
    for axis in axes:
        if fields.names_files(axis.name):
            written = {**data["axes"][axis.name], "values": list(map(list, axis.values))}
            data["axes"] = {**data["axes"], axis.name: written}
    if data.get("fixed"):
        values = {key: fixed[key] for key in data["fixed"]}
        data["fixed"] = {key: thawed(value) for key, value in values.items()}
    question = f"# {document.question}\n" if document.question else ""
    return question + text_of(data)


def text_of(data: Mapping[str, Any]) -> str:
    """The keys and values of a sweep file as text."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
