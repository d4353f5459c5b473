import contextlib
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_cases import BASE, ids, refusal, sweep_of
from tiers import examples

from objectives.base import OBJECTIVES
from orchestrator.base.errors import InputError
from orchestrator.detection.config import StoppingConfig
from orchestrator.sweepfile.overrides import Overrides
from orchestrator.sweepfile.sections import EVENTS, TelemetryConfig
from orchestrator.sweepfile.spec import build_sweep, load_sweep
from orchestrator.sweepfile.strict_yaml import parse_document, read_document

GPT = "name: case\nobjective: gpt\nsteps: 20\n"


# Each with the line, the key, the offending value and the remedy that the message must have.
REFUSED = [
    ("fixed: {beta2: 1.0}", ["case.yaml:4", "fixed.beta2", "1.0", "less than 1"]),
    ("fixed:\n  lr: 0", ["case.yaml:5", "fixed.lr", "0 is refused", "greater than 0"]),
    ("fixed: {lr: -1e-3}", ["fixed.lr", "-0.001"]),
    ("fixed: {lr: .nan}", ["fixed.lr", "nan", "finite"]),
    ("fixed: {lr: -.inf}", ["fixed.lr", "-inf", "finite"]),
    ("fixed: {lr: 1e400}", ["fixed.lr", "inf", "finite"]),
    ("fixed: {lr: '1e-3'}", ["fixed.lr", "'1e-3'", "number"]),
    ("fixed: {lr: true}", ["fixed.lr", "True"]),
    ("fixed: {qk_norm: 1}", ["fixed.qk_norm", "1 is refused"]),
    ("fixed: {batch_size: 2.5}", ["fixed.batch_size", "2.5", "integer"]),
    ("fixed: {warmup: 21}", ["case.yaml:4", "fixed.warmup", "21", "steps = 20"]),
    ("axes: {warmup: {values: [3, 30]}}", ["axes.warmup", "30", "steps = 20"]),
    ("fixed: {width: 33}", ["fixed.width", "33", "heads = 2"]),
    ("fixed: {bta2: 0.9}", ["fixed.bta2", "did you mean `beta2`"]),
    ("fixed: {steps: 3}", ["fixed.steps", "top-level"]),
    ("fixed: {text: [no/such/file.txt]}", ["fixed.text", "no/such/file.txt"]),
    ("fixed: {schedule: cosin}", ["fixed.schedule", "'cosin'", "'cosine'"]),
    ("axis: {}", ["case.yaml:4", "axis", "did you mean `axes`"]),
    ("stopping: {windw: 3}", ["stopping.windw", "did you mean `window`"]),
    ("stopping: {window: 1}", ["stopping.window", "1 is refused"]),
    ("stopping: {audit: 1.5}", ["stopping.audit", "1.5", "less than or equal to 1"]),
    ("stopping: {audit: 5 %}", ["stopping.audit", "'5 %'", "number"]),
    ("stopping: {spike_mass: -1}", ["stopping.spike_mass", "-1", "greater than or equal to 0"]),
    ("stopping: {lost_rise: 0}", ["stopping.lost_rise", "greater than 0"]),
    ("stopping: {gradient_patience: 0}", ["stopping.gradient_patience", "greater than or equal to 1"]),
    ("stopping: {stall_steps: 9}", ["stopping.stall_steps", "greater than or equal to 10"]),
    ("stopping: {stal_steps: 90}", ["stopping.stal_steps", "did you mean `stall_steps`"]),
    ("resources: {pack: few}", ["resources.pack", "'few'", "'auto'"]),
    ("resources: {parallel: 0}", ["resources.parallel", "0 is refused"]),
    ("tracking: {every: 0}", ["tracking.every"]),
    ("tracking: {to: [mlflow, wandbb]}", ["tracking.to", "'wandbb'", "'mlflow'"]),
    ("tracking: {to: [mlflow, mlflow]}", ["tracking.to", "'mlflow' is listed twice"]),
    ("tracking: {to: []}", ["tracking.to"]),
    ("axes: {lr: {}}", ["axes.lr", "no values", "values: [...]"]),
    ("axes: {lr: {values: []}}", ["axes.lr.values", "[]"]),
    ("axes: {lr: {values: [0.1, 1e-1]}}", ["axes.lr", "repeats"]),
    ("axes: {lr: {values: [0.1], num: 3}}", ["axes.lr", "remove num"]),
    ("axes: {lr: {log: [1e-3, 1]}}", ["axes.lr", "num is missing", "num: 7"]),
    ("axes: {lr: {log: [1, 1e-3], num: 3}}", ["axes.lr", "log: [0.001, 1]"]),
    ("axes: {lr: {log: [0, 1], num: 3}}", ["axes.lr", "log axis cannot begin at 0"]),
    ("axes: {lr: {log: [1e-3, 1], linear: [1, 2], num: 3}}", ["axes.lr", "both"]),
    ("axes: {lr: {log: [1e-3, 1, 7]}}", ["axes.lr.log", "2 items"]),
    ("axes: {lr: {logs: [1e-3, 1], num: 7}}", ["axes.lr.logs", "did you mean `log`"]),
    ("axes: {beta2: {log1m: [0.5, 1.0], num: 3}}", ["axes.beta2", "cannot reach 1"]),
    ("axes: {beta2: {linear: [0.5, 1.5], num: 3}}", ["axes.beta2", "1.5", "less than 1"]),
    ("axes: {lr: [1, 2]}", ["axes.lr", "[1, 2]", "{values: [...]}"]),
    ("axes: {seed: {values: [1]}}", ["axes.seed", "unknown field"]),
    ("axes: {lr: {values: [0.1]}}\nfixed: {lr: 0.2}", ["fixed.lr", "also an axis"]),
    ("axes: {lr: {log: [1e-3, 1], num: 3}}\nsample: {method: sobol, num: 4}", ["axes.lr", "remove num"]),
    ("sample: {method: latin, num: 4}", ["sample.method", "'latin'"]),
    ("axes: {lr: {log: [1e-3, 1], num: 200}, eps: {log: [1e-9, 1], num: 200}}", ["axes", "40000", "max_trials"]),
    ("axes: {lr: {log: [1e-3, 1], num: 99999}}", ["axes.lr", "99999", "max_trials"]),
    ("seeds: [0, 1, 0]", ["case.yaml:4", "seeds", "repeats"]),
    ("seeds: [-1]", ["seeds"]),
    ("seeds: []", ["seeds", "[]"]),
    ("seeds: 3", ["seeds", "3 is refused"]),
    ("steps: 30", ["case.yaml:4", "steps", "given twice", "case.yaml:3"]),
    ("fixed: {lr: 1, lr: 2}", ["fixed.lr", "given twice"]),
    ("fixed: &a {lr: 1}", ["case.yaml:4", "anchors"]),
    ("fixed: {lr: !!float 1}", ["case.yaml:4", "tag"]),
    ("fixed: {lr: !!python/object/apply:os.system [ls]}", ["case.yaml:4", "tag"]),
    ("? [a, b]\n: 1", ["case.yaml:4", "must be a word"]),
    ("fixed: [", ["not valid YAML"]),
    ("--- \na: 1", ["not valid YAML"]),
    ("fixed: " + "[" * 30 + "]" * 30, ["nested deeper"]),
    ("fixed: {lr: " + "9" * 5000 + "}", ["fixed.lr"]),
    ("# " + "x" * 300_000, ["larger than"]),
]


@pytest.mark.parametrize(("line", "says"), REFUSED, ids=[line[:40] for line, _ in REFUSED])
def test_what_is_wrong_is_refused_with_place_key_value_and_remedy(line: str, says: list[str]) -> None:
    message = refusal(f"{line}\n", GPT)
    assert "case.yaml" in message
    for words in says:
        assert words in message, message


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", "a b", "x" * 65, "-x", "na\\0me", "'quoted'", "é"])
def test_names_that_are_not_safe_as_folders_are_refused(name: str) -> None:
    assert "name" in refusal(base=f'name: "{name}"\nobjective: gpt\nsteps: 5\n')


def test_all_problems_are_told_at_once() -> None:
    message = refusal("fixed: {lr: 0, beta2: 2, lrr: 3}\naxes: {eps: {}}\n", GPT)
    assert all(key in message for key in ("fixed.lr:", "fixed.beta2", "fixed.lrr", "axes.eps"))


def test_missing_keys_are_named() -> None:
    message = refusal(base="axes: {}\n")
    assert all(f"{key}: is missing" in message for key in ("name", "objective", "steps"))
    assert "did you mean `gpt`" in refusal(base="name: a\nobjective: gtp\nsteps: 3\n")


def test_numbers_mean_what_a_person_means() -> None:
    sweep = sweep_of("axes:\n  lr: {values: [1e-8, 1E3, 1.5e+2, .5, 010]}\n")
    assert [trial.config["lr"] for trial in sweep.trials] == [1e-8, 1e3, 150.0, 0.5, 10.0]


@pytest.mark.parametrize("word", ["null", "~", "none", ""])
def test_null_means_no_clipping_also_inside_an_axis(word: str) -> None:
    assert ids(sweep_of(f"fixed: {{clip: {word}}}\n")) == ids(sweep_of())
    listed = word or "null"
    off, on = sweep_of(f"axes: {{clip: {{values: [{listed}, 1]}}}}\n").trials
    assert (off.cell["clip"], on.cell["clip"]) == (None, 1.0)
    assert ("clip" in off.config, on.config["clip"]) == (False, 1.0)


# Each key with a value that is not its default.
OTHER_STOPPING = {
    "early_stop": "false", "window": "40", "min_history": "10", "spike_sigma": "5.0", "spike_rise": "0.7",
    "spike_steps": "3", "spike_mass": "5.0", "recovery_steps": "4", "lost_fraction": "0.4", "lost_rise": "9.0",
    "patience": "60", "gradient_patience": "2", "stall_drop": "0.1", "stall_steps": "900",
    "slow": "{method: median}",
}  # fmt: skip


def test_a_trial_that_is_judged_otherwise_is_another_trial_but_one_that_is_audited_is_the_same() -> None:
    beside_validate = {"validation_patience"}
    assert {*OTHER_STOPPING, *beside_validate, "audit"} == set(StoppingConfig.model_fields)
    found = [tuple(ids(sweep_of(f"stopping: {{{key}: {value}}}\n"))) for key, value in OTHER_STOPPING.items()]
    assert len({*found, tuple(ids(sweep_of()))}) == len(OTHER_STOPPING) + 1
    validate = f"{GPT}validate: {{every: 5}}\n"
    patient = f"{validate}stopping: {{validation_patience: 3}}\n"
    assert ids(build_sweep(parse_document(patient, "a"))) != ids(build_sweep(parse_document(validate, "a")))
    for share in (0, 0.05, 1.0):
        assert ids(sweep_of(f"stopping: {{audit: {share}}}\n")) == ids(sweep_of())


def test_null_is_the_same_trial_as_the_value_that_it_stands_for() -> None:
    rise = OBJECTIVES["quadratic"].spike_rise
    for body in (
        "{spike_rise: null}",
        f"{{spike_rise: {rise}}}",
        "{gradient_patience: null}",
        "{gradient_patience: 1}",
    ):
        assert ids(sweep_of(f"stopping: {body}\n")) == ids(sweep_of()), body


def test_a_grid_is_every_combination_of_axes_and_seeds() -> None:
    sweep = sweep_of("seeds: [5, 6]\naxes:\n  lr: {values: [0.1, 0.2, 0.3]}\n  eps: {log: [1e-8, 1e-6], num: 3}\n")
    assert len(sweep.trials) == len(set(ids(sweep))) == 18
    assert sweep.trials[0].config["eps"] == 1e-8
    assert {trial.seed for trial in sweep.trials} == {5, 6}


def test_integer_fields_get_integers_on_every_scale() -> None:
    sweep = sweep_of("axes: {warmup: {log: [1, 20], num: 6}}\n")
    values = [trial.config["warmup"] for trial in sweep.trials]
    assert values == sorted(set(values))
    assert all(isinstance(value, int) for value in values)
    assert (values[0], values[-1]) == (1, 20)


SWEEPS = {
    "grid": "axes:\n  lr: {log: [1e-4, 3.0], num: 7}\n  beta2: {log1m: [0.3, 0.99999], num: 5}\n",
    "fixed": "fixed: {lr: 1.0e-17, eps: 3e-300}\nseeds: [0, 9]\n",
    "values": "axes: {clip: {values: [null, 0.1]}, optimizer: {values: [sgd, adamw]}}\n",
    "sampled": "axes: {lr: {log: [1e-4, 1]}, beta1: {linear: [0, 0.9]}}\nsample: {method: sobol, num: 9}\n",
    "stopping": "stopping: {patience: 3, spike_sigma: 1e1, audit: 0.05, spike_mass: 0}\n",
    "others": "tracking: {enabled: false}\nresources: {pack: 2}\n",
}


@pytest.mark.parametrize("body", SWEEPS.values(), ids=SWEEPS.keys())
def test_the_frozen_file_is_the_same_sweep(body: str) -> None:
    sweep = sweep_of(body)
    again = build_sweep(parse_document(sweep.text, "frozen.yaml"))
    assert ids(again) == ids(sweep)
    assert (again.resources, again.tracking, again.stopping) == (sweep.resources, sweep.tracking, sweep.stopping)
    assert again.text == sweep.text


@pytest.mark.parametrize(
    ("overrides", "body"),
    [
        (Overrides(axes=["lr=log:1e-4,1e-1,4"]), "axes: {lr: {log: [1e-4, 1e-1], num: 4}}"),
        (Overrides(axes=["clip=values:none,1,0.3"]), "axes: {clip: {values: [null, 1, 0.3]}}"),
        (Overrides(axes=["beta2=log1m:0.5,0.9999,3"]), "axes: {beta2: {log1m: [0.5, 0.9999], num: 3}}"),
        (Overrides(axes=["warmup=linear:0,20,3"]), "axes: {warmup: {linear: [0, 20], num: 3}}"),
        (Overrides(sets=["fixed.batch_size=16"]), "fixed: {batch_size: 16}"),
        (Overrides(sets=["stopping.patience=9"]), "stopping: {patience: 9}"),
        (Overrides(sets=["fixed={lr: 0.5, clip: 1}"]), "fixed: {lr: 0.5, clip: 1}"),
        (Overrides(seeds="4, 2"), "seeds: [4, 2]"),
    ],
)
def test_the_command_line_says_the_same_as_the_file(overrides: Overrides, body: str) -> None:
    from_options = build_sweep(parse_document(BASE, "case.yaml"), overrides)
    assert ids(from_options) == ids(sweep_of(body + "\n"))


def test_an_axis_from_the_command_line_replaces_a_fixed_value_and_the_other_way_round() -> None:
    fixed, axis = "fixed: {lr: 0.5}\n", "axes: {lr: {values: [0.1, 0.2]}}\n"
    swept = build_sweep(parse_document(BASE + fixed, "f"), Overrides(axes=["lr=values:0.1,0.2"]))
    held = build_sweep(parse_document(BASE + axis, "f"), Overrides(sets=["fixed.lr=0.5"], drops=["lr"]))
    assert (ids(swept), ids(held)) == (ids(sweep_of(axis)), ids(sweep_of(fixed)))


def test_an_axis_is_not_lost_to_a_fixed_value_and_both_ways_that_are_named_work() -> None:
    text = BASE + "axes: {lr: {values: [0.1, 0.2]}, clip: {log: [0.1, 1], num: 2}, beta1: {values: [0.5]}}\n"
    for field, value in (("lr", "0.1"), ("clip", "null")):
        message = refusal(text, "", Overrides(sets=[f"fixed.{field}={value}"]))
        assert message.startswith(f"--set fixed.{field}={value}: fixed.{field}: {field} is an axis of the sweep")
        one, without = f"--axis {field}=values:{value}", f"--drop {field} --set fixed.{field}={value}"
        assert f"`{one}`" in message
        assert f"`{without}`" in message
    one = build_sweep(parse_document(text, "f"), Overrides(axes=["clip=values:null"]))
    without = build_sweep(parse_document(text, "f"), Overrides(drops=["clip"], sets=["fixed.clip=null"]))
    assert (one.axis_names, without.axis_names) == (["lr", "clip", "beta1"], ["lr", "beta1"])
    assert ids(one) == ids(without)
    assert build_sweep(parse_document(text, "f"), Overrides(sets=["fixed.eps=1e-5"])).fixed == {"eps": 1e-5}


def test_a_list_for_an_axis_is_said_in_a_way_that_works(tmp_path: Path) -> None:
    text = GPT + f"axes: {{text: {{values: [[], [{tmp_path}]]}}}}\n"
    message = refusal(text, "", Overrides(sets=[f"fixed.text=[{tmp_path}]"]))
    said = f"axes.text={{values: [[{tmp_path}]]}}"
    assert f"`--set '{said}'`" in message
    one = build_sweep(parse_document(text, "f"), Overrides(sets=[said]))
    assert [trial.cell for trial in one.trials] == [{"text": (str(tmp_path),)}]


def test_only_an_axis_can_be_dropped() -> None:
    message = refusal("axes: {lr: {values: [1]}, eps: {values: [1]}}\n", overrides=Overrides(drops=["lrr"]))
    assert message.startswith("--drop lrr: axes.lrr: is not an axis")
    assert "axes: lr, eps" in message
    assert "axes: none" in refusal(overrides=Overrides(drops=["lr"]))


@pytest.mark.parametrize(
    "overrides",
    [
        Overrides(axes=["lr=log:0,1,3"]),
        Overrides(axes=["lr=log:1,2,3,4"]),
        Overrides(axes=["lr"]),
        Overrides(sets=["fixed.eps=abc"]),
        Overrides(axes=["lr=values:0.1,-1"]),
        Overrides(sets=["fixed.=3"]),
        Overrides(sets=["stopping={window: 1}"]),
        Overrides(seeds="a"),
        Overrides(seeds="0,x"),
        Overrides(steps=0),
        Overrides(name="../up"),
    ],
)
def test_errors_of_options_name_the_option(overrides: Overrides) -> None:
    # The file says the same keys, in which nothing is wrong.
    text = BASE + "seeds: [0, 1]\naxes: {lr: {log: [0.1, 1], num: 2}}\nfixed: {beta2: 0.5}\nstopping: {window: 30}\n"
    message = refusal(text, "", overrides)
    assert message.startswith("--") or "\n--" in message
    assert "case.yaml" not in message


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    for name, says in (("missing.yaml", "no such file"), ("binary.yaml", "not UTF-8"), (".", "cannot be read")):
        with pytest.raises(InputError, match=says):
            load_sweep(tmp_path / name)


def test_a_number_in_place_of_a_section_is_refused_with_the_keys_of_the_section() -> None:
    with pytest.raises(InputError) as refused:
        sweep_of("keep: 20\n")
    (problem,) = refused.value.problems
    assert (problem.key, problem.remedy) == ("keep", "its keys: every, last, disk_mib")
    assert "Config" not in problem.message


WORDS = st.sampled_from(
    ["name: a", "objective: gpt", "steps: 3", "axes:", " lr:", "  log:", "  num: 3", "[1e-3, 1]", "fixed:", "{", "}",
     "seeds: [1]", "- 1", "&x", "*x", "!!str", "null", ".nan", "\t", "'", '"', "\x00", "é", "sample:", "<<:", "?", ":"]
)  # fmt: skip


@settings(max_examples=examples(300))
@given(st.one_of(st.binary(max_size=200), st.lists(WORDS, max_size=20).map(lambda words: "\n".join(words).encode())))
def test_any_file_is_a_sweep_or_is_refused_kindly(tmp_path_factory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert build_sweep(read_document(path)).trials


def test_log1m_is_even_in_the_distance_to_one() -> None:
    sweep = sweep_of("axes: {beta2: {log1m: [0.5, 0.9999], num: 7}}\n")
    values = [trial.config["beta2"] for trial in sweep.trials]
    assert (values[0], values[-1]) == (0.5, 0.9999)
    steps = [math.log(1 - low) - math.log(1 - high) for low, high in pairwise(values)]
    assert max(steps) - min(steps) < 1e-6


def test_telemetry_takes_the_time_that_its_page_says() -> None:
    assert TelemetryConfig(every=None).time_factor(native=True) == 1
    # docs/diagnosis.md: 4 or 5 % for the default, and what the curvature every so many steps costs.
    assert TelemetryConfig().time_factor(native=False) == pytest.approx(1.04)
    for curvature, native, default in ((50, 1.18, 1.26), (100, 1.10, 1.15), (20, 1.41, 1.59)):
        telemetry = TelemetryConfig(curvature=curvature)
        assert telemetry.time_factor(native=True) == pytest.approx(native, abs=0.03)
        assert telemetry.time_factor(native=False) == pytest.approx(default, abs=0.01)
    forwards = TelemetryConfig(curvature=20, by="forwards")
    assert forwards.time_factor(native=False) == pytest.approx(1.145)


def test_all_events_are_told_by_default_and_the_section_is_no_part_of_a_trial() -> None:
    sweep = sweep_of("notify: {url_from: NOTIFY_URL}\n")
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
    told = refusal(overrides=Overrides(sets=(f"notify={written}",))) if is_option else refusal(f"notify: {written}\n")
    assert "pa55" not in told
    assert "example" not in told
    assert "remedy: " in told
    assert all(line.startswith(("case.yaml:4: notify", "--set notify", "    remedy: ")) for line in told.splitlines())


@pytest.mark.parametrize("key", ["notify.url_from", "notify.url", "notify", "notify.on"])
def test_a_url_on_the_command_line_is_refused_and_not_repeated(key: str) -> None:
    told = refusal("notify: {url_from: A}\n", overrides=Overrides(sets=(f"{key}=slack://{SECRET}",)))
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


@pytest.mark.parametrize("uri", ["https://me:pa55@host/path", "postgresql://me:p@a55@host:5432/db"])
def test_a_password_in_a_tracking_uri_is_refused_without_being_repeated(uri: str) -> None:
    with pytest.raises(InputError, match=r"(?s)tracking\.uri: has a password.*MLFLOW_TRACKING_PASSWORD") as error:
        sweep_of(f"axes: {{lr: {{values: [0.1]}}}}\ntracking: {{uri: '{uri}'}}\n")
    assert "a55" not in str(error.value)
    sweep_of("axes: {lr: {values: [0.1]}}\ntracking: {uri: 'https://me@host:80/path'}\n")
