"""The forms in which Search-R1 (verl) and FlashRAG publish the questions of any data set.

Search-R1's Parquet files have ``prompt``, ``reward_model.ground_truth.target``, ``data_source`` and
``extra_info``. FlashRAG's data sets keep the golden evidence in ``metadata``: HotpotQA's
``supporting_facts`` with ``context``, or MuSiQue's ``question_decomposition``.
"""

from __future__ import annotations

from typing import Any

from pipeline.core.records import Decomposed
from pipeline.corpus.questions.multihop import fact_evidence
from pipeline.corpus.questions.shared import evidence
from pipeline.corpus.raw_records import RawRecord

_MARK = "Question:"  # before the question in Search-R1's prompts
_DECOMPOSITION = "question_decomposition"


def with_answers(row: RawRecord) -> RawRecord:
    """A record of Search-R1 with ``question`` and ``golden_answers``; any other as it is.

    Raises InputError for malformed parts of this form.
    """
    if not isinstance(row.find("reward_model"), dict):
        return row
    reward = row.checked_mapping(row.value["reward_model"], "reward_model")
    _, truth = reward.present("ground_truth")
    if isinstance(truth, dict):
        _, truth = reward.checked_mapping(truth, "ground_truth").present("target")
    extra = row.checked_mapping(row.find("extra_info") or {}, "extra_info")
    number = extra.identifier("index")
    parts = {
        "golden_answers": truth if isinstance(truth, list) else [truth],
        "question": extra.optional_text("question") or _asked(row),
        # verl's recipe calls Search-R1's data sets searchR1_nq, searchR1_hotpotqa and so on.
        "dataset": (row.optional_text("data_source") or "").removeprefix("searchR1_"),
        "id": number and "_".join(filter(None, (extra.optional_text("split"), number))),
    }
    missing = {name: value for name, value in parts.items() if value and not row.find(name)}
    return RawRecord({**row.value, **missing}, row.path, row.number, row.line, notes=row.notes)


def _asked(row: RawRecord) -> str | None:
    """The question at the end of the last message of the prompt."""
    messages = row.optional_items("prompt")
    if not messages:
        return None
    content = row.checked_mapping(messages[-1], "prompt").text("content")
    return content.rpartition(_MARK)[2].strip()


def golden_fields(row: RawRecord) -> dict[str, Any]:
    """The fields of a `Question` that FlashRAG's ``metadata`` gives: evidence, hops and the like.

    Raises InputError when they are malformed.
    """
    value = row.find("metadata")
    if "golden_answers" not in row.value or not isinstance(value, dict):
        return {}
    # In a Parquet file of several data sets, each row has the fields of all.
    known = {name: field for name, field in value.items() if field is not None}
    metadata = row.checked_mapping(known, "metadata")
    parts: list[Decomposed] = []
    if "supporting_facts" in known and "context" in known:
        pieces, hops = fact_evidence(metadata)
    else:
        parts = [_hop(metadata, n) for n in range(len(metadata.optional_items(_DECOMPOSITION)))]
        pieces = [evidence(part.support_title or "", part.support_text or "") for part in parts]
        hops = len(parts)
    if not hops:
        return {}
    found = {"evidence": pieces, "hops": hops, "decomposition": parts}
    return found | {
        "hop": "multi" if hops > 1 else "single",
        "type": metadata.optional_text("type"),
    }


def _hop(metadata: RawRecord, number: int) -> Decomposed:
    value = metadata.items(_DECOMPOSITION)[number]
    part = metadata.checked_mapping(value, f"{_DECOMPOSITION}.{number}")
    support = part.checked_mapping(part.find("support_paragraph"), "support_paragraph")
    texts = support.text("title"), support.text("paragraph_text")
    return Decomposed(part.text("question"), part.text("answer"), *texts)
