"""The forms in which Search-R1 (verl) and FlashRAG publish the questions of any data set.

Search-R1's Parquet files have ``prompt``, ``reward_model.ground_truth.target``, ``data_source`` and
``extra_info``; verl's dumps of roll-outs have ``input``, the prompt as text, and ``gts``.
FlashRAG's data sets keep the golden evidence in ``metadata``: HotpotQA's ``supporting_facts`` with
``context``, or MuSiQue's ``question_decomposition``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipeline.knowledge.corpus.questions.answers import listed
from pipeline.knowledge.corpus.questions.native import Golden, decomposed, stated_facts
from pipeline.knowledge.corpus.raw_records import RawRecord

_MARK = "Question:"  # before the question in Search-R1's prompts
_TURNS = ("\nuser\n", "<|im_start|>user\n")  # without and with the tokens of the chat template


def with_answers(row: RawRecord) -> RawRecord:
    """A record of verl with ``question`` and ``golden_answers``; any other as it is.

    Raises InputError for malformed parts of these forms.
    """
    reward, extra = listed(row, "reward_model"), listed(row, "extra_info")
    truth = None
    if isinstance(reward, dict):
        _, truth = row.checked_mapping(reward, "reward_model").present("ground_truth")
    elif "gts" not in row.value:
        return row
    part = row.checked_mapping(extra or {}, "extra_info")
    number = part.identifier("index")
    parts = {
        "golden_answers": truth,
        "question": part.optional_text("question") or prompted_question(row),
        # verl's recipe calls Search-R1's data sets searchR1_nq, searchR1_hotpotqa and so on.
        "dataset": (row.optional_text("data_source") or "").removeprefix("searchR1_"),
        "id": number and "_".join(filter(None, (part.optional_text("split"), number))),
    }
    missing = {name: value for name, value in parts.items() if value and not row.find(name)}
    return replace(row, value=row.value | missing)


def prompted_question(row: RawRecord) -> str | None:
    """The question at the end of the last message of the prompt, or of a whole prompt as text."""
    if isinstance(text := row.find("input"), str):  # of verl's dump of roll-outs
        content = _last_turn(text)
    elif messages := listed(row, "prompt"):
        last = row.checked_items(messages, "prompt")[-1]
        content = row.checked_mapping(last, "prompt").text("content")
    else:
        return None
    return content.rpartition(_MARK)[2].strip()


def _last_turn(text: str) -> str:
    """The user's last turn of a whole prompt, or the text if it is none."""
    prompt, opening, after = text.rpartition("assistant")
    if opening and after.strip() in ("", "<think>"):
        for mark in _TURNS:
            _, found, turn = f"\n{prompt.removesuffix('<|im_start|>')}".rpartition(mark)
            if found:
                return turn.rstrip().removesuffix("<|im_end|>")
    return text


def golden_fields(row: RawRecord) -> dict[str, Any]:
    """The fields of a `Question` that FlashRAG's ``metadata`` gives: evidence, hops and the like.

    Raises InputError when they are malformed.
    """
    value = row.find("metadata")
    if "golden_answers" not in row.value or not isinstance(value, dict):
        return {}
    # In a Parquet file of several data sets, each row has the fields of all.
    known = {name: field for name, field in value.items() if field is not None}
    metadata, golden = row.checked_mapping(known, "metadata"), Golden()
    if {"supporting_facts", "context"} <= known.keys():
        golden = stated_facts(metadata)
    elif "question_decomposition" in known:
        golden = decomposed(metadata)
    if not golden.hops:
        return {}
    return {
        "evidence": golden.pieces,
        "hops": golden.hops,
        "decomposition": golden.parts,
        "hop": "multi" if golden.hops > 1 else "single",
        "type": metadata.optional_text("type"),
    }
