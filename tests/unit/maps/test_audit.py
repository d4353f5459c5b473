import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_cases import trial_row

from orchestrator import cli
from orchestrator.answers.audit import AuditAnswer
from orchestrator.base.files import LEDGER
from orchestrator.base.trial_result import TrialResult
from orchestrator.detection.run_monitor import is_audited
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.audit import Audit, audit
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.spec import load_sweep


def audit_lines(balance: Audit) -> list[str]:
    return AuditAnswer("", balance).lines()


# --- the numbers ---------------------------------------------------------------------------------


def row(outcome: str | None, steps_done: int | None = 100, verdict: int | None = None, audited: int = 0) -> TrialResult:
    """A row of a ledger whose trials have 100 steps."""
    return trial_row(outcome=outcome, steps=100, steps_done=steps_done, verdict_step=verdict, is_audited=bool(audited))


TABLE = [
    row("stable"),
    row("spiked", audited=1),  # chosen, and never lost: nothing to judge
    row("diverged", 40, 39),  # stopped: saved 60
    row("diverged", 75, 74),  # stopped: saved 25
    row("diverged", 100, 29, audited=1),  # rightly taken for lost: trained 70 more
    row("spiked", 100, 49, audited=1),  # wrongly: trained 50 more
    row("stalled", 100, 19, audited=1),  # no progress, and rightly so: trained 80 more
    row("diverged"),  # far at its end, without a verdict before
    row(None, None),
    row(None, 30, audited=1),
]


def test_the_balance_of_a_small_table_is_what_one_counts_by_hand() -> None:
    found = audit(TABLE, 10.0)
    assert (found.num_finished, found.num_stopped) == (8, 2)
    assert (found.num_judged, found.num_wrong) == (3, 1)
    assert found.wrong == (TABLE[5],)
    assert found.wrong_rate == pytest.approx(1 / 3)
    assert found.steps_planned == 800
    assert (found.steps_saved, found.steps_audited, found.net_steps_saved) == (85, 200, -115)
    assert found.seconds_saved == pytest.approx(-11.5)


def test_the_order_of_the_rows_changes_nothing_and_unfinished_ones_do_not_count() -> None:
    assert audit(TABLE[::-1], 10.0) == audit(TABLE, 10.0) == audit(TABLE[:-2], 10.0)


def test_without_a_measured_speed_there_are_no_seconds() -> None:
    assert audit(TABLE, None).seconds_saved is None
    assert " s " not in audit_lines(audit(TABLE, None))[-1]


def wilson(num_wrong: int, num: int) -> tuple[float, float]:
    rows = [row("spiked" if i < num_wrong else "diverged", 100, 10, audited=1) for i in range(num)]
    interval = audit(rows, None).wrong_interval
    assert interval is not None
    return interval


@pytest.mark.parametrize(
    ("num_wrong", "num", "low", "high"),
    # With z = 1.959964: (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    [
        (1, 10, 0.0179, 0.4042),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (0, 1, 0.0, 0.7935),
        (5, 100, 0.0215, 0.1118),
    ],
)
def test_the_interval_is_that_of_wilson(num_wrong: int, num: int, low: float, high: float) -> None:
    assert wilson(num_wrong, num) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 40).flatmap(lambda num: st.tuples(st.integers(0, num), st.just(num))))
def test_the_interval_holds_the_rate_and_mirrors_the_other_way_round(case: tuple[int, int]) -> None:
    num_wrong, num = case
    low, high = wilson(num_wrong, num)
    assert 0 <= low <= num_wrong / num <= high <= 1
    assert wilson(num - num_wrong, num) == pytest.approx((1 - high, 1 - low))


def test_nothing_judged_says_so_and_why() -> None:
    plain = [r for r in TABLE[:4] if not r.is_audited]
    nothing = audit(plain, None)
    assert (nothing.num_judged, nothing.wrong_rate, nothing.wrong_interval) == (0, None, None)
    with_chosen = audit([*plain, row("stable", audited=1)], None)
    without, chosen = ("\n".join(audit_lines(balance)) for balance in (nothing, with_chosen))
    for text in (without, chosen):
        assert "none was trained on" in text
        assert "wrong" not in text
    assert "none was chosen (stopping.audit)" in without
    assert "none of the chosen trials was lost" in chosen


def test_an_empty_sweep_has_a_balance_too() -> None:
    empty = audit([], None)
    assert empty == Audit(0, 0, 0, 0, (), None, None, 0, 0, 0, 0, None)
    assert "0 of 0" in audit_lines(empty)[0]


def test_the_lines_say_the_numbers() -> None:
    lines = audit_lines(audit(TABLE, 10.0))
    assert [line.split(":")[0] for line in lines] == ["stopped", "audited", "wrong", "balance", "  seed=0"]
    assert "2 of 8 finished trials" in lines[0]
    assert "85 of 800 member-steps (11%)" in lines[0]
    assert "3 trials" in lines[1]
    assert "200 member-steps" in lines[1]
    assert "1 recovered: 33% (95 % interval 6% to 79%)" in lines[2]
    assert "-115 member-steps" in lines[3]
    assert "12 s of one worker lost" in lines[3]


# --- a real sweep --------------------------------------------------------------------------------

# Beyond the edge of 2 a constant learning rate is lost; a falling one blows up first and comes back when it has
# fallen below 2, after the verdict; 1e200 is not finite at once.
SWEEP = """
name: plain
objective: quadratic
steps: 120
seeds: [0, 1, 2, 3, 4, 5]
axes:
  lr: {values: [0.5, 2.4, 1e200]}
  schedule: {values: [constant, cosine]}
fixed: {optimizer: sgd, beta1: 0.0}
stopping: {patience: 10, min_history: 10, window: 10}
tracking: {enabled: false}
"""
TIMES = ("started_at", "finished_at", "pack_id", "num_attempts", "is_audited", "peak_memory")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep without audit, with half of it audited, and without early stopping."""
    folder = tmp_path_factory.mktemp("audited")
    (folder / "sweep.yaml").write_text(SWEEP)
    for name, key in (("plain", "audit=0"), ("audited", "audit=0.5"), ("to_the_end", "early_stop=false")):
        sweep = load_sweep(folder / "sweep.yaml", Overrides(name=name, sets=(f"stopping.{key}",)))
        assert run_sweep(sweep, folder / "results" / name, InlineExecutor).exit_code == 0
    return folder


def command(folder: Path, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["sweep", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return int(ended.value.code or 0)


@pytest.fixture
def say(results: Path, capsys) -> Callable[..., str]:
    """What a command prints in the folder of the sweeps."""

    def call(*arguments: str) -> str:
        assert command(results, *arguments) == 0
        return capsys.readouterr().out

    return call


def rows_of(results: Path, name: str) -> dict[str, TrialResult]:
    with LedgerReader(results / "results" / name / LEDGER) as ledger:
        return {r.trial_id: r for r in ledger.trials()}


def curve(results: Path, name: str, trial_id: str) -> dict[str, list]:
    with LedgerReader(results / "results" / name / LEDGER) as ledger:
        return {column: values.tolist() for column, values in ledger.trace(trial_id).items()}


def training(found: TrialResult) -> dict:
    """A row without the times and what else differs between two runs of a trial."""
    return {name: value for name, value in asdict(found).items() if name not in TIMES}


def test_the_audited_are_those_that_the_hash_chooses_and_trials_keep_their_ids(results: Path) -> None:
    plain, audited = rows_of(results, "plain"), rows_of(results, "audited")
    assert list(plain) == list(audited)
    assert not any(r.is_audited for r in plain.values())
    chosen = {trial_id for trial_id, r in audited.items() if r.is_audited}
    assert chosen == {trial_id for trial_id in audited if is_audited(trial_id, 0.5)}
    assert 0 < len(chosen) < len(audited)


def test_trials_that_are_not_audited_or_not_lost_are_the_same_to_the_last_bit(results: Path) -> None:
    plain, audited = rows_of(results, "plain"), rows_of(results, "audited")
    num_stopped = 0
    for trial_id, r in audited.items():
        if not r.is_audited or plain[trial_id].verdict_step is None:
            assert training(r) == training(plain[trial_id])
            assert curve(results, "audited", trial_id) == curve(results, "plain", trial_id)
            num_stopped += r.steps_done < r.steps
    assert num_stopped


def test_audited_lost_trials_train_to_their_end_and_are_judged_there(results: Path) -> None:
    plain, audited = rows_of(results, "plain"), rows_of(results, "audited")
    # Another setting is another trial: these are found again by their place.
    to_the_end = {(*r.cell.values(), r.seed): r for r in rows_of(results, "to_the_end").values()}
    outcomes = []
    for trial_id, r in audited.items():
        before = plain[trial_id]
        if not r.is_audited or before.verdict_step is None or r.cell["lr"] == 1e200:
            continue
        assert r.verdict_step == before.verdict_step == before.steps_done - 1
        assert r.steps_done == r.steps == 120
        unstopped = to_the_end[(*r.cell.values(), r.seed)]
        for name in ("outcome", "final_loss", "best_loss", "validation_loss", "onset_step", "num_spikes", "reason"):
            assert getattr(r, name) == getattr(unstopped, name), name
        assert curve(results, "audited", trial_id) == curve(results, "to_the_end", unstopped.trial_id)
        beginning = {name: values[: before.steps_done] for name, values in curve(results, "audited", trial_id).items()}
        assert beginning == curve(results, "plain", trial_id)
        outcomes.append((r.cell["schedule"], r.outcome))
    assert set(outcomes) == {("constant", "diverged"), ("cosine", "spiked")}
    assert {r.outcome for r in plain.values() if r.cell["lr"] == 2.4} == {"diverged"}


def test_what_is_not_finite_is_stopped_whether_it_is_audited_or_not(results: Path) -> None:
    plain, audited = rows_of(results, "plain"), rows_of(results, "audited")
    broken = {trial_id: r for trial_id, r in audited.items() if r.cell["lr"] == 1e200}
    assert {r.is_audited for r in broken.values()} == {0, 1}
    for trial_id, r in broken.items():
        assert training(r) == training(plain[trial_id])
        assert (r.outcome, r.steps_done) == ("diverged", r.verdict_step + 1)
        assert r.steps_done < 10


def test_the_command_says_what_the_ledger_says(results: Path, say) -> None:
    rows = rows_of(results, "audited").values()
    stopped = [r for r in rows if r.steps_done < 120]
    saved = sum(120 - r.steps_done for r in stopped)
    wrong = [r for r in rows if r.is_audited and r.verdict_step is not None and r.outcome == "spiked"]
    text = say("audit", "audited")
    assert f"{len(stopped)} of 36 finished trials" in text
    assert f"saved {saved:,} of 4,320 member-steps" in text
    assert f"wrong:    {len(wrong)} recovered" in text
    listed = re.findall(r"lr=(\S+) schedule=(\w+) seed=(\d+): lost at step (\d+), ended (\w+)", text)
    assert sorted(listed) == sorted(("2.4", "cosine", str(r.seed), str(r.verdict_step), "spiked") for r in wrong)
    assert wrong


def test_trials_that_were_stopped_all_the_same_were_not_trained_on(results: Path, say) -> None:
    rows = rows_of(results, "audited").values()
    trained_on = [r for r in rows if r.is_audited and (r.verdict_step or 999) < r.steps_done - 1]
    text = say("audit", "audited")
    assert f"audited:  {len(trained_on)} trials trained on after their verdict" in text


def test_a_sweep_without_audit_says_that_none_was_audited(say) -> None:
    text = say("audit", "plain")
    assert "none was trained on after its verdict" in text
    assert "none was chosen (stopping.audit)" in text
    assert say("audit", "results/plain") == text


def test_changing_the_audit_trains_nothing_and_changes_no_trial(without_files: None, results: Path, say) -> None:
    before = rows_of(results, "plain")
    text = say("run", "sweep.yaml", "--set", "stopping.audit=1", "--executor", "inline")
    assert "nothing to train" in text
    assert rows_of(results, "plain") == before
    assert "none was trained on" in say("audit", "plain")
    say("run", "sweep.yaml", "--executor", "inline")
