"""`sweep watch` under a clock that waits for nobody: what it says, sends and ends with, while a log grows."""

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_cases import event_file, scalar
from sweep_cases import learning, ledger_at, record, sweep_of

from orchestrator.api import watching
from orchestrator.api.watching import Clock, WatchOptions, kinds_of, watch
from orchestrator.base.errors import EXIT_ALARM, EXIT_INTERRUPTED, EXIT_OK, InputError
from orchestrator.base.files import FROZEN_SWEEP, REMEDY_TABLE
from orchestrator.mirrors.notifier import Message, NotDelivered

SPIKE = [(600, 630, 2.0)]


def lines(losses: np.ndarray, first: int = 0) -> str:
    text = "step {} loss {:.4f} grad_norm 1.0 lr 3e-4 gpu_mem_gb 61.5\n"
    return "".join(text.format(first + i, loss) for i, loss in enumerate(losses))


class World:
    """A log that grows by one of ``parts`` each time that the watch waits, by ``every`` seconds."""

    def __init__(self, path: Path, parts: list[str | Callable[[], None]], wait_s: float = 10.0) -> None:
        self.path, self.parts, self.time, self.wait_s = path, list(parts), 0.0, wait_s

    def sleep(self, seconds: float) -> None:
        self.time += self.wait_s
        if not self.parts:
            raise KeyboardInterrupt
        part = self.parts.pop(0)
        if callable(part):
            part()
        else:
            with open(self.path, "a") as file:
                file.write(part)


class Watched:
    """What a watch said and ended with, its JSON lines, and the messages that it sent."""

    def __init__(self, said: list[str], code: int, rows: list[dict[str, Any]], sent: list[Message]) -> None:
        self.said, self.code, self.rows, self.sent = said, code, rows, sent

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["type"] == kind]

    @property
    def alarms(self) -> list[tuple[str, int | None]]:
        return [(row["kind"], row["step"]) for row in self.of("alarm")]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch) -> Callable[..., Watched]:
    sent: list[Message] = []
    monkeypatch.setattr(watching, "service_named", lambda name, option: sent.append)

    def run(parts: list[Any], before: str = "", wait_s: float = 10.0, **options: Any) -> Watched:
        path = tmp_path / "train.log"
        path.write_text(before)
        world = World(path, parts, wait_s)
        rows = tmp_path / "rows.jsonl"
        answer = watch(str(path), WatchOptions(json_file=rows, **options), Clock(lambda: world.time, world.sleep))
        said = []
        try:
            while True:
                said.append(next(answer))
        except StopIteration as ended:
            return Watched(said, ended.value, [json.loads(row) for row in rows.read_text().splitlines()], sent)

    return run


def in_parts(losses: np.ndarray, size: int = 50) -> list[str]:
    return [lines(losses[start : start + size], start) for start in range(0, len(losses), size)]


def test_a_run_is_reported_each_minute_with_its_rate_and_the_time_left(watched) -> None:
    found = watched(in_parts(learning(1000)), steps=1000, every_s=60.0)
    assert found.code == EXIT_OK
    report = found.of("report")[2]
    assert (report["step"], report["steps"], report["lr"], report["grad_norm"]) == (599, 1000, 3e-4, 1.0)
    assert report["steps_per_s"] == pytest.approx(5.0)
    assert report["seconds_left"] == pytest.approx(401 / 5)
    assert report["gpu_memory"] == "61.5 (gpu_mem_gb)"
    assert (report["num_episodes"], report["share_not_finite"], report["lost_step"]) == (0, 0.0, None)
    (ended,) = found.of("end")
    assert (ended["why"], ended["outcome"]) == ("the run is complete", "stable")
    assert len(found.of("report")) == 5


@pytest.mark.parametrize("first", [0, 9, 10])
def test_a_run_that_logs_each_tenth_step_is_complete_after_its_last_line(watched, first: int) -> None:
    rows = [f"step {step} loss 3.0\n" for step in range(first, 2000 + (first > 0), 10)]
    found = watched(["".join(rows[:100]), "".join(rows[100:]), *[""] * 100], steps=2000)
    assert (found.code, found.of("end")[0]["why"], found.alarms) == (EXIT_OK, "the run is complete", [])


def test_a_run_whose_log_was_rotated_before_the_watch_is_complete_after_its_last_line(watched) -> None:
    before, after = lines(learning(1000)[400:700], 400), lines(learning(1000)[700:], 700)
    found = watched([after, *[""] * 20], before=before, steps=1000, every_s=20.0)
    assert (found.code, found.of("end")[0]["why"]) == (EXIT_OK, "the run is complete")


def test_a_last_line_that_may_come_is_waited_for(watched) -> None:
    text = "".join(f"step {step} loss 3.0\n" for step in range(0, 2000, 500))
    found = watched([text, *[""] * 3, "step 2000 loss 3.0\n", *[""] * 100], steps=2000, every_s=60.0)
    assert (found.code, found.of("report")[-1]["step"]) == (EXIT_OK, 2000)


def test_one_spike_is_one_alarm_and_one_message(watched) -> None:
    found = watched(in_parts(learning(1000, changes=SPIKE)), notify="URL", steps=1000)
    assert found.alarms == [("spike", 600)]
    (message,) = found.sent
    assert (message.title.split(": ")[-1], message.kind) == ("spike", "warning")
    assert message.body.startswith("the loss left its trend at step 600: up to ")
    assert found.of("end")[0]["episodes"] == [[600, 630]]


def test_a_run_that_is_restarted_before_its_spike_sends_no_second_message(watched) -> None:
    losses = learning(1000, changes=SPIKE)
    parts = [*in_parts(losses[:800]), lines(losses[550:700], 550), lines(losses[700:], 700)]
    found = watched(parts, notify="URL", steps=1000)
    assert (found.alarms, len(found.sent)) == ([("spike", 600)], 1)
    assert any("goes back to step 550" in line for line in found.said)
    assert found.of("end")[0]["episodes"] == [[600, 630]]


def test_what_another_process_prints_again_is_no_way_back(watched) -> None:
    rows = [lines(np.array([loss]), step) * 2 for step, loss in enumerate(learning(300))]
    found = watched(["".join(rows[2:150]), "".join(rows[150:])], "".join(rows[:2]), steps=300)
    assert not [line for line in found.said if "goes back" in line or "begins again" in line]


def test_what_is_over_before_the_watch_is_no_alarm_and_alarms_within_a_minute_are_one_message(watched) -> None:
    losses = learning(2000, changes=[(600, 630, 2.0), (1600, 1610, 2.0)])
    losses[1750:] = math.nan
    found = watched(in_parts(losses)[20:], lines(losses[:1000]), notify="URL", steps=2000, wait_s=5.0)
    assert found.alarms == [("spike", 1600), ("nan", 1750), ("lost", 1750)]
    assert [message.title.split(": ")[-1] for message in found.sent] == ["spike", "nan and lost"]
    assert [message.kind for message in found.sent] == ["warning", "failure"]


def test_a_message_that_does_not_arrive_is_said_while_the_watch_goes_on(watched, monkeypatch) -> None:
    refused = threading.Event()

    def deliver(message: Message) -> None:
        refused.set()
        raise NotDelivered("the service answered with HTTP status 403")

    monkeypatch.setattr(watching, "service_named", lambda name, option: deliver)
    parts = in_parts(learning(1000, changes=SPIKE))
    parts.insert(14, lambda: refused.wait(10) and time.sleep(0.05))
    said = watched(parts, notify="URL", steps=1000).said
    warning = "warning: --notify: a message did not arrive: the service answered with HTTP status 403"
    assert said.count(warning) == 1
    reports = [i for i, line in enumerate(said) if "steps/s" in line]
    assert said.index(warning) < reports[-1]
    assert "warning: --notify: 1 of 1 messages did not arrive" in said[-3] + said[-2] + said[-4]


def test_kinds_that_are_not_wanted_are_said_but_not_sent(watched) -> None:
    found = watched(in_parts(learning(1000, changes=SPIKE)), notify="URL", on=("lost",), steps=1000)
    assert (found.alarms, found.sent) == ([("spike", 600)], [])


def test_a_lost_run_ends_the_watch_with_exit_code_5_and_one_line(watched) -> None:
    losses = learning(2000, changes=[(1000, 2000, 9.0)])
    found = watched(in_parts(losses), exit_on=("lost",), notify="URL")
    assert found.code == EXIT_ALARM == 5
    assert found.alarms[-1][0] == "lost"
    assert [line for line in found.said if line.startswith("ended")] == [found.said[-2]]
    assert found.said[-2].startswith("ended (--exit-on lost): diverged from step 1,000")
    assert found.sent[-1].kind == "failure"


def test_a_log_that_stands_still_is_an_alarm_and_ctrl_c_ends_the_watch_with_what_is_known(watched) -> None:
    found = watched([lines(learning(100)), *[""] * 70])
    assert found.alarms == [("stalled", 99)]
    assert found.code == EXIT_INTERRUPTED
    assert found.of("end")[0]["why"] == "interrupted"


def test_the_last_step_of_an_event_file_is_judged_soon_after_its_run_has_died(watched, tmp_path: Path) -> None:
    content = event_file(*(scalar(step, "loss", 2.5 if step < 299 else math.nan) for step in range(300)))
    found = watched([lambda: (tmp_path / "train.log").write_bytes(content), *[""] * 3])
    assert found.alarms == [("nan", 299), ("lost", 299)]


def test_a_log_without_losses_says_why(watched) -> None:
    found = watched(["nothing here\n", "epoch 3 accuracy 0.5\n"])
    assert any("no losses so far" in line for line in found.said)
    assert found.of("report")[0]["step"] is None


def test_nothing_acts_while_it_is_in_question_which_losses_count(watched) -> None:
    losses = learning(300)
    losses[200:] = math.nan
    text = "".join(f"[{i}] loss {loss:.4f}\npass {i}: loss {loss + 1:.4f}\n" for i, loss in enumerate(losses))
    found = watched([text], exit_on=("lost",), command="exit 1")
    assert found.code == EXIT_INTERRUPTED
    assert ("lost", 200) in found.alarms
    assert [line for line in found.said if line.startswith("caution")] == [
        "caution: two kinds of lines have a loss, 'loss' in 300 and 'pass/loss' in 300; until --loss NAME says which "
        "counts, no --run and no --exit-on acts"
    ]


def test_columns_that_may_all_be_the_loss_are_named(watched) -> None:
    found = watched(["".join(f"step {i} a_loss 3.0 b_loss 2.0\n" for i in range(40))], every_s=10.0)
    assert found.said[-2].endswith("no losses so far: several may be the loss: a_loss, b_loss; say --loss NAME")


def test_the_settings_of_the_detector_count(watched) -> None:
    from orchestrator.answers.replay import stopping_of

    calm = stopping_of(["stopping.spike_rise=9", "stopping.spike_sigma=1000"])
    found = watched(in_parts(learning(1000, changes=SPIKE)), steps=1000, stopping=calm)
    assert found.alarms == []


@pytest.mark.parametrize("text", ["spikes", "lost,nam"])
def test_an_unknown_kind_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InputError, match=r"--exit-on .* is not a kind of alarm\n.*spike, lost, warning, stalled, nan"):
        kinds_of(text, "--exit-on")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A sweep over the learning rate and a width, unstable above 0.5, with remedies of its unstable cells."""
    folder = tmp_path / "results" / "lr_width"
    sweep = sweep_of(
        "axes: {lr: {log: [1e-3, 1], num: 4}, dimension: {values: [8, 16, 32]}}\n",
        "name: lr_width\nobjective: quadratic\nsteps: 20\nfixed: {optimizer: sgd}\n",
    )
    labels = ["diverged" if trial.cell["lr"] > 0.5 else "stable" for trial in sweep.trials]
    with ledger_at(folder) as ledger:
        record(ledger, sweep, labels)
    (folder / FROZEN_SWEEP).write_text(sweep.text)
    rows = ["lr,outcome,cheapest,from_onset,final_loss,alone_loss"]
    rows += [
        "1,diverged,lr x0.5,-50,2.0,9.0",
        "1,diverged,lr x0.5,-10,2.0,9.0",
        "1,spiked,skip 5,0,2.5,2.2",
        "1,diverged,,,,",
    ]
    (folder / REMEDY_TABLE).write_text("\n".join(rows))
    return tmp_path / "results"


def test_a_run_is_placed_on_the_map_and_an_alarm_says_what_saved_such_runs(watched, results: Path) -> None:
    losses = learning(1000, changes=SPIKE)
    found = watched(
        in_parts(losses)[1:], lines(losses[:50]), beside="lr_width", settings=("dimension=16", "lr=0.01"),
        results=results, steps=1000,
    )  # fmt: skip
    place = found.of("place")[0]
    assert (place["of"], place["answer"]["side"]) == ("locate", "stable")
    assert place["answer"]["setting"] == {"lr": 0.01, "dimension": 16}
    (up,) = [each for each in place["answer"]["margins"] if each["axis"] == "lr" and each["is_upwards"]]
    assert (up["last_stable"], up["first_not_stable"]) == (pytest.approx(0.1), pytest.approx(1))
    assert up["edge"] == pytest.approx(100)
    (alarm,) = found.of("alarm")
    assert "a remedy saves 3 of 4 unstable cells of lr_width" in alarm["more"]
    best = "most often lr x0.5 (2 cells), from a median of 30 steps before the onset"
    assert f"{best}: go back to a checkpoint of step 570 or before" in alarm["more"]


def test_the_checkpoint_of_a_lost_run_is_before_its_onset_and_not_before_the_verdict(watched, results: Path) -> None:
    losses = learning(2000, changes=[(1000, 2000, 9.0)])
    alone = watched(in_parts(losses), exit_on=("lost",)).of("alarm")[-1]
    assert (alone["kind"], alone["more"][-1].split(", then ")[0]) == (
        "lost", "do: go back to a checkpoint of step 950 or before"
    )  # fmt: skip
    beside = watched(in_parts(losses), exit_on=("lost",), beside="lr_width", results=results).of("alarm")[-1]
    assert (beside["kind"], beside["step"] > 1000) == ("lost", True)
    assert [line for line in beside["more"] if line.endswith(": go back to a checkpoint of step 970 or before")]


def test_the_rate_in_the_log_places_the_run_and_a_missing_setting_is_named(watched, results: Path) -> None:
    before = lines(learning(50)).replace("3e-4", "0.01")
    found = watched([], before, beside="lr_width", settings=("dimension=8",), results=results)
    assert found.of("place")[0]["lines"][0] == "lr_width: lr=0.01 dimension=8"
    found = watched([], before, beside="lr_width", results=results)
    place = found.of("place")[-1]
    assert place["lines"][0].endswith("--set does not give dimension")
    assert (place["of"], place["answer"]) == (None, None)


def test_before_the_log_has_a_rate_the_edge_of_the_row_is_said(watched, results: Path) -> None:
    place = watched([], beside="lr_width", settings=("dimension=8",), results=results).of("place")[0]
    assert (place["of"], place["answer"]["along"]) == ("boundary", "lr")
    ((edge,),) = [row["edges"] for row in place["answer"]["rows"]]
    assert (edge["stable"], edge["not_stable"]) == (pytest.approx(0.1), pytest.approx(1))


def test_a_size_beyond_the_map_has_a_predicted_edge(watched, results: Path) -> None:
    place = watched([], beside="lr_width", settings=("dimension=64",), results=results).of("place")[0]
    assert place["of"] == "predict"
    assert place["answer"]["target"] == {"dimension": 64}


def test_a_misspelt_setting_of_the_run_gets_the_right_name(watched, results: Path) -> None:
    place = watched([], beside="lr_width", settings=("dimensoin=8",), results=results).of("place")[0]
    assert place["lines"][1] == "  remedy: did you mean `dimension`?"


def test_a_run_is_placed_again_when_its_warmup_is_over(watched, results: Path) -> None:
    rates = [0.1 * min(1.0, (step + 1) / 300) for step in range(600)]
    rows = [f"step {step} loss 3.0 lr {rate}\n" for step, rate in enumerate(rates)]
    parts = ["".join(rows[start : start + 50]) for start in range(0, 600, 50)]
    found = watched(parts, beside="lr_width", settings=("dimension=16",), results=results, steps=600)
    first, settled = found.of("place")
    assert (first["of"], settled["of"]) == ("boundary", "locate")
    assert settled["answer"]["setting"] == {"lr": pytest.approx(0.1), "dimension": 16}


def test_the_keys_of_its_json_lines_are_documented(watched, results: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
    section = page.partition("\n## watch\n")[2].partition("\n## ")[0]
    found = watched(in_parts(learning(1000, changes=SPIKE)), steps=1000, beside="lr_width", results=results)
    assert {row["type"] for row in found.rows} == {"place", "alarm", "report", "end"}
    forms = ("`{}`", "`{}[]`", "`{}.*`")
    assert not [key for row in found.rows for key in row if not any(form.format(key) in section for form in forms)]


def test_an_unknown_sweep_is_refused(watched, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no sweep"):
        watched([], beside="nowhere", results=tmp_path)
