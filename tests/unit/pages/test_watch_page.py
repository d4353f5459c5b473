"""The page of a run that `sweep watch` follows."""

import re
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from sweep_cases import learning

from orchestrator.api.watching import Clock, WatchOptions, watch
from orchestrator.pages.loopback import address_of, listening_socket
from orchestrator.pages.watch_page import WatchedRun, WatchPage, thinned


def read(address: str) -> str:
    with urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def run_of(loss_N: np.ndarray, **others) -> WatchedRun:
    return WatchedRun(("step 9  loss 2.5",), (), np.arange(len(loss_N)), {"loss": loss_N}, **others)


def test_a_page_opened_while_the_watch_follows_has_what_came_since(tmp_path) -> None:
    losses, log, seen = learning(1000, changes=[(600, 630, 2.0)]), tmp_path / "train.log", []
    rows = [f"step {step} loss {loss:.4f} grad_norm 1.0 lr 3e-4\n" for step, loss in enumerate(losses)]
    log.write_text("".join(rows[:500]))
    time, rest, said = 0.0, [rows[500:700], rows[700:900], rows[900:]], []

    def sleep(seconds: float) -> None:
        nonlocal time
        time += 10.0
        seen.append(read(said[0].removeprefix("page at ") + "now"))
        if not rest:
            raise KeyboardInterrupt
        with open(log, "a") as file:
            file.writelines(rest.pop(0))

    for line in watch(str(log), WatchOptions(page=True), Clock(lambda: time, sleep)):
        said.append(line)
    assert [re.search(r"step ([\d,]+)", page)[1] for page in seen] == ["499", "699", "899", "999"]
    assert "<rect" not in seen[0]
    assert all(name in seen[-1] for name in ("<h2>loss", "<h2>gradient norm", "<h2>learning rate", "spike: the loss"))
    assert seen[-1].count("<rect") == 3  # the episode in each curve
    with pytest.raises(OSError, match="refused"):
        read(said[0].removeprefix("page at "))


def test_nobody_reads_it_without_its_random_address_and_names_are_escaped() -> None:
    listener = listening_socket(None)
    with WatchPage(listener, "<b>run.log") as page:
        page.show(lambda: run_of(np.ones(3)), at_once=True)
        whole = read(address_of(listener))
        assert "&lt;b&gt;run.log" in whole
        assert "<b>run.log" not in whole
        with pytest.raises(HTTPError, match="403"):
            read(address_of(listener).replace(listener.token, "guess"))
        with pytest.raises(HTTPError, match="404"):
            read(address_of(listener) + "other")


def test_nothing_is_drawn_for_a_page_that_nobody_has_open() -> None:
    with WatchPage(listening_socket(None), "run.log") as page:
        page.show(lambda: pytest.fail("it was drawn"))


def test_a_long_curve_keeps_its_lowest_and_highest_values() -> None:
    loss_N = learning(100_000)
    loss_N[70_001] = 50.0
    step_B, value_B = thinned(np.arange(100_000), loss_N)
    assert len(value_B) <= 1200
    assert (value_B.min(), value_B.max()) == (loss_N.min(), 50.0)
    assert (np.diff(step_B) >= 0).all()


@pytest.mark.parametrize("values", [[], [np.nan], [np.inf, np.nan], [0.0], [2.0, 2.0], [-1.0, 1e30]])
def test_odd_curves_are_drawn_without_a_fault(values: list[float]) -> None:
    with WatchPage(listening_socket(None), "run.log") as page:
        page.show(lambda: run_of(np.array(values), spans=[(0, None)]), at_once=True)
        _, text = page.answer("/now")
        assert "nan" not in text
        assert ("no finite value" in text) == (not np.isfinite(values).any())
