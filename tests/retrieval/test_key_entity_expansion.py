"""Entities that a subquery mentions become key entities."""

from pipeline.knowledge.retrieval.base import Query
from pipeline.knowledge.retrieval.expansion import KeyEntityExpansion

NAMES = KeyEntityExpansion(["Malibu Express (film)", "Andy Sidaris", "California"])
QUESTION = "Who directed Malibu Express in California?"


def test_mentions_replace_the_question_as_key_entity():
    assert NAMES.extend(Query(QUESTION, (QUESTION,))) == Query(
        QUESTION, ("Malibu Express (film)", "California")
    )


def test_key_entities_of_the_policy_come_first():
    expanded = NAMES.extend(Query(QUESTION, ("the director", "California")))
    assert expanded.entities == ("the director", "California", "Malibu Express (film)")
