"""Chunks keep every word, drop duplicates, and have ids that depend on their document only."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.knowledge.corpus.chunk import chunk_documents, cut
from pipeline.knowledge.corpus.raw_records import Document

TEXT = st.text() | st.text(st.sampled_from("ab \n\t東。"), max_size=60)


@given(TEXT, st.integers(1, 9), st.booleans())
def test_chunking_keeps_every_word_in_order(text: str, words: int, lines: bool) -> None:
    pieces = cut(text, words, lines=lines)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(len(cut(piece, words)) == 1 for piece in pieces)


def test_characters_count_as_words_in_scripts_without_spaces() -> None:
    assert cut("北京大学位于 Beijing City 海淀区。", 7) == ["北京大学位于 Beijing", "City 海淀区。"]
    assert cut("วัดโพธิ์อยู่ใน", 4) == ["วัดโพ", "ธิ์อยู่ใ", "น"]  # marks stay with their letter
    assert list(map(len, cut("中" * 17_005, 100))) == [100] * 170 + [5]


def test_document_is_cut_at_the_word_limit() -> None:
    chunks = list(chunk_documents([Document("A  title", "one two\nthree four five", "d7")], 2))
    assert [(chunk.id, chunk.title, chunk.text, chunk.doc_id) for chunk in chunks] == [
        ("d7-0", "A title", "one two", "d7"),
        ("d7-1", "A title", "three four", "d7"),
        ("d7-2", "A title", "five", "d7"),
    ]


def test_duplicate_passage_is_dropped_and_the_rest_of_its_document_kept() -> None:
    documents = [
        Document("T", "one two three", "a"),
        Document("T", "one  two three", "b"),
        Document("T", "one two four", "c"),
        Document("U", "one two three", "d"),
    ]
    counts = {"duplicate_passages": 0}
    ids = [chunk.id for chunk in chunk_documents(documents, 2, counts)]
    assert ids == ["a-0", "a-1", "c-1", "d-0", "d-1"]
    assert counts == {"duplicate_passages": 3}


def test_ids_of_documents_without_id_depend_on_their_content_only() -> None:
    first, second = Document("S", "x"), Document("T", "one two")
    alone = [chunk.id for chunk in chunk_documents([second], 1)]
    assert [chunk.id for chunk in chunk_documents([first, second], 1)][1:] == alone


def test_two_documents_with_the_same_id_get_distinct_ids() -> None:
    chunks = list(chunk_documents([Document("T", "one", "1"), Document("U", "two", "1")], 9))
    assert chunks[0].doc_id == "1"
    assert chunks[1].doc_id.startswith("1.")
    assert len({chunk.id for chunk in chunks}) == 2
