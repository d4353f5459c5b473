"""How the states of a cell look on figures, page and terminal; free of matplotlib, which takes long to import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateLook:
    """How one state of a cell is shown.

    ``label`` is for the key of figures and page, ``marker`` is matplotlib's, ``sign`` a character on the page;
    ``letter`` (ASCII), ``colour`` and ``word`` are for a terminal. Marks differ without colour. A state that
    ``sets_colours`` counts for a metric's colour range: values of diverged cells would flatten the differences of the
    others. A state that is not ``is_painted`` has no result to colour.
    """

    label: str
    marker: str = ""
    sign: str = ""
    letter: str = ""
    colour: str = "default"
    word: str = ""
    is_hatched: bool = False
    sets_colours: bool = False
    is_painted: bool = True


# In the order of the key.
STATES: Mapping[str, StateLook] = {
    "stable": StateLook("no mark: all seeds stable", "", "", "o", "blue", "all stable", sets_colours=True),
    "diverged": StateLook("diverged (never came back, or not finite)", "x", "✕", "X", "red", "diverged"),
    "spiked": StateLook(
        "spiked (left its trend and recovered)", "^", "△", "^", "yellow", "spiked", sets_colours=True
    ),
    "stalled": StateLook("stalled (never learned)", "_", "▬", "-", "magenta", "stalled", sets_colours=True),
    "degraded": StateLook(
        "degraded (learned less than half of what the best did)",
        "v", "▽", "v", "cyan", "degraded", sets_colours=True,
    ),
    "collapsed": StateLook(
        "collapsed (its router: loads far from even, or a dead expert)",
        "D", "◇", "C", "red", "collapsed", sets_colours=True,
    ),
    "pruned": StateLook("pruned (stopped because it was slower than others)", "$s$", "s", "s", "default", "pruned"),
    "errored": StateLook("errored (a fault, not a result)", "$!$", "!", "!", "red", "errored"),
    "unknown": StateLook(
        "unknown (seeds without a result, or whose losses cannot be judged)",
        "$?$", "?", "?", "default", "not known", is_hatched=True,
    ),
    "not_run": StateLook("not run", "", "", ".", "bright_black", "not run", is_hatched=True, is_painted=False),
    "running": StateLook("running", "", "", ":", "default", "running"),  # on a terminal only
}  # fmt: skip
