"""Gold paragraphs in a corpus: literally, by overlap, or as the question's own paragraph."""

from collections import Counter
from pathlib import Path

from pipeline.core.records import Chunk
from pipeline.core.text import tokenize
from pipeline.knowledge.corpus.chunk import chunk_documents
from pipeline.knowledge.corpus.documents import read_documents
from pipeline.knowledge.corpus.questions.load import read_questions
from pipeline.knowledge.corpus.questions.passages import gold_passages
from pipeline.knowledge.graph.locate import Locator
from pipeline.training.sft_data.mentions import mention
from pipeline.training.sft_data.paragraphs import MIN_OVERLAP, find_paragraph, own_chunks

# An article in blocks of eight words, and a paragraph that begins inside the second of them.
ARTICLE = (
    "Emma is a comedy film of the nineties. "
    "It was shot in Dorset. Ann Lee directed Emma after a play and won a prize for it "
    "in Rome. The music is by Bo Ray."
)
PARAGRAPH = "Ann Lee directed Emma after a play, and she won a prize for it in Rome."


def blocks(title: str, text: str, size: int = 8) -> list[Chunk]:
    words = text.split()
    parts = [" ".join(words[start : start + size]) for start in range(0, len(words), size)]
    return [Chunk(f"{title}-{n}", title, part, title) for n, part in enumerate(parts)]


def found(text: str, answer: str, *chunks: Chunk) -> tuple[list[Chunk], str | None]:
    return find_paragraph(Locator(chunks), 8, "Emma", text, answer)


def test_chunks_that_are_part_of_the_paragraph_come_first() -> None:
    chunks = blocks("Emma", ARTICLE)
    assert found(ARTICLE, "Rome", *chunks) == (chunks, "text")


def test_paragraph_cut_elsewhere_is_the_fewest_blocks_that_hold_its_words() -> None:
    chunks = blocks("Emma", ARTICLE)
    assert found(PARAGRAPH, "Rome", *chunks) == (chunks[1:4], "overlap")


def test_blocks_without_the_answer_of_the_paragraph_are_refused() -> None:
    text = "Ann Lee directed Emma after a play and won a prize for it in Rome"
    without = Chunk("c", "Emma", text.replace("Rome", "Oslo"), "d")
    assert found(text, "Rome", without)[1] == "own"
    assert found(text, "Ann Lee", without) == ([without], "overlap")


def test_own_paragraph_is_cut_as_the_corpus_is_and_named_by_its_content() -> None:
    chunks = own_chunks("Emma", PARAGRAPH, 8)
    assert [chunk.text for chunk in chunks] == [
        "Ann Lee directed Emma after a play, and",
        "she won a prize for it in Rome.",
    ]
    assert all(chunk.id.startswith("paragraph:") for chunk in chunks)
    assert own_chunks("Emma", PARAGRAPH, 8) == chunks
    assert own_chunks("Emma", PARAGRAPH + " So.", 8)[0].id != chunks[0].id


def test_real_wikipedia_passages_stand_for_paragraphs_of_musique(real_data: Path) -> None:
    """Passages of the DPR Wikipedia hold none of the paragraphs literally, and many by overlap."""
    documents = [
        document
        for name in ("musique/prunerag_musique_bge_top10_249.jsonl",
                     "2wiki/prunerag_2wiki_bge_top10_271.jsonl",
                     "hotpotqa/prunerag_hotpotqa_bge_top10_276.jsonl",
                     "single-hop/bamboogle_e5_top21_58.jsonl")
        for document in read_documents(real_data / name, "questions", "musique")
    ]  # fmt: skip
    locator = Locator(list(chunk_documents(documents, 100)))
    rows = list(read_questions(real_data / "musique/prunerag_musique_249.jsonl", "musique"))
    hops = {
        (passage.title, passage.text, answer)
        for row, question in rows
        for (passage,) in gold_passages(row, question)
        for answer in question.answers[:1]
        if locator.by_title(passage.title)
    }
    sources = Counter[str]()
    for title, text, answer in hops:
        chunks, source = find_paragraph(locator, 100, title, text, answer)
        sources[str(source)] += 1
        if source == "overlap":
            joined = " ".join(chunk.text for chunk in chunks)
            wanted = Counter(tokenize(text))
            held = (wanted & Counter(tokenize(joined))).total()
            assert held >= MIN_OVERLAP * wanted.total()
            assert mention(text, answer) is None or mention(joined, answer) is not None
    assert sources["text"] == 0
    # The rest are other passages of the same articles: the sample holds only retrieved ones.
    assert sources["overlap"] > 60
