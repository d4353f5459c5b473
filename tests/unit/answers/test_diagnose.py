"""The answer of `sweep diagnose`."""

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diagnosis_cases import (
    PLANTED,
    SWEEP,
    bad_batch,
    calm,
    epsilon_floor,
    over_the_threshold,
    planted_sweep,
    preconditioner_decay,
    record_cases,
    sweep_of_text,
)
from sweep_cases import ledger_at, record, sweep_of
from typer.testing import CliRunner

from orchestrator.answers.diagnose import DiagnoseAnswer
from orchestrator.base.errors import InputError
from orchestrator.base.files import LEDGER
from orchestrator.causes.diagnosis import diagnose, rank
from orchestrator.cli import app
from orchestrator.driver.runner import run_sweep
from orchestrator.executors.inline import InlineExecutor
from orchestrator.ledger.reader import LedgerReader
from orchestrator.maps.table import read_table
from orchestrator.render.diagnosis import diagnosis_figure
from orchestrator.render.text import WIDTH
from orchestrator.sweepfile.spec import load_sweep


def invoke(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command where the results of ``folder`` are ``results``; errors count as output."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, InputError):
        return done.exception.exit_code, str(done.exception)
    assert not isinstance(done.exception, Exception), done.exception
    return done.exit_code, done.output


def page_of(case, **options) -> str:
    diagnosis = rank(case.evidence(**options), "sweep", "it was asked for")
    return "\n".join(DiagnoseAnswer.of(diagnosis, Path("nowhere")).lines(WIDTH))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose results hold one sweep, called planted."""
    folder = tmp_path_factory.mktemp("diagnosis")
    planted_sweep(folder / "results" / "planted")
    return folder


# --- which trial ---------------------------------------------------------------------------------


def test_a_cell_may_be_named_by_some_of_its_axes(planted: Path) -> None:
    with LedgerReader(planted / "results" / "planted" / LEDGER) as ledger:
        found = diagnose(read_table(ledger), cell={"warmup": "150", "lr": "3"})
        assert found.trial.cell == {"lr": 3.0, "warmup": 150}
        assert diagnose(read_table(ledger), cell={"warmup": "150"}).trial.trial_id == found.trial.trial_id
        stable = diagnose(read_table(ledger), cell={"lr": "0.01"})
        assert (stable.trial.outcome, stable.cause) == ("stable", None)


# --- which cause ---------------------------------------------------------------------------------


def test_what_a_cause_brings_about_is_told_along_with_it() -> None:
    case = over_the_threshold().reading(attention_logit=5e4, grad_rms_over_eps__norm=1.0)
    found = rank(case.evidence(), "sweep", "it was asked for")
    assert found.cause.mechanism == "over_the_threshold"
    assert [finding.mechanism for finding in found.along] == ["epsilon_floor", "logit_growth"]
    page = page_of(case)
    assert (
        page.index("cause: step over the threshold")
        < page.index("not taken for the cause:")
        < page.index("growth of the")
    )


def test_a_stable_trial_has_no_cause_whatever_was_seen_in_it() -> None:
    page = page_of(calm().reading(attention_logit=5e4))
    assert "no cause: it stayed on its trend" in page
    assert "seen, but not a cause:\n  growth of the logits" in page


# --- the page ------------------------------------------------------------------------------------


def test_the_page_says_what_happened_why_when_and_what_it_was_not() -> None:
    page = page_of(preconditioner_decay())
    assert page.startswith("sweep: lr=0.01 beta2=0.999 seed=0 (0123456789abcdef): spiked, onset at step 250")
    cause, following = page.splitlines()[1:3]
    assert cause.startswith("cause: preconditioner decay, from step ")
    assert following.startswith("next: ")
    assert "evidence:\n  v decayed on its own" in page
    assert re.search(r"^excluded: \d+ other mechanisms; --full says why$", page, re.MULTILINE)
    assert max(map(len, page.splitlines())) <= WIDTH


def test_without_telemetry_the_page_says_that_it_is_not_enough_and_what_would_be() -> None:
    case = replace(over_the_threshold(), sisters=()).without_telemetry()
    page = page_of(case)
    assert "not enough evidence: no mechanism is supported" in page
    assert "telemetry: {curvature: 20}" in " ".join(page.split())
    assert "onset at step 35" in page, "what is there is used"


def test_where_nothing_is_known_the_small_sweep_that_would_tell_is_printed(tmp_path: Path) -> None:
    text = SWEEP.replace("[0.001, 0.01, 3.0]", "[3.0]").replace("[40, 150]", "[40]").replace("[0, 1]", "[0]")
    case = replace(over_the_threshold(), sisters=()).without_telemetry()
    folder = record_cases(tmp_path / "results" / "alone", sweep_of_text(text), [case])
    code, page = invoke(tmp_path, "diagnose", "alone")
    assert (code, folder.name) == (0, "alone")
    built = load_sweep(tmp_path / page.split("this sweep would decide: ")[1].split()[0])
    assert built.telemetry.curvature == 20
    assert [(axis.name, axis.values) for axis in built.axes] == [("lr", (3.0, 0.9, 0.3))]


def test_the_json_says_what_the_page_says() -> None:
    found = rank(bad_batch().evidence(), "sweep", "it was asked for")
    plain = json.loads(json.dumps(DiagnoseAnswer.of(found, Path("nowhere")).to_plain(), allow_nan=False))
    assert (plain["cause"], plain["onset_step"], plain["along"]) == ("bad_batch", 200, [])
    assert [advice["setting"] for advice in plain["advice"]] == ["clip", "batch_size"]
    (bad,) = [one for one in plain["findings"] if one["mechanism"] == "bad_batch"]
    assert bad["began_step"] == 200


# --- the picture ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["preconditioner_decay", "half_precision_overflow", "warmup_too_short"])
def test_every_diagnosis_is_drawn_with_and_without_telemetry(name: str) -> None:
    case = PLANTED[name]()
    for one in (case, replace(case.without_telemetry(), trace={key: case.trace[key] for key in ("step", "loss")})):
        assert len(diagnosis_figure.figure(rank(one.evidence(), "sweep $x", "it was asked for")).axes) in (5, 10)


def test_the_picture_has_five_curves_with_the_onset_and_the_cause_and_a_closer_look() -> None:
    found = rank(preconditioner_decay().evidence(), "sweep", "it was asked for")
    panels = diagnosis_figure.figure(found).axes
    assert len(panels) == 10, "the whole run, and the steps about the onset"
    labels = [panel.get_ylabel().split("\n")[0].rstrip(":") for panel in panels[::2]]
    assert labels == ["loss", "gradient norm", "v-lag: |g|^2 / sum v", "curvature", "effective step"]
    lines = {line.get_label(): line.get_xdata()[0] for line in panels[0].lines}
    assert (lines["onset"], lines["the cause began"]) == (250, found.cause.began_step)
    assert panels[1].get_xlim() == (130, 309)


@pytest.mark.slow
def test_the_same_diagnosis_gives_the_same_bytes() -> None:
    found = rank(epsilon_floor().without_telemetry().evidence(), "cost_$x_{$ \n", "it was asked for")
    assert diagnosis_figure("svg", found) == diagnosis_figure("svg", found)
    assert diagnosis_figure("pdf", found).startswith(b"%PDF")
    with pytest.raises(ValueError, match="png, svg, pdf"):
        diagnosis_figure("gif", found)


# --- the command ---------------------------------------------------------------------------------


def test_the_command_prints_the_page_and_writes_picture_and_json(planted: Path) -> None:
    code, page = invoke(planted, "diagnose", "planted", "--json", "why.json")
    assert code == 0
    assert "cause: step over the threshold from the start" in page
    found = json.loads((planted / "why.json").read_text())
    assert found["cause"] == "over_the_threshold"
    picture = planted / "results" / "planted" / "diagnosis" / f"{found['trial_id']}.png"
    assert f"picture: {picture.relative_to(planted)}" in page
    assert picture.read_bytes().startswith(b"\x89PNG")
    nearest = found["advice"][0]["nearest"]
    assert [nearest[key] for key in ("value", "num_finished", "num_stable")] == [0.01, 2, 2]
    assert nearest["loss"] == pytest.approx(2.59)
    assert invoke(planted, "diagnose", "planted", "--trial", found["trial_id"][:6], "--output", "why.svg")[0] == 0
    assert (planted / "why.svg").read_text().startswith("<?xml")


def test_the_small_sweeps_that_would_tell_are_written_ready_to_run(tmp_path: Path) -> None:
    case = replace(preconditioner_decay(), sisters=())
    norm_N, step_N = case.trace["grad_norm"], case.trace["step"]
    case = case.with_trace(grad_norm=np.where(step_N < 60, 5 * norm_N, norm_N))  # for the beta2 of this sweep
    cases = [case, *[None] * (len(sweep_of_text().trials) - 1)]
    record_cases(tmp_path / "results" / "planted", sweep_of_text(), cases)
    code, page = invoke(tmp_path, "diagnose", "planted")
    assert code == 0
    shown = [Path(line.split("this sweep would: ")[1]) for line in page.splitlines() if line.endswith(".yaml")]
    assert [path.stem.split("_", 1)[1] for path in shown] == ["lower_beta2", "lower_lr", "raise_eps", "lower_eps"]
    sweeps = [load_sweep(tmp_path / path) for path in shown]
    assert all(len(sweep.axes) == 1 for sweep in sweeps)
    assert len({sweep.name for sweep in sweeps}) == len(shown), "none takes the results of another"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "holds no sweep"),
        (["planted", "--trial", "zz"], "no such trial"),
        (["planted", "--cell", "depth=3"], "axes: lr, warmup"),
        (["planted", "--cell", "lr=7"], "values: 0.001, 0.01, 3"),
        (["planted", "--cell", "lr"], "is not AXIS=VALUE"),
        (["planted", "--cell", ""], "is not AXIS=VALUE"),
        (["planted", "--cell", "lr=3", "--trial", "0"], "leave out --cell"),
        (["planted", "--output", "why.doc"], "its ending names no format"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(planted: Path, arguments: Sequence[str], says: str) -> None:
    code, message = invoke(planted, "diagnose", *arguments)
    assert (code, says in message, "remedy:" in message) == (2, True, True), message


def test_a_sweep_without_a_result_or_without_an_unstable_trial_is_told_so(tmp_path: Path) -> None:
    sweep = sweep_of_text(SWEEP.replace("[0.001, 0.01, 3.0]", "[0.01]").replace("[40, 150]", "[40]"))
    record_cases(tmp_path / "results" / "empty", sweep, [None, None])
    record_cases(tmp_path / "results" / "calm", sweep, [calm(), calm()])
    assert "no trial has finished yet" in invoke(tmp_path, "diagnose", "empty")[1]
    code, said = invoke(tmp_path, "diagnose", "calm")
    assert (code, "no trial is unstable" in said) == (0, True)


QUADRATIC = """
name: edge
objective: quadratic
steps: 60
seeds: [0]
axes: {lr: {values: [0.5, 3.0]}}
fixed: {optimizer: sgd, beta1: 0.0}
telemetry: {curvature: 5}
tracking: {enabled: false}
"""


def test_a_real_sweep_over_its_known_edge_is_diagnosed_as_such(tmp_path: Path) -> None:
    run_sweep(sweep_of_text(QUADRATIC), tmp_path / "results" / "edge", InlineExecutor)
    code, page = invoke(tmp_path, "diagnose", "edge")
    assert code == 0
    assert "cause: step over the threshold from the start" in page
    assert "at most 1.5 times it" in " ".join(page.split()), "lr = 3 is over 2 / curvature by half"


def test_a_trial_on_a_tied_axis_is_named_with_what_it_was_trained_with(tmp_path: Path) -> None:
    body = "axes: {lr: {values: [0.1]}}\ntie: {lr: lr / 4, warmup: 5}\n"
    with ledger_at(tmp_path) as ledger:
        record(ledger, sweep_of(body), ["diverged"])
        assert diagnose(read_table(ledger)).headline.startswith("case: lr=0.1 effective_lr=0.025 seed=0 (")
