import io
import sys
from types import ModuleType, SimpleNamespace

from rich.console import Console
from sweep_cases import QUADRATIC, sweep_of, trial_row

from orchestrator.api.live_view import LiveView, progress_line, stop_line
from orchestrator.base.packs import Report
from orchestrator.base.trial_result import TrialResult
from orchestrator.base.vocabulary import OUTCOMES
from orchestrator.driver.progress import Progress
from orchestrator.render.text_map import text_map
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document


def row(cell: dict, label: str) -> TrialResult:
    """A trial with this outcome or status; a degraded one has learned a tenth."""
    if label == "degraded":
        return trial_row(cell=cell, outcome="stable", status="finished", learned_share=0.1)
    return trial_row(cell=cell, outcome=label if label in OUTCOMES else None, status=label)


def test_the_map_tells_outcomes_apart_without_colour() -> None:
    labels = ["stable", "degraded", "spiked", "diverged", "stalled", "errored", "running", "planned"]
    cells = [row({"lr": i, "beta2": 0.9}, label) for i, label in enumerate(labels)]
    lines = text_map(cells).plain.splitlines()
    marks = lines[1].split()[1:]
    assert len(set(marks)) == len(labels)
    assert all(label in " ".join(lines[2:]) for label in [*labels[:-1], "not run"])


def test_the_map_grows_upwards_and_to_the_right() -> None:
    cells = [row({"x": x, "y": y}, "diverged" if (x, y) == (2, 1) else "stable") for x in (1, 2) for y in (1, 2)]
    rows = [line.split()[1:] for line in text_map(cells).plain.splitlines()[1:3]]
    assert rows == [["o", "o"], ["o", "X"]]


def test_a_map_that_would_not_fit_is_left_out() -> None:
    assert text_map([row({"x": x}, "stable") for x in range(100)]) is None
    assert text_map([row({}, "stable")]) is None


def test_without_a_terminal_progress_is_plain_lines(train, quadratic_sweep) -> None:
    output = io.StringIO()
    train(quadratic_sweep, observers=[LiveView(Console(file=output, force_terminal=False))])
    text = output.getvalue()
    assert "training 12 trials on 1 worker" in text
    assert text.splitlines()[-1].startswith("0:0")
    assert "12/12 trials | 100% of the steps | stable 10 | diverged 2" in text
    assert "\x1b" not in text


def test_on_a_terminal_the_map_fills_in(train) -> None:
    sweep = build_sweep(parse_document(QUADRATIC, "edge.yaml"), Overrides(sets=["resources.pack=2"]))
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, legacy_windows=False)
    train(sweep, observers=[LiveView(console, frame_s=0.0)])
    assert "X diverged" in output.getvalue()
    assert ". not run" in output.getvalue()


def test_in_a_notebook_one_picture_is_replaced_and_ends_as_the_line_of_progress(
    train, quadratic_sweep, monkeypatch
) -> None:
    pictures: list[list[str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            pictures[-1].append(bundle["text/plain"])

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert "<pre" in bundle["text/html"]
        pictures.append([bundle["text/plain"]])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    console = Console(file=io.StringIO(), force_terminal=False)
    console.is_jupyter = True
    monkeypatch.setattr(console, "print", lambda *_, **__: None)
    train(quadratic_sweep, observers=[LiveView(console, frame_s=0.0)])
    (shown,) = pictures
    assert len(shown) > 2
    assert any("X diverged" in text for text in shown)
    assert len(shown[-1].splitlines()) == 1
    assert "12/12 trials" in shown[-1]


def test_the_map_fits_into_eighty_columns_and_says_what_it_pools() -> None:
    cells = [
        row({"x": x, "a_long_name": y, "clip": clip}, "stable") for x in range(60) for y in (1e-12, 1) for clip in "ab"
    ]
    lines = text_map(cells).plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[1] == "o" * 60
    assert "worst over clip" in lines[-2]


def test_the_progress_line_counts_the_trials_whose_gradient_norm_is_up() -> None:
    running = {name: Report(name, 10, 10, 1.0, num_risen=num) for name, num in (("a", 2), ("b", 1))}
    progress = Progress(sweep_of(), {}, {}, {}, 8, clock=lambda: 5.0, started=0.0, running=running)
    assert "gradient norm up in 3" in progress_line(progress)
    progress.running.clear()
    assert "gradient norm" not in progress_line(progress)


def test_the_progress_line_counts_the_trials_with_numbers_that_are_not_finite() -> None:
    running = {"a": Report("a", 10, 10, 1.0, num_nonfinite=2), "b": Report("b", 10, 10, 1.0)}
    progress = Progress(sweep_of(), {}, {}, {}, 8, clock=lambda: 5.0, started=0.0, running=running)
    assert "NaN or infinity in 2" in progress_line(progress)
    progress.running.clear()
    assert "NaN" not in progress_line(progress)


def test_the_progress_line_has_the_most_memory_of_a_process_in_training() -> None:
    running = {name: Report(name, 10, 10, 1.0, peak_memory=peak) for name, peak in (("a", 512.0), ("b", 1536.0))}
    running["c"] = Report("c", 10, 10, 1.0)
    progress = Progress(sweep_of(), {}, {}, {}, 8, clock=lambda: 5.0, started=0.0, running=running)
    assert "memory 1.5 GiB" in progress_line(progress)
    progress.running.clear()
    assert "memory" not in progress_line(progress)


def test_before_the_first_step_the_line_says_what_is_waited_for() -> None:
    progress = Progress(sweep_of(), {}, {}, {}, 8, clock=lambda: 5.0, started=0.0)
    assert "workers import and load" in progress_line(progress)
    progress.member_steps = 1
    assert "workers" not in progress_line(progress)


def test_a_signal_is_answered_with_what_is_waited_for_and_how_to_stop_at_once() -> None:
    progress = Progress(sweep_of(), {}, {}, {}, 8, clock=lambda: 5.0, started=0.0)
    assert stop_line(progress) == "stopping: another signal (Ctrl-C) stops at once"
    progress.running = {"a": Report("a", 10, 10, 1.0)}
    assert stop_line(progress).startswith("stopping: 1 pack may write checkpoints for 10 s; another signal")
    output = io.StringIO()
    view = LiveView(Console(file=output, force_terminal=False))
    progress.stopped_by = 2
    view.changed(progress, ())
    view.changed(progress, ())
    assert output.getvalue().count("stopping: ") == 1


def test_while_workers_start_a_terminal_has_something_that_moves_and_a_file_has_a_line() -> None:
    plain, terminal = io.StringIO(), io.StringIO()
    with LiveView(Console(file=plain, force_terminal=False)).starting():
        assert plain.getvalue() == "starting workers ...\n"
    with LiveView(Console(file=terminal, force_terminal=True, width=80, legacy_windows=False)).starting():
        pass
    assert "starting workers ..." in terminal.getvalue()
    assert "\x1b" in terminal.getvalue()
