"""Tell which data set a file of questions is from, by the fields of its first record.

Only what one data set alone publishes decides. Shapes that several data sets share, such as
``golden_answers`` of Search-R1 and FlashRAG, leave the choice to the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.corpus.questions.load import DATASETS
from pipeline.corpus.raw_files import read_rows


def dataset_of(path: Path) -> str:
    """The data set of a file, as in `DATASETS`.

    Raises InputError when the file is unreadable, or several data sets or none have such records.
    """
    row = next(iter(read_rows(path)))
    dataset = _only_dataset(row.value, table=path.suffix in (".csv", ".tsv"))
    if dataset is None:
        raise InputError.at(
            path,
            None,
            "the data set cannot be told from the first record; name it with --dataset, one of "
            f"{', '.join(DATASETS)}",
        )
    return dataset


def _only_dataset(record: Mapping[str, Any], *, table: bool) -> str | None:
    """The only data set whose published records have the fields of ``record``."""
    fields = record.keys()
    if {"question_id", "dataset", "question", "answers", "hop"} <= fields:
        return "questions"
    if fields & {"golden_answers", "golden_context"}:
        return None  # Search-R1, FlashRAG and PruneRAG publish every data set in these shapes
    if "question_decomposition" in fields:
        return "musique"
    if "supporting_facts" in fields:
        return "2wiki" if "evidences" in fields else "hotpotqa" if "level" in fields else None
    if "possible_answers" in fields:
        return "popqa"
    answer = record.get("answer", record.get("Answer"))
    if isinstance(answer, Mapping):
        return "triviaqa"
    if table and {"Question", "Answer"} <= fields:
        return "bamboogle"
    return "nq" if isinstance(answer, list) and "question" in fields else None
