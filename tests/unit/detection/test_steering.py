"""A Watch with rules: what it returns, what it does to a loop, and how a run goes on after a stop."""

import json
import logging
import math
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from watch_cases import MakeTrial, sweeps_trial

from objectives.control import Rule
from orchestrator.base.errors import InputError
from orchestrator.detection.policies import policy_of
from orchestrator.detection.rows import read_rows
from orchestrator.detection.watch import TrainingLost, Watch
from orchestrator.worker.points import TrialFolder
from orchestrator.worker.recorded import recorded_firings, recorded_points

trial = sweeps_trial

HALVE: Mapping[str, Any] = {"on": "grad_norm", "above": 2, "every": 1, "do": {"lr": "x0.5"}, "at_most": 4}
ESCALATE = [{**HALVE, "do": [{"skip": 1}, {"lr": "x0.5"}, {"back": 10}], "cool_down": 2, "calm": 60}]
BACK = [{"on": "not_finite", "above": 0, "every": 1, "do": {"back": 10}, "at_most": 2}]


class Loop:
    """A regression by SGD whose batch is poisoned at some steps, and which follows a watch."""

    def __init__(self, watch: Watch, lr: float = 0.05, poisoned: Mapping[int, float] = {}) -> None:
        torch.manual_seed(0)
        self.watch, self.poisoned = watch, poisoned
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.draw = torch.Generator().manual_seed(1)

    def run(self, steps: range) -> Iterator[tuple[Any, list[float]]]:
        """Yield the action of each step, and the weights after it."""
        for step in steps:
            x = torch.randn(16, 4, generator=self.draw) * self.poisoned.get(step, 1.0)
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.get_total_norm([weight.grad for weight in self.model.parameters()])
            action = self.watch.report(step, loss, norm)
            if action:
                yield action, self.weights
                return
            self.watch.apply(self.optimizer, action)
            self.optimizer.step()
            self.scheduler.step()
            yield action, self.weights

    @property
    def weights(self) -> list[float]:
        return torch.cat([weight.detach().flatten() for weight in self.model.parameters()]).tolist()


def kinds(loop: Loop, num_steps: int) -> dict[int, str]:
    return {action.step: action.kind for action, _ in loop.run(range(num_steps)) if action.kind != "none"}


def test_without_rules_a_report_is_true_where_the_run_is_lost() -> None:
    watch = Watch()
    assert not watch.report(0, 1.0)
    action = watch.report(1, math.inf)
    assert action
    assert (action.kind, action.reason) == ("stop", "the loss is not finite")
    assert watch.fired == []


def test_a_skipped_batch_leaves_no_trace_in_the_weights() -> None:
    loop = Loop(Watch(control=[{**HALVE, "do": {"skip": 1}, "above": 20}]), poisoned={30: 100.0})
    states = dict(enumerate(weights for _, weights in loop.run(range(40))))
    assert states[30] == states[29] != states[31]
    plain = list(Loop(Watch(), poisoned={30: 100.0}).run(range(40)))
    assert plain[30][1] != plain[29][1] == states[29]


def test_a_list_of_changes_is_an_escalation_that_begins_anew_after_a_calm() -> None:
    watch, model = Watch(control=ESCALATE), torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch.keep(model, optimizer)
    found = {}
    for step in range(130):
        action = watch.report(step, 1.0, 9.0 if step in (30, 35, 40, 120) else 1.0)
        watch.apply(optimizer, action)
        found[step] = action.kind
    assert {step: kind for step, kind in found.items() if kind != "none"} == {
        30: "skip", 35: "change", 40: "rollback", 120: "skip",
    }  # fmt: skip


def test_a_run_goes_back_to_a_snapshot_and_its_broken_batch_counts_for_nothing() -> None:
    loop = Loop(Watch(control=BACK), poisoned={30: math.nan})
    loop.watch.keep(loop.model, loop.optimizer, loop.scheduler)
    seen = dict(enumerate(loop.run(range(60))))
    assert (seen[30][0].kind, seen[30][0].rollback_to) == ("rollback", 20)
    assert seen[30][1] == seen[19][1]  # before the update of step 20
    assert loop.watch.fired[0]["did"] == {"at": 30, "back": 10}
    assert loop.watch.verdict().outcome == "stable"
    lost = Loop(Watch(), poisoned={30: math.nan})
    assert kinds(lost, 60) == {30: "stop"}


def test_a_rule_may_stop_the_run() -> None:
    rules = [{**HALVE, "do": {"stop": True}}]
    assert kinds(Loop(Watch(control=rules), poisoned={30: 50.0}), 60) == {30: "stop"}
    with pytest.raises(TrainingLost, match=r"a rule ends it: stop at 30 \(grad_norm"):
        kinds(Loop(Watch(control=rules, raises=True), poisoned={30: 50.0}), 60)


def test_firings_are_logged_with_a_hint_if_nothing_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(control=[HALVE])
    with caplog.at_level(logging.WARNING, "orchestrator.detection.steering"):
        for step in range(12):
            watch.report(step, 1.0, 9.0 if step == 10 else 1.0)
    assert [record.message for record in caplog.records] == [
        "step 10: lr x0.5 at 10 (grad_norm 9 > 2 at step 10)",
        "no watch.apply(optimizer, action) was called: the loop must follow the action itself",
    ]


def test_a_checkpoint_of_a_watch_goes_on_as_if_it_had_not_stopped() -> None:
    poisoned = {30: 50.0, 44: 50.0, 60: 50.0}
    whole = Loop(Watch(control=[HALVE]), poisoned=poisoned)
    wanted = list(whole.run(range(90)))
    first, second = Loop(Watch(control=[HALVE]), poisoned=poisoned), Loop(Watch(control=[HALVE]), poisoned=poisoned)
    list(first.run(range(45)))
    second.watch.load_state_dict(pickle.loads(pickle.dumps(first.watch.state_dict())))
    second.model.load_state_dict(first.model.state_dict())
    second.draw = first.draw
    assert list(second.run(range(45, 90))) == wanted[45:]
    assert second.watch.fired == whole.watch.fired
    assert second.watch.verdict() == whole.watch.verdict()


def test_rows_of_a_trial_have_what_fired_and_a_later_attempt_goes_on(trial: MakeTrial) -> None:
    losses = [1.0] * 40
    norms = [1.0] * 10 + [9.0] + [1.0] * 9 + [9.0] + [1.0] * 19
    path = trial(control=[{**HALVE, "do": [{"skip": 2}, {"lr": "x0.5"}]}])
    watch = Watch(control=[{"on": "step", "above": 0, "do": {"stop": True}}])  # the sweep's rules replace it
    wanted = [watch.report(step, losses[step], norms[step]) for step in range(40)]
    rows = read_rows(path)
    assert [(row["step"], row["fired"][0]["did"]) for row in rows if "fired" in row] == [
        (10, {"at": 10, "skip": 2}), (20, {"at": 20, "set": {"lr": "x0.5"}}),
    ]  # fmt: skip
    assert [row["step"] for row in rows if row.get("rolled_back")] == [10, 11]

    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:15]))
    again = Watch()
    assert [again.report(step, losses[step], norms[step]) for step in range(8, 40)] == wanted[8:]
    assert again.fired == watch.fired
    assert read_rows(path) == rows


def test_a_metric_named_fired_of_the_script_is_not_what_rules_did(trial: MakeTrial) -> None:
    path = trial(control=[HALVE])
    watch = Watch()
    for step, norm in enumerate([1.0] * 10 + [9.0, 1.0]):
        watch.report(step, 1.0, norm, fired=1.0)
    again = Watch()
    assert len(again.fired) == len(watch.fired) == 1
    folder = TrialFolder(path.parent)
    assert [firing["did"]["at"] for firing in recorded_firings(folder)] == [10]
    assert [point.others.get("fired") for point in recorded_points(folder)] == [1.0] * 10 + [None, 1.0]


def test_an_empty_policy_of_a_sweep_switches_the_rules_of_the_script_off(trial: MakeTrial) -> None:
    rules = [{"on": "step", "above": 0, "every": 1, "do": {"stop": True}}]
    trial(control=[])
    assert not [step for step in range(5) if Watch(control=rules).report(step, 1.0)]


def test_the_script_s_own_rules_act_in_a_sweep_without_the_key(trial: MakeTrial) -> None:
    path = trial()
    watch = Watch(control=[{"on": "step", "above": 1, "every": 1, "do": {"skip": 1}}])
    assert [watch.report(step, 1.0).kind for step in range(4)] == ["none", "none", "skip", "none"]
    assert len([row for row in read_rows(path) if "fired" in row]) == 1


def test_a_watch_with_rules_can_be_sent_to_another_process() -> None:
    loop = Loop(Watch(control=[{**HALVE, "at_most": 1}]), poisoned={30: 50.0})
    list(loop.run(range(40)))
    again = pickle.loads(pickle.dumps(loop.watch))
    assert again.fired == loop.watch.fired
    assert again.report(40, 1.0, 1.0).factor == 0.5


def test_a_rule_on_telemetry_asks_for_it_and_reads_it() -> None:
    rules = [{"on": "curvature", "above": 0, "every": 5, "do": {"lr": "x0.5"}, "after": 6}]
    watch = Watch(control=rules)
    with pytest.raises(ValueError, match=r"a rule reads curvature: call watch\.telemetry"):
        watch.report(0, 1.0)
    loop = Loop(watch)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(2))
    watch.telemetry(loop.model, loop.optimizer, lambda: loop.model(x).square().mean(), every=5, curvature=5)
    list(loop.run(range(20)))
    (fired,) = watch.fired
    assert (fired["step"], fired["on"]) == (6, "curvature")
    assert fired["value"] > 0


def test_a_policy_is_a_rule_a_list_a_mapping_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("control:\n  - {on: grad_norm, above: 2, every: 1, do: {lr: x0.5}, at_most: 4}\nname: other\n")
    given: list[Any] = [HALVE, [HALVE], {"control": [HALVE]}, file, str(file), [Rule.model_validate(HALVE)]]
    norms = [1.0] * 10 + [5.0]
    for control in given:
        policy = policy_of(control)
        for step, norm in enumerate(norms):
            policy.take(step, 1.0, norm)
        assert policy.action(10).factor == 0.5


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ({"rules": []}, "Watch: control: is missing"),
        ([3], "entry 1, 3, is refused: not a mapping"),
        (3, "3 is refused: not a list of rules"),
        ({"control": "skip"}, "'skip' is refused: not a list of rules"),
        ([{**HALVE, "reading": 2}], "entry 1 has no key reading\n    remedy: did you mean `readings`?"),
        ([{**HALVE, "above": -1}], "entry 1, above is refused: input should be greater than or equal to 0"),
        ([HALVE, {**HALVE, "do": {"beta2": 0.5}}], "control rule 2, change 1: it cannot set beta2"),
        ("none.yaml", "none.yaml: no such file"),
    ],
)
def test_what_is_no_policy_is_refused_with_a_remedy(control: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        Watch(control=control)
    assert words in str(refused.value)
    assert "remedy: " in str(refused.value)
