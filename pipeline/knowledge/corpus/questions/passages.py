"""Gold passages of a question: the passages that retrieval should find.

``steep recall`` measures retrieval against them. Input: a `RawRecord` and its `Question`. Output:
documents, for each passage all readings of its title and text; an empty text means that only the
title is known.

=================  ==============================================================================
MuSiQue            the supporting paragraph of each hop (``paragraph_support_idx``)
HotpotQA, 2Wiki    the paragraphs of ``supporting_facts``, with their text where ``context`` has it
2Wiki, evidence    without supporting facts: the titles that the evidence triples begin with
NQ, PopQA          the passages marked as gold or supporting
PruneRAG           ``golden_context``, for every data set
`Question`         ``decomposition``, else ``evidence`` (`coverage.gold_readings`)
=================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.core.records import Question
from pipeline.knowledge.corpus.coverage import gold_readings
from pipeline.knowledge.corpus.questions import native
from pipeline.knowledge.corpus.raw_records import Document, RawRecord

Readings = tuple[Document, ...]


def gold_passages(row: RawRecord, question: Question) -> list[Readings]:
    """The distinct gold passages of a record, in its order; empty when it has none."""
    return list(dict.fromkeys(_gold(row, question)))


def hop_passages(question: Question) -> list[Document]:
    """The gold passage of each hop of the question's decomposition."""
    return [
        Document(part.support_title or "", part.support_text or "")
        for part in question.decomposition
    ]


def _gold(row: RawRecord, question: Question) -> list[Readings]:
    if "golden_context" in row.value:
        return _certain(native.golden_context(row))
    if not question.decomposition:
        if question.dataset in ("hotpotqa", "2wiki") and "supporting_facts" in row.value:
            documents = {document.title: document for document in native.fact_contexts(row)}
            titles = [title for title, _ in native.supporting_facts(row)]
            return _certain(documents.get(title, Document(title, "")) for title in titles)
        if question.dataset == "2wiki" and ("evidences" in row.value or "evidence" in row.value):
            triples = native.evidence_triples(row, "evidences", "evidence")
            return _certain(Document(head, "") for head, _, _ in triples)
        if question.dataset in ("nq", "popqa") and (
            marked := native.passages(row, question.dataset, gold=True)
        ):
            return _certain(marked)
    return [
        tuple(Document(title.strip(), text.strip()) for title, text in readings)
        for readings in gold_readings(question)
    ]


def _certain(documents: Iterable[Document]) -> list[Readings]:
    """Passages with one reading each."""
    return [(document,) for document in documents]
