"""The sizes of a run's data: questions, documents, and the records that stages make of them.

Input: a configuration. Output: a `Sizes`, from the files of the configuration (bytes over the mean
bytes of the first records), from the sizes of the closed world, or for the published data sets from
`PUBLISHED_RECORDS`. Amounts that only a run can tell (triplets, entities, hyperedges) come from
`PER_CHUNK`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.closed_world.file_names import question_files
from pipeline.config import Config
from pipeline.config.knowledge import CorpusFile, QuestionFile
from pipeline.core.errors import InputError
from pipeline.knowledge.corpus.official import OFFICIAL

PUBLISHED_RECORDS = {file.path: file.records for file in OFFICIAL}
# Paragraphs of a question, and the share of them that no earlier question has (assumed).
_PARAGRAPHS = {"musique": 20, "hotpotqa": 10, "2wiki": 10}
NEW_PARAGRAPHS = 0.5
# Sub-questions of a MuSiQue question (2 to 4), and the share of the candidates of all
# queries that are different passages (docs/log/2026-11.md#candidates).
_HOPS, _DISTINCT = 3.0, 0.8
_SEARCHES = 1.5  # of a trajectory (TeaRAG, table 8: 1.4 to 1.8 steps)
# Triplets and entities: TeaRAG, tables 4 and 5. Hyperedges: assumed.
PER_CHUNK = {"triplets": 130_931_564 / 21_015_324, "entities": 51_063_765 / 21_015_324}
HYPEREDGES_PER_CHUNK = 4.0
# Bytes of a record on disk, and in the pages of mapped files (docs/scale.md).
CHUNK_BYTES, TRIPLET_BYTES, ENTITY_BYTES, HYPEREDGE_BYTES = 650, 102.6, 26.8, 160
LINK_BYTES = 530  # of a chunk: BM25 and links on disk, in the pages of mapped files
ANSWER_BYTES = 3600  # of a cached answer of a model, prompt included
TRAJECTORY_BYTES = 12_000  # of 1,100 tokens: ids, log-probabilities, text and prompt
_WORDS_OF_PARAGRAPH = 80
_CHUNK_TEXT = 600  # bytes of running text for each passage of 100 words
_RECORDS = 20  # from which the size of a record is estimated
_SPLITS = ("sft", "sampling", "validation", "test")


@dataclass(frozen=True)
class Sizes:
    """Numbers of records; ``questions`` are by split, at most the limits, before filters.

    A round with its own questions has a split of its own, such as ``sampling-2``.

    The graph has triplets of ``extracted`` chunks. With ``graph.scope: candidates``, ``queries``
    choose ``reached`` of them, and searches of policy 0 the others.
    """

    questions: Mapping[str, float]
    chunks: float
    reached: float = 0.0
    extracted: float = 0.0
    queries: float = 0.0
    triplets: float = 0.0
    entities: float = 0.0
    hyperedges: float = 0.0

    def in_round(self, number: int) -> float:
        """The questions that a round samples."""
        return self.questions.get(f"sampling-{number}", self.questions["sampling"])


def sizes_of(settings: Config) -> Sizes:
    """The sizes of the data of a run; a published file that is missing counts as published."""
    world = settings.data.closed_world
    files = {split: getattr(settings.data, split) for split in _SPLITS}
    for number in settings.per_round:
        if (own := settings.of_round(number).data.sampling) != settings.data.sampling:
            files[f"sampling-{number}"] = own
    questions = {name: _questions(settings, of_split) for name, of_split in files.items()}
    if world is None:
        chunks = sum(_chunks(settings, file) for file in settings.corpus.files)
    else:
        chunks = float(world.documents)
    graph = settings.graph.source != "none"
    asked = sum(questions.values()) - questions["sft"]
    queries = asked + _HOPS * questions["sft"]
    reached = extracted = chunks
    if settings.graph.scope == "candidates":
        each = 2 * settings.graph.candidates * _DISTINCT
        reached = min(chunks, queries * each)
        extracted = min(chunks, (queries + _SEARCHES * asked) * each)
    used = (settings.retrieval, settings.for_evaluation().retrieval)
    hyper = any(retrieval.over_hypergraph for retrieval in used)
    return Sizes(
        questions,
        chunks,
        reached,
        extracted,
        queries,
        triplets=extracted * PER_CHUNK["triplets"] * graph,
        entities=(chunks if hyper else extracted) * PER_CHUNK["entities"] * (graph or hyper),
        hyperedges=chunks * HYPEREDGES_PER_CHUNK * hyper,
    )


def _questions(settings: Config, files: Sequence[QuestionFile]) -> float:
    total = 0.0
    for file in files:
        records, width = _records(settings, file.path), file.share[1] - file.share[0]
        limits = (None if records is None else records * width, file.limit)
        total += min((n for n in limits if n is not None), default=0.0)
    return total


def _chunks(settings: Config, file: CorpusFile) -> float:
    records = _records(settings, file.path) or 0.0
    if file.format != "questions" or file.dataset is None:
        return records
    paragraphs = records * _PARAGRAPHS.get(file.dataset, 0) * NEW_PARAGRAPHS
    return paragraphs * max(1.0, _WORDS_OF_PARAGRAPH / settings.corpus.chunk_words)


def _records(settings: Config, path: str) -> float | None:
    """The records of a file by its name, None when they are unknown."""
    world = settings.data.closed_world
    if world is not None and not Path(path).is_absolute():
        return question_files(dict(world)).get(str(Path(path)))
    file = Path(settings.data.root or ".") / path
    return estimated_records(file) or PUBLISHED_RECORDS.get(path)


def estimated_records(path: Path) -> float | None:
    """The records of a file: its bytes over the mean bytes of the first; None if it is empty."""
    from pipeline.knowledge.corpus.folders import find_files
    from pipeline.knowledge.corpus.prose import is_prose
    from pipeline.knowledge.corpus.raw_records import read_rows

    if is_prose(path) or not path.is_file():
        files = (found.path for found in find_files(Path(), str(path)))
        return sum(file.stat().st_size for file in files if file.is_file()) / _CHUNK_TEXT or None
    try:
        size = path.stat().st_size
        first = [_bytes(row.value) for row in islice(read_rows(path), _RECORDS)]
    except (OSError, InputError):
        return None
    if len(first) < _RECORDS:
        return float(len(first)) or None
    return size / (sum(first) / len(first))


def _bytes(record: Mapping[str, Any]) -> int:
    return len(json.dumps(record, ensure_ascii=False).encode(errors="replace"))
