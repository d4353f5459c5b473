from orchestrator.base.words import (
    columns,
    count,
    counts_line,
    format_seconds,
    joined,
    listed,
    plural,
    shortened,
    wrapped,
)


def test_numbers_agree_with_their_nouns() -> None:
    assert [count(num, "cell") for num in (0, 1, 2, 2048)] == ["0 cells", "1 cell", "2 cells", "2,048 cells"]
    assert count(2, "instability", "instabilities") == "2 instabilities"
    assert (plural(1, "is", "are"), plural(3, "is", "are")) == ("is", "are")


def test_lists_end_with_a_word_or_with_how_many_more_there_are() -> None:
    assert [joined(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert joined(["a", "b"], "or") == "a or b"
    assert listed(["a", "b", "c"], 3) == "a, b, c"
    assert listed(["a", "b", "c"], 1) == "a and 2 more"
    assert shortened(["a", "b"], 2) == ["a", "b"]
    assert shortened(["a", "b", "c"], 1, "--json FILE has all") == ["a", "  ... and 2 more: --json FILE has all"]


def test_columns_are_as_wide_as_their_widest_word_and_end_without_spaces() -> None:
    assert columns([("lr", "0.1", "stable"), ("beta2", "0.99", "")], indent=2) == [
        "  lr     0.1   stable",
        "  beta2  0.99",
    ]
    assert columns([]) == []


def test_long_text_goes_on_in_lines_that_are_indented() -> None:
    assert wrapped("aaa bbb ccc-ddd", indent=2, width=9) == ["aaa bbb", "  ccc-ddd"]


def test_time_reads_as_a_clock() -> None:
    assert [format_seconds(seconds) for seconds in (0, 61, 3600 + 62)] == ["0:00", "1:01", "1:01:02"]


def test_counts_are_told_with_the_most_frequent_first() -> None:
    assert counts_line({"diverged": 2, "stable": 10}) == "10 stable, 2 diverged"
    assert counts_line({}) == "no trials"
