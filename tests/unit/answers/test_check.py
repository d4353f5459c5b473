"""What `check` says of a trial in its first line, by what was read when it ended or was ended."""

from dataclasses import replace

import pytest
from sweep_cases import sweep_of

from orchestrator.answers.check import CheckAnswer

ANSWER = CheckAnswer(
    sweep="mine",
    error=None,
    note="no line with a name and a number",
    question=None,
    elapsed_s=60.2,
    has_ended=False,
    is_silent=False,
    points=[],
    also={},
    facts={},
    file=sweep_of("axes: {lr: {log: [1e-3, 10], num: 5}}\n"),
    seen=[],
    has_score=False,
)


@pytest.mark.parametrize(
    ("is_silent", "kind", "begins"), [(True, "silent", "no output yet in 60 s"), (False, "none", "no loss in 60 s")]
)
def test_a_trial_that_may_still_import_or_compile_may_be_given_more_time(
    is_silent: bool, kind: str, begins: str
) -> None:
    answer = replace(ANSWER, is_silent=is_silent)
    assert (answer.kind, answer.exit_code) == (kind, 3)
    assert answer.sentence.startswith(begins)
    assert "it may still import or compile; `--timeout 305` waits longer" in answer.sentence
    assert ("under metrics" in answer.sentence) == (not is_silent), "the lines are blamed if there are any"


def test_a_trial_that_has_ended_without_a_loss_is_not_given_more_time() -> None:
    assert "--timeout" not in replace(ANSWER, has_ended=True).sentence
