"""The names of the files of a closed world.

They are apart from `pipeline.closed_world.write`, so that a check of a run generates no world.
"""

from __future__ import annotations

from collections.abc import Mapping

FACT_FILES = "corpus.jsonl", "triplets.jsonl", "hyperedges.jsonl"
FILE_NAMES = {
    "musique": "musique_{}.jsonl",
    "nq": "nq_{}.jsonl",
    "hotpotqa": "hotpotqa_{}.json",
    "wiki2": "2wiki_{}.json",
}


def question_files(sizes: Mapping[str, float]) -> dict[str, float]:
    """The files of questions of a world with these settings, with their numbers of questions."""
    parts = ((*name.partition("_"), size) for name, size in sizes.items() if size)
    return {FILE_NAMES[of].format(split): n for of, _, split, n in parts if of in FILE_NAMES}
