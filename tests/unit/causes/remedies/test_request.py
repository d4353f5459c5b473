"""`--try` and `--fork`: what can be said, and what is refused with a remedy."""

import pytest
from remedy_cases import CLIP, LOWER, SKIP

from orchestrator.base.errors import InputError
from orchestrator.causes.remedies.remedy import BATCH, NO_CHANGE, Fork, Remedy, distinct, fork_of
from orchestrator.causes.remedies.request import parse_fork_steps, parse_remedies
from orchestrator.causes.remedies.snippets import snippet_of


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


def test_a_value_with_two_names_is_one_remedy_named_by_the_number() -> None:
    config = {"eps": 100.0, "lr": 0.02, "clip": None}

    def kept(*texts: str, own: tuple = ()) -> list[str]:
        return [remedy.name for remedy in distinct(parse_remedies(texts), config, own)]

    assert kept("eps=x1e-4,0.01,x100") == ["eps 0.01", "eps x100"]
    assert kept("lr=0.002,x0.1", "lr=x0.1+skip=5") == ["lr 0.002", "lr x0.1 + skip 5"]
    assert kept("lr=x0.5:50,0.01:50,0.01") == ["lr 0.01 for 50", "lr 0.01"]
    assert kept("lr=x0.25:50:20", "lr=0.005") == ["lr x0.25 for 50, back over 20", "lr 0.005"]
    changed = ({"at": 5, "set": {"lr": "x0.5"}},)
    assert kept("lr=x0.5,0.01", "eps=x1e-4,0.01", own=changed) == ["lr x0.5", "lr 0.01", "eps 0.01"]
    assert kept("clip=x0.5,1") == ["clip x0.5", "clip 1"], "a factor of no number is refused elsewhere"


def test_a_value_may_last_and_return_on_a_ramp() -> None:
    assert names("lr=x0.25:50") == ["lr x0.25 for 50"]
    assert names("lr=x0.25:50:20") == ["lr x0.25 for 50, back over 20"]


def test_what_is_held_is_a_remedy_for_a_while_or_for_good() -> None:
    assert names("freeze=mlp,deep:50", "mlp.norm=hold", "norm=hold") == [
        "freeze mlp", "freeze deep for 50", "mlp.norm hold", "all.norm hold",
    ]  # fmt: skip
    assert names("optimizer=sgd_like:9", "attention=capped", "precision=float64+lr=x0.5", "data=same:1") == [
        "optimizer sgd_like for 9", "attention capped", "precision float64 + lr x0.5", "data same for 1",
    ]  # fmt: skip
    assert names("mlp.weight_decay=0+clip=1", "weight_decay=0") == ["mlp.weight_decay 0 + clip 1", "weight_decay 0"]
    with pytest.raises(InputError, match="no ramp back"):
        parse_remedies(["freeze=mlp:50:20"])


@pytest.mark.parametrize("text", ["lr=x0.5:20", "data=same:3", "freeze=mlp:9", "optimizer=sgd_like+precision=float64"])
def test_other_data_outlast_what_a_remedy_does_for_a_while(text: str) -> None:
    (remedy,) = parse_remedies([text])
    entries = Fork(remedy, 40, 3).interventions()
    assert [entry.get("lasts") for entry in entries if entry.get("data") == 3] == [None]
    assert fork_of(entries) == Fork(remedy, 40, 3)


@pytest.mark.parametrize("text", ["freeze=mlp+lr=x0.5", "precision=float64", "data=same:2+skip=1"])
def test_what_plain_torch_does_not_have_in_a_line_has_no_snippet(text: str) -> None:
    (remedy,) = parse_remedies([text])
    assert snippet_of(remedy, 10) is None


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


FOR_A_TIME = Remedy(({"at": 0, "set": {"lr": "x0.25"}}, {"at": 50, "set": {"lr": "x4"}, "over": 20}))
NAMES = {
    NO_CHANGE: Remedy(),
    "lr x0.5": LOWER,
    "skip 5": SKIP,
    "clip 0.3": CLIP,
    "clip none": Remedy(({"at": 0, "set": {"clip": None}},)),
    "eps x0.0001": Remedy(({"at": 0, "set": {"eps": "x1e-4"}},)),
    "eps 1e-6": Remedy(({"at": 0, "set": {"eps": 1e-6}},)),
    "lr x0.25 for 50": Remedy(({"at": 0, "set": {"lr": "x0.25"}, "lasts": 50},)),
    "lr x0.25 for 50, back over 20": FOR_A_TIME,
    "reset second moment": Remedy(({"at": 0, "reset": "second_moment"},)),
    "second moment x4": Remedy(({"at": 0, "rescale": 4.0},)),
    "lr x0.5 + skip 5": Remedy((*LOWER.entries, *SKIP.entries)),
}
OWN = [{"at": 30, "set": {"lr": "x0.5"}}, {"at": 120, "skip": 1}]


@pytest.mark.parametrize("name", NAMES)
def test_a_remedy_is_named_by_what_it_changes(name: str) -> None:
    assert NAMES[name].name == name


@pytest.mark.parametrize("remedy", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize("replicate", [0, 2])
@pytest.mark.parametrize("own", [[], OWN], ids=["alone", "beside its own"])
def test_interventions_give_back_the_fork_that_made_them(remedy: Remedy, replicate: int, own: list) -> None:
    fork = Fork(remedy, 30, replicate)
    found = fork_of(fork.interventions(own), own)
    assert found == (fork if remedy.entries or replicate else None)


def test_a_fork_keeps_the_trials_own_interventions_even_those_that_it_repeats() -> None:
    made = Fork(LOWER, 30, 0).interventions(OWN)
    assert made == [*OWN, {"at": 30, "set": {"lr": "x0.5"}}]
    assert fork_of(made, OWN) == Fork(LOWER, 30, 0)


def test_replicates_differ_from_the_fork_on_and_in_data_alone() -> None:
    zero, two = (Fork(FOR_A_TIME, 30, k).interventions() for k in (0, 2))
    assert two == [{**zero[0], "data": 2}, zero[1]]
    assert Fork(Remedy(), 30, 2).interventions() == [{"at": 30, "data": 2}]


def test_two_remedies_go_together_unless_they_change_the_same() -> None:
    pair = LOWER.combined_with(SKIP)
    assert pair is not None
    assert pair.name == "lr x0.5 + skip 5"
    assert LOWER.combined_with(FOR_A_TIME) is None


def test_a_remedy_amounts_to_moves_of_advice() -> None:
    config = {"lr": 0.01, "clip": None, "eps": 1e-8, "beta2": 0.99}
    assert LOWER.moves(config) == {("lr", "lower"), ("warmup", "raise")}
    assert FOR_A_TIME.moves(config) == {("lr", "lower"), ("warmup", "raise")}, "it returns, which raises nothing"
    assert SKIP.moves(config) == {(BATCH, "lower")}
    assert CLIP.moves(config) == {("clip", "lower")}, "no clipping is above all thresholds"
    assert Remedy(({"at": 0, "set": {"eps": 1e-6}},)).moves(config) == {("eps", "raise")}
    assert Remedy(({"at": 0, "set": {"beta2": 0.99}},)).moves(config) == set(), "it is 0.99 already"


def test_a_return_to_a_mean_is_a_remedy_that_needs_steps_before_it() -> None:
    remedies = parse_remedies(["mean=5", "mean=4:20", "mean=3+reset=moments"])
    assert [one.name for one in remedies] == [
        "mean of 5 states 10 apart", "mean of 4 states 20 apart", "mean of 3 states 10 apart + reset moments",
    ]  # fmt: skip
    assert [(one.reach, one.kind) for one in remedies] == [(40, "mean"), (60, "mean"), (20, "other")]
    assert snippet_of(remedies[0], 100).startswith("if step in range(60, 100 + 1, 10):")
    assert fork_of(Fork(remedies[1], 100, 2).interventions()) == Fork(remedies[1], 100, 2)
    with pytest.raises(InputError, match="states or steps"):
        parse_remedies(["mean=x2"])
