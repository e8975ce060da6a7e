"""Mentions of names: whole names only."""

import pytest

from pipeline.knowledge.graph.names import NameIndex


def mentions(names, text):
    return [
        (text[mention.start : mention.end], *mention.names)
        for mention in NameIndex(names).find(text)
    ]


def test_longest_name_wins_and_mentions_do_not_overlap():
    names = ["York", "New York City", "City"]
    assert mentions(names, "He left New York City for York.") == [
        ("New York City", "New York City"),
        ("York", "York"),
    ]


def test_name_is_found_without_its_disambiguation():
    names = ["Big Heat (1995 film)", "Big Heat (1986 film)"]
    assert mentions(names, "Mann directed Big Heat.") == [("Big Heat", *names)]
    assert mentions(names, "It is Big Heat (1986 film).") == [("Big Heat (1986 film", names[1])]


def test_single_word_with_disambiguation_is_found_only_in_full():
    assert mentions(["Boston (band)"], "They met in Boston.") == []
    assert mentions(["Boston (band)"], "He left Boston (band).") == [
        ("Boston (band", "Boston (band)")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She saw red.", []),  # no capital
        ("The Red Sea is deep.", []),  # a part of another name
        ("They like the Boston Red.", []),
        ("In Red they trust.", ["Red"]),  # the first word of a sentence always has a capital
        ("Redding and Reds", []),  # whole words only
        ("Made by Red, in Rome", ["Red"]),
    ],
)
def test_single_word_must_not_be_part_of_a_longer_name(text, expected):
    assert [surface for surface, *_ in mentions(["Red"], text)] == expected


def test_case_accents_and_punctuation_are_ignored():
    assert mentions(["Maria of Jülich-Berg"], "by MARIA OF JULICH BERG") == [
        ("MARIA OF JULICH BERG", "Maria of Jülich-Berg")
    ]
    assert mentions(["Barton-upon-Humber"], "in Barton upon Humber") != []


def test_text_without_capitals_matches_only_names_of_several_words():
    names = ["Paris", "Eiffel Tower"]
    assert mentions(names, "who built the eiffel tower in paris") == [
        ("eiffel tower", "Eiffel Tower")
    ]
