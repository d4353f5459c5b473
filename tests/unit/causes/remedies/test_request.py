"""`--try` and `--fork`: what can be said, and what is refused with a remedy."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import InputError
from orchestrator.causes.remedies.request import parse_fork_steps, parse_remedies


def names(*texts: str) -> list[str]:
    return [one.name for one in parse_remedies(texts)]


def test_each_value_of_a_field_is_a_remedy_and_each_remedy_is_tried_once() -> None:
    assert names("lr=x0.5,x0.25", "beta2=0.95", "lr=x0.50") == ["lr x0.5", "lr x0.25", "beta2 0.95"]
    assert names("clip=1,none", "skip=1,5") == ["clip 1", "clip none", "skip 1", "skip 5"]
    assert names("reset=moments", "reset=second_moment", "rescale=4") == [
        "reset moments",
        "reset second moment",
        "second moment x4",
    ]


def test_a_value_may_last_and_return_on_a_ramp() -> None:
    assert names("lr=x0.25:50") == ["lr x0.25 for 50"]
    assert names("lr=x0.25:50:20") == ["lr x0.25 for 50, back over 20"]


def test_changes_joined_by_a_plus_are_one_remedy_and_exponents_are_no_plus() -> None:
    assert names("lr=x0.5,x0.25+skip=5") == ["lr x0.5 + skip 5", "lr x0.25 + skip 5"]
    assert names("eps=1e+2") == ["eps 100"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "is not FIELD=VALUE"),
        ("lr=", "is not FIELD=VALUE"),
        ("lr=half", "'half' is not a number"),
        ("lr=nan", "'nan' is not a number"),
        ("lr=x0", "'x0' must be a factor above 0"),
        ("lr=x-1", "'x-1' must be a factor above 0"),
        ("rescale=0", "'0' must be a factor above 0"),
        ("lr=x0.5,lr=x0.25", "has a second = after a comma"),
        ("skip=0", "'0' must be a positive number of batches to skip"),
        ("reset=all", "cannot reset 'all'"),
        ("lr=x0.5:0", "'0' must be a positive number of steps"),
        ("lr=x0.5:5:5:5", "more than a value, a length and a ramp"),
        ("beta2=0.95:5:5", "only a factor has a ramp back"),
    ],
)
def test_what_cannot_be_tried_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InputError, match="--try") as refused:
        parse_remedies([text])
    assert words in str(refused.value)
    assert "remedy:" in str(refused.value)


def test_steps_count_from_the_start_or_from_the_onset() -> None:
    assert parse_fork_steps(["100", "-50", "onset"], 180, 300) == [100, 130, 180]
    assert parse_fork_steps(["0,-180", "-10"], 180, 300) == [0, 170]


@pytest.mark.parametrize(
    ("text", "onset", "words"),
    [
        ("300", 180, "outside the run: its steps are 0 to 299, the onset is at step 180"),
        ("-181", 180, "--fork -180 is its start"),
        ("-5", None, "counts from the onset, and this trial has none"),
        ("onset", None, "counts from the onset"),
        ("soon", 180, "neither a step"),
        ("1.5", 180, "neither a step"),
    ],
)
def test_steps_that_are_not_there_are_refused_in_words(text: str, onset: int | None, words: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_fork_steps([text], onset, 300)
    assert words in str(refused.value)
