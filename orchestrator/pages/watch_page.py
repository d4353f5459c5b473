"""The page of a run that `sweep watch` follows: its report, its alarms and its curves, drawn anew while it is open."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

import numpy as np

from orchestrator.pages.loopback import Listener, LoopbackServer

# Shapes: N points of a curve, B bins of it.

_BINS = 600  # of a curve, each with its lowest and highest value
_WIDTH, _HEIGHT = 900, 170
_LOG_FROM = 20.0  # ratio of the highest to the lowest value from which a curve is logarithmic
_OPEN_S = 10.0  # since the last request, in which a browser has the page open


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """What the page shows: lines on the run, ``alarms`` with their time, and curves (N,) over ``step_N`` by name.

    ``spans`` are first and last steps off the trend, the last one None while it lasts.
    """

    lines: Sequence[str]
    alarms: Sequence[str]
    step_N: np.ndarray
    curves: Mapping[str, np.ndarray]
    spans: Sequence[tuple[int, int | None]] = ()


class WatchPage(LoopbackServer):
    """Serves the page of the run ``name`` from a thread; ``show`` gives it what is new."""

    def __init__(self, listener: Listener, name: str) -> None:
        """Take over ``listener``, and answer from now on."""
        super().__init__(listener)
        self._name, self._run = name, WatchedRun((), (), np.zeros(0), {})
        self._asked_at = -math.inf
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), daemon=True, name="watch-page")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def show(self, run: Callable[[], WatchedRun], *, at_once: bool = False) -> None:
        """Show ``run()`` if a browser has the page open, or ``at_once``."""
        if at_once or time.monotonic() - self._asked_at < _OPEN_S:
            self._run = run()

    def answer(self, target: str) -> tuple[str, str] | None:
        """Return the page, or what is new on it at ``/now``."""
        self._asked_at = time.monotonic()
        if target == "/now":
            return "text/html", "".join(_now(self._run))
        return ("text/html", _page(self._name, "".join(_now(self._run)))) if target == "/" else None


def _page(name: str, now: str) -> str:
    style = _part("page.css") + _part("watch.css")
    head = f'<meta charset="utf-8"><link rel=icon href="data:,"><title>{escape(name)}</title><style>{style}</style>'
    body = f"<h1>{escape(name)}</h1><p id=state></p><main>{now}</main><script>{_part('watch.js')}</script>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>"


def _part(name: str) -> str:
    return files("orchestrator.pages").joinpath("page", name).read_text(encoding="utf-8")


def _now(run: WatchedRun) -> Iterator[str]:
    yield "".join(f"<p>{escape(line)}</p>" for line in run.lines)
    if run.alarms:
        yield "<h2>Alarms</h2><ul>" + "".join(f"<li>{escape(alarm)}</li>" for alarm in run.alarms) + "</ul>"
    for name, value_N in run.curves.items():
        yield f"<h2>{escape(name)}</h2>{_chart(run.step_N, value_N, run.spans)}"


def thinned(step_N: np.ndarray, value_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most two points of each bin of a finite curve: its lowest and its highest."""
    if len(value_N) <= 2 * _BINS:
        return step_N, value_N
    first_B = np.linspace(0, len(value_N), _BINS, endpoint=False).astype(int)
    lowest, highest = (each.reduceat(value_N, first_B) for each in (np.minimum, np.maximum))
    return np.repeat(step_N[first_B], 2), np.stack([lowest, highest], axis=1).ravel()


def _band(left: float, right: float) -> str:
    return f'<rect x="{left:.1f}" y="20" width="{max(2.0, right - left):.1f}" height="{_HEIGHT - 40}"/>'


def _chart(step_N: np.ndarray, value_N: np.ndarray, spans: Sequence[tuple[int, int | None]]) -> str:
    is_finite_N = np.isfinite(value_N)
    step_B, value_B = thinned(step_N[is_finite_N], value_N[is_finite_N])
    if not len(value_B):
        return "<p>no finite value</p>"
    low, high = float(value_B.min()), float(value_B.max())
    is_log = low > 0 and high / low > _LOG_FROM
    scaled_B = np.log(value_B) if is_log else value_B
    bottom, top = float(scaled_B.min()), float(scaled_B.max())
    first, last = int(step_N[0]), int(step_N[-1])

    def across(step: np.ndarray | int) -> np.ndarray:
        return np.asarray(_WIDTH * (step - first) / max(last - first, 1))

    y_B = 20 + (_HEIGHT - 40) * (top - scaled_B) / max(top - bottom, 1e-300)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across(step_B).tolist(), y_B.tolist(), strict=True))
    bands = "".join(_band(float(across(onset)), float(across(last if end is None else end))) for onset, end in spans)
    scale = " (logarithmic)" if is_log else ""
    words = (
        f'<text x="0" y="14">{high:.4g}{scale}</text><text x="0" y="{_HEIGHT - 6}">{low:.4g}</text>'
        f'<text x="60" y="{_HEIGHT - 6}">step {first:,}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">{last:,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{bands}<polyline points="{points}"/>{words}</svg>'
