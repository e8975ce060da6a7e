"""Names of passages, and the links between passages that share one."""

import numpy as np
import pytest

from pipeline.knowledge.corpus.bounded import bounded
from pipeline.knowledge.graph.links import (
    MAX_DF,
    Links,
    name_key,
    name_keys,
    title_keys,
    write_links,
)

FILMS = [
    ("The Tide (film)", "The Tide is a film directed by Ada Borg."),
    ("Ada Borg", "Ada Borg was born in Corte."),
    ("Ida Holm", "Ida Holm made films."),
    ("Corte", "Corte is a town."),
]


def key(name):
    return name_key(name.lower().split())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("He met Ada Borg in Rome.", ["he", "ada borg", "rome"]),
        ("The Battle of Maldon began.", ["battle of maldon"]),
        ("In Rome. Ada Borg left", ["rome", "ada borg"]),
        ("J. R. Swamy", ["j r", "r swamy", "j r swamy"]),
        ("Barack Hussein Obama", ["barack hussein", "hussein obama", "barack hussein obama"]),
        ("São Paulo", ["sao paulo"]),
        ("nothing here, 1957", []),
        ("東京は日本の首都です", []),
    ],
)
def test_names_are_runs_of_capitalized_words_and_their_parts(text, names):
    assert name_keys(text) == {key(name) for name in names}


@pytest.mark.parametrize("text", ["Met-Ala-Gly-Val-" * 5000, "The " * 20_000, "A and " * 20_000])
def test_a_long_run_of_names_takes_no_quadratic_time(text):
    assert len(bounded(lambda: name_keys(text), 4)) <= 20


def test_a_title_is_known_with_and_without_its_qualifier_and_article():
    assert title_keys("The Tide (film)") == {key("tide film"), key("tide")}
    assert title_keys("The The") == {key("the")}
    assert title_keys("") == title_keys("!") == set()


def rows(links, table, name):
    return table.union([links.find([key(name)]).tolist()])[0].tolist()


def test_links_lead_from_names_to_titles_and_to_passages_that_share_them(tmp_path):
    write_links(tmp_path, FILMS)
    links = Links(tmp_path)
    assert len(links) == 4
    assert rows(links, links.titles, "ada borg") == [1]
    assert rows(links, links.titles, "tide") == rows(links, links.titles, "tide film") == [0]
    assert rows(links, links.passages, "ada borg") == [0, 1]
    assert rows(links, links.passages, "corte") == [1, 3]
    # A name of one passage leads nowhere; as a title it can still be named by a question.
    assert rows(links, links.passages, "ida holm") == []
    assert len(links.find([key("he"), key("film")])) == 0
    [name] = links.find([key("corte")])
    assert links.rarity_E[name] == pytest.approx((1 - np.log(2) / np.log(4)) ** 2)
    assert links.names.gather(np.arange(4))[1].tolist() == [1, 2, 0, 1]


def test_a_single_word_that_occurs_in_lower_case_is_no_name_unless_it_is_a_title(tmp_path):
    write_links(tmp_path, [("", "Many rivers. Rome"), ("", "There are many. Rome"), ("Tide", "a"),
                           ("", "the tide")])  # fmt: skip
    links = Links(tmp_path)
    assert rows(links, links.passages, "rome") == [0, 1]
    assert len(links.find([key("many")])) == 0
    assert rows(links, links.titles, "tide") == [2]


def test_a_name_of_too_many_passages_leads_to_its_title_only(tmp_path):
    write_links(tmp_path, [("Rome", "a city"), *[("", "born in Rome")] * MAX_DF])
    links = Links(tmp_path)
    assert rows(links, links.passages, "rome") == []
    assert rows(links, links.titles, "rome") == [0]
    assert links.names.gather(np.array([7]))[1].tolist() == [1]


def test_ends_of_triplets_are_names_of_their_passage(tmp_path):
    write_links(
        tmp_path, [("", "it was red"), ("", "it was red too")], [(0, "red dye"), (1, "Red dye")]
    )
    links = Links(tmp_path)
    assert rows(links, links.passages, "red dye") == [0, 1]


def test_without_passages_there_are_no_links(tmp_path):
    assert write_links(tmp_path, []) == 0
    assert len(Links(tmp_path)) == 0
