"""`sweep watch` for agents: a log is followed for some seconds at most, and nothing is run, sent or written."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.api.agent_tool import Reply, Tool, check_names, log_below, schema_of_object
from orchestrator.base.errors import InputError, Problem
from orchestrator.detection.run_alarms import ALARM_KINDS
from orchestrator.logs.columns import Columns
from orchestrator.render.answer import to_plain
from orchestrator.render.text import Lines

_MOST_SECONDS = 600
_REPORT_S = 2.0
_MOST_LINES = 200  # of the text
_TEXT = {"type": "string"}
_SCHEMA: Mapping[str, Any] = {
    "path": {**_TEXT, "description": "a log below the server's folder; of a folder the newest log"},
    "seconds": {
        "type": "number", "minimum": 0, "maximum": _MOST_SECONDS,
        "description": "how long to follow it; 0, the default, says how it is now",
    },
    "exit_on": {
        "type": "array", "items": _TEXT, "description": f"return at such an alarm: {', '.join(ALARM_KINDS)}",
    },
    "steps": {"type": "integer", "minimum": 1, "description": "steps of the whole run: says the time left, and ends"},
    "stalled_after": {"type": "number", "minimum": 1, "description": "seconds without growth until it has stalled"},
    "beside": {**_TEXT, "description": "name of a sweep: says where the run lies on its map"},
    "set": {"type": "array", "items": _TEXT, "description": "settings of the run, for `beside`: width=2048"},
    "step": {**_TEXT, "description": "the column of steps"},
    "loss": {**_TEXT, "description": "the column of training losses"},
    "grad_norm": {**_TEXT, "description": "the column of gradient norms"},
}  # fmt: skip
_DESCRIPTION = """Follow the log of a run that is going on, for some seconds: where it is, and alarms.

`report` is the last state: the step, the loss, episodes off the trend, and `lost_step`. `alarms` are new ones, such as
a spike, NaN or a lost run; `ended` is there if the log is over. Call it again to go on.
"""


class _TimeIsUp(Exception):
    """The end of a watch that would go on."""


def watch_tool(results: Path) -> Tool:
    """Return the tool; ``beside`` is a sweep in ``results``."""

    def call(arguments: Mapping[str, Any]) -> Reply:
        from orchestrator.api.watching import Clock, WatchOptions, kinds_of, watch

        path, beside, settings = log_below(arguments["path"]), arguments.get("beside"), arguments.get("set", ())
        if beside is not None:
            check_names([beside], results)
        elif settings:
            raise InputError(Problem("set", settings[0], "is for a sweep to compare with", "give `beside`"))
        until = time.monotonic() + arguments.get("seconds", 0)
        heard = _Heard()
        options = WatchOptions(
            columns=Columns(*(arguments.get(name) for name in ("step", "loss", "grad_norm"))),
            steps=arguments.get("steps"),
            every_s=_REPORT_S,
            exit_on=kinds_of(",".join(arguments.get("exit_on", ())), "exit_on"),
            beside=beside,
            settings=tuple(settings),
            results=results,
            hear=heard.take,
            **({"stalled_s": arguments["stalled_after"]} if "stalled_after" in arguments else {}),
        )

        def sleep(seconds: float) -> None:
            if (left := until - time.monotonic()) <= 0:
                raise _TimeIsUp
            time.sleep(min(seconds, left))

        return heard.reply(watch(str(path), options, Clock(time.monotonic, sleep)))

    return Tool("watch", _DESCRIPTION.strip(), schema_of_object(_SCHEMA, ["path"]), call, waits=True)


@dataclass(slots=True)
class _Heard:
    """What a watch said: as data, and as text in which only the last report stands."""

    data: dict[str, Any] = field(default_factory=lambda: {"report": None, "alarms": [], "place": None, "ended": None})
    _is_report: bool = False  # the next line

    def take(self, kind: str, values: Mapping[str, Any]) -> None:
        """Keep what a line of JSON has; of reports and places the last one."""
        if kind == "alarm":
            self.data["alarms"].append(to_plain(values))
        else:
            self.data["ended" if kind == "end" else kind] = to_plain(values)
        self._is_report = kind == "report"

    def reply(self, lines: Lines) -> Reply:
        """Follow the ``lines`` to their end, or until the time is up."""
        said: list[str] = []
        report = ""
        try:
            for line in lines:
                if self._is_report:
                    report, self._is_report = str(line), False
                else:
                    said.append(str(line))
        except _TimeIsUp:
            pass
        return Reply("\n".join([*said[:1], *filter(None, [report]), *said[1:][-_MOST_LINES:]]), self.data)
