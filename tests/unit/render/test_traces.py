import math
import struct
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.axes import Axes
from sweep_cases import learning, noise
from tiers import examples, thinned

from orchestrator.detection.config import StoppingConfig
from orchestrator.logs.columns import Columns
from orchestrator.logs.tables import Log
from orchestrator.maps.replay import Replayed, replay_logs
from orchestrator.render import traces
from orchestrator.render.traces import trace_figure


def replayed(
    loss: Sequence[float] | np.ndarray,
    norms: np.ndarray | None = None,
    steps: np.ndarray | None = None,
    name: str = "run.csv",
    loss_name: str = "loss",
) -> Replayed:
    """A log with these losses, judged."""
    loss_N = np.asarray(loss, dtype=float)
    step_N = np.arange(len(loss_N)) if steps is None else steps
    columns = Columns("step", loss_name, None if norms is None else "grad_norm")
    (found,) = replay_logs([Log(name, columns, step_N, loss_N, norms)], StoppingConfig())
    return found


def size_of(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG picture that is whole."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", picture[16:24])


def panels(shown: Replayed) -> list[Axes]:
    return trace_figure.figure(shown).axes


def explained(shown: Replayed) -> list[str]:
    """What the legend of the losses says."""
    legend = panels(shown)[0].get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


SPIKED = learning(400, changes=[(200, 212, 4.0)])
LOST = learning(600, changes=[(250, 600, 6.0)])
BROKEN = np.where(np.arange(400) >= 300, np.nan, learning(400))
CASES = {
    "stable": (learning(400), "stable"),
    "spiked": (SPIKED, "spiked"),
    "lost": (LOST, "diverged"),
    "not finite": (BROKEN, "diverged"),
    "infinite": (np.where(np.arange(400) == 300, np.inf, learning(400)), "diverged"),
    "nothing finite": (np.full(5, np.nan), "diverged"),
    "a single point": ([2.5], "unknown"),
    "a single point that is not finite": ([np.nan], "diverged"),
    "constant": (np.full(300, 2.0), "stalled"),
    "zero": (np.zeros(300), "stalled"),
    "negative": (1 - learning(400)[::-1], None),
    "over decades": (10.0 ** np.linspace(3, -9, 300), "stable"),
}


@pytest.mark.parametrize(
    "with_norms", [pytest.param(False, marks=pytest.mark.slow), True], ids=["losses", "losses and norms"]
)
@pytest.mark.parametrize(
    "case",
    thinned(CASES, ["spiked", "not finite", "nothing finite", "a single point", "zero", "negative"].__contains__),
)
def test_logs_of_every_kind_are_drawn_without_a_warning(case: str, with_norms: bool) -> None:
    loss, outcome = CASES[case]
    shown = replayed(loss, np.abs(np.asarray(loss, dtype=float)) if with_norms else None)
    assert outcome in (None, shown.result.outcome), "the case is what its name says"
    width, height = size_of(trace_figure("png", shown))
    assert width == 1080
    has_norms = with_norms and bool(np.isfinite(loss).any())
    assert height == (624 if has_norms else 432), "norms get a panel of their own, where there are any"


def test_a_log_of_200_000_points_is_drawn_without_a_warning() -> None:
    # Judged by its first points: the picture takes the verdict as it finds it.
    log = replace(replayed(SPIKED).log, step_N=np.arange(200_000), loss_N=noise(200_000))
    size_of(trace_figure("png", replace(replayed(SPIKED), log=log)))
    drawn = panels(replace(replayed(SPIKED), log=log))[0].lines[0].get_xdata()
    assert len(drawn) < 5000
    assert (drawn[0], drawn[-1]) == (0, 199_999)


def test_the_same_log_gives_the_same_bytes() -> None:
    assert trace_figure("png", replayed(SPIKED)) == trace_figure("png", replayed(SPIKED))


@pytest.mark.parametrize("name", ["cost_$x_{$.csv", "two\nlines.csv"])
def test_names_are_shown_and_never_read_as_formulas(name: str) -> None:
    size_of(trace_figure("png", replayed(SPIKED, name=name)))
    size_of(trace_figure("png", replayed(SPIKED, loss_name=name)))


def test_the_legend_explains_what_a_picture_has_and_nothing_else() -> None:
    assert explained(replayed(learning(400))) == []
    assert explained(replayed(SPIKED)) == ["episode"]
    lost, broken = explained(replayed(LOST)), explained(replayed(BROKEN))
    assert "never came back" in lost
    assert "would stop here" in lost
    assert "not finite" not in lost
    assert {"not finite", "would stop here"} <= set(broken)


def test_episodes_and_the_stop_are_drawn_where_they_were_in_every_panel() -> None:
    for loss in (SPIKED, LOST):
        shown = replayed(loss, np.ones(len(loss)), steps=10 * np.arange(len(loss)))
        for panel in panels(shown):
            low = [patch.get_x() for patch in panel.patches]
            assert low[0] == shown.record.episodes[0].onset_step
            if shown.record.lost_step is not None:
                assert [line.get_xdata()[0] for line in panel.lines[1:]] == [shown.record.lost_step]


def test_faint_episodes_are_drawn_lightly() -> None:
    tails = np.exp(0.3 * np.random.default_rng(3).standard_t(5, 3000))
    shown = replayed((1 + 3 * np.exp(-np.arange(3000) / 50)) * tails)
    assert shown.record.faint
    assert explained(shown) == ["faint episode"]
    assert {patch.get_alpha() for patch in panels(shown)[0].patches} == {0.1}


def test_the_title_says_the_name_without_its_folder_the_outcome_and_why() -> None:
    shown = replayed(LOST, name="far/away/run.csv")
    title = trace_figure.figure(shown)._suptitle.get_text()
    assert title == f"run.csv: diverged, {shown.result.reason}"


def test_the_axis_is_logarithmic_where_losses_span_decades_and_only_there() -> None:
    def scale(loss: np.ndarray) -> str:
        return panels(replayed(loss))[0].get_yscale()

    assert scale(10.0 ** np.linspace(1, -3, 300)) == "log"
    assert scale(learning(400)) == "linear"
    assert scale(10.0 ** np.linspace(1, -3, 300) - 0.01) == "linear", "zero and less have no logarithm"


def test_every_point_that_is_not_finite_has_its_mark() -> None:
    loss = learning(100)
    loss[[20, 50, 99]] = np.nan, np.inf, -np.inf
    marks = panels(replayed(loss))[0].lines[1]
    assert marks.get_xdata().tolist() == [20, 50, 99]


def test_few_points_are_all_kept() -> None:
    assert traces.thinned(np.arange(7.0), 7).tolist() == list(range(7))


def test_a_single_high_or_low_point_among_many_is_kept() -> None:
    values = np.ones(200_000)
    values[77_777], values[123_456] = 50.0, -50.0
    kept = traces.thinned(values, 4000)
    assert {0, 77_777, 123_456, 199_999} <= set(kept.tolist())
    assert len(kept) <= 4002


@settings(max_examples=examples(60))
@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.integers(1, 90)), elements=st.sampled_from([-3.0, 0.5, 9.0, np.nan])
    ),
    st.sampled_from([4, 10, 40]),
)
def test_rows_that_are_thinned_at_once_keep_what_each_keeps_alone(values: np.ndarray, max_points: int) -> None:
    at_once = traces.thinned_rows(values, max_points)
    assert [kept.tolist() for kept in at_once] == [traces.thinned(row, max_points).tolist() for row in values]


@settings(max_examples=examples(60))
@given(
    hnp.arrays(np.float64, st.integers(41, 400), elements=st.sampled_from([-3.0, -1.0, 0.5, 1.0, 2.0, 9.0, np.nan])),
    st.sampled_from([4, 10, 40]),
)
def test_of_every_stretch_the_extremes_are_kept(values: np.ndarray, max_points: int) -> None:
    kept = traces.thinned(values, max_points)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    assert len(kept) <= max_points + 2
    size = math.ceil(len(values) / (max_points // 2))
    for start in range(0, len(values), size):
        end = start + size
        stretch = values[start:end]
        if not np.isfinite(stretch).any():
            continue
        shown = values[kept[(kept >= start) & (kept < end)]]
        assert np.nanmin(shown) == np.nanmin(stretch)
        assert np.nanmax(shown) == np.nanmax(stretch)
