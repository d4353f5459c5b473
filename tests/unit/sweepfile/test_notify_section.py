"""`notify` names a variable; a URL that stands there instead is refused and never repeated."""

from __future__ import annotations

import pytest
from sweep_cases import BASE, sweep_of

from orchestrator.base.errors import InputError
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.sections import EVENTS
from orchestrator.sweepfile.spec import build_sweep
from orchestrator.sweepfile.strict_yaml import parse_document


def refusal(body: str, *sets: str) -> str:
    with pytest.raises(InputError) as refused:
        build_sweep(parse_document(BASE + body, "case.yaml"), Overrides(sets=sets))
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    return str(refused.value)


def test_all_events_are_told_by_default_and_the_section_is_no_part_of_a_trial() -> None:
    sweep = sweep_of("notify: {url_from: NOTIFY_URL}\n")
    assert sweep.notify is not None
    assert (sweep.notify.url_from, sweep.notify.on) == ("NOTIFY_URL", [*EVENTS])
    assert sweep.notify_place == "case.yaml:4"
    assert [trial.trial_id for trial in sweep.trials] == [trial.trial_id for trial in sweep_of().trials]
    assert sweep_of().notify is None


def test_the_frozen_file_has_the_name_of_the_variable() -> None:
    sweep = sweep_of("notify: {url_from: NOTIFY_URL, on: [failed]}\n")
    again = build_sweep(parse_document(sweep.text, "frozen.yaml"))
    assert again.notify == sweep.notify


def test_messages_are_left_out_on_the_command_line() -> None:
    document = parse_document(f"{BASE}notify: {{url_from: NOTIFY_URL}}\n", "case.yaml")
    assert build_sweep(document, Overrides(sets=("notify=null",))).notify is None


SECRET = "user:pa55@host.example/token"
# With a remedy that says where a URL belongs, or which keys and events there are.
URLS = {
    "a URL for the name": f"{{url_from: 'slack://{SECRET}'}}",
    "a mail address": "{url_from: 'mailto:user:pa55@host.example'}",
    "another key": f"{{url: 'slack://{SECRET}'}}",
    "another key beside the name": f"{{url_from: A, url: 'slack://{SECRET}'}}",
    "no mapping": f"slack://{SECRET}",
    "a list": f"['slack://{SECRET}']",
    "a list for the name": f"{{url_from: ['slack://{SECRET}']}}",
    "a key": f"{{'slack://{SECRET}': 1}}",
    "a key without a value": f"{{slack://{SECRET}}}",
    "an event": f"{{url_from: A, on: ['slack://{SECRET}']}}",
    "the events": f"{{url_from: A, on: 'slack://{SECRET}'}}",
}


@pytest.mark.parametrize("written", URLS.values(), ids=URLS.keys())
@pytest.mark.parametrize("is_option", [False, True], ids=["file", "option"])
def test_a_url_in_the_section_is_refused_and_not_repeated(written: str, is_option: bool) -> None:
    told = refusal("", f"notify={written}") if is_option else refusal(f"notify: {written}\n")
    assert "pa55" not in told
    assert "example" not in told
    assert "remedy: " in told
    assert all(line.startswith(("case.yaml:4: notify", "--set notify", "    remedy: ")) for line in told.splitlines())


@pytest.mark.parametrize("key", ["notify.url_from", "notify.url", "notify", "notify.on"])
def test_a_url_on_the_command_line_is_refused_and_not_repeated(key: str) -> None:
    told = refusal("notify: {url_from: A}\n", f"{key}=slack://{SECRET}")
    assert "pa55" not in told
    assert "example" not in told
    assert f"--set {key}: {key}: " in told


def test_a_url_for_the_name_is_told_where_it_belongs() -> None:
    assert refusal(f"notify: {{url_from: 'slack://{SECRET}'}}\n") == (
        "case.yaml:4: notify.url_from: is not the name of an environment variable\n"
        "    remedy: put the URL into an environment variable, and write notify: {url_from: ITS_NAME}"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{url_from: A, on: [finised]}", ["notify.on", "'finised'", "'finished', 'failed', 'stalled' or 'diverged'"]),
        ("{url_from: A, on: [failed, failed]}", ["notify.on", "'failed' is listed twice"]),
        ("{url_from: A, on: []}", ["notify.on"]),
        ("{on: [failed]}", ["notify.url_from: is missing", "environment variable"]),
        ("{url_from: 3}", ["notify.url_from: is not the name of an environment variable"]),
        ("{url_from: ''}", ["notify.url_from: is not the name of an environment variable"]),
        ("{url_from: $A}", ["notify.url_from: is not the name of an environment variable"]),
        ("{url_form: A}", ["notify.url_form: unknown key", "known keys: url_from, on"]),
        ("3", ["notify: is not a mapping"]),
    ],
)
def test_other_mistakes_are_told_with_what_is_allowed(body: str, words: list[str]) -> None:
    told = refusal(f"notify: {body}\n")
    assert [word for word in words if word not in told] == []
