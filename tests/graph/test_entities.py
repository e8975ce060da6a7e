"""Identity of entities by their surface forms (TeaRAG 4.1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.knowledge.graph.entities import EntityTable, entity_key


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ("New  York\n", "new york"),
        ("“Heroes”", "heroes"),
        ("\"'Emma'\"", "EMMA"),
        ("``Emma''", "emma"),
        ("Straße", "STRASSE"),
        ("ﬁlm Ⅳ", "film iv"),
        ("\uff26ilm", "film"),
        ("Zoe\u0301", "Zo\u00e9"),
    ],
)
def test_forms_of_one_entity(form: str, other: str) -> None:
    assert entity_key(form) == entity_key(other)


@pytest.mark.parametrize(
    ("form", "other"),
    [
        ('"Heroes" (song)', "Heroes (song)"),
        ('"A" and "B"', 'A" and "B'),
        ("Paris (Texas)", "Paris"),
        ("Zoé", "Zoe"),
        ("it's", "its"),
    ],
)
def test_forms_of_different_entities(form: str, other: str) -> None:
    assert entity_key(form) != entity_key(other)


@given(st.text())
def test_entity_key_is_idempotent(text: str) -> None:
    assert entity_key(entity_key(text)) == entity_key(text)


def test_entity_table_keeps_the_first_form() -> None:
    table = EntityTable()
    assert [table.add(name) for name in ("New  York", "Rome", "NEW YORK")] == [0, 1, 0]
    assert table.names == ["New York", "Rome"]
    assert table.keys == ["new york", "rome"]
