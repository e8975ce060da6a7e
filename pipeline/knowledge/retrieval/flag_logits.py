"""Logits of FlagEmbedding's encoder rerankers, with every pair computed once.

``FlagReranker.compute_score`` runs the first batch of every call twice, to find a batch size that
fits into memory. A call of 60 pairs then costs 120. Input: the tokenizer and the model of a
FlagReranker, and pairs of texts, which are cut as FlagReranker cuts them: the query to three
quarters of the maximum length, then the text. Output: one raw logit for each pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_QUERY_SHARE = (3, 4)  # of the maximum length, as in FlagReranker


def flag_logits(
    tokenizer: Any,
    model: Any,
    pairs: Sequence[tuple[str, str]],
    *,
    batch_size: int,
    max_length: int,
) -> list[float]:
    """Raw logits [n] of (query, text) pairs, in input order.

    ``max_length`` is in tokens of a pair. Batches hold pairs of similar length. A batch that does
    not fit into the memory of a GPU is halved; raises torch.OutOfMemoryError for a single pair.
    """
    import torch

    encoded = _encode(tokenizer, pairs, max_length)
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = np.argsort([-length for length in lengths], kind="stable").tolist()
    logits = [0.0] * len(pairs)
    start, size = 0, batch_size
    while start < len(order):
        rows = order[start : start + size]
        batch = {name: [values[row] for row in rows] for name, values in encoded.items()}
        inputs = tokenizer.pad(batch, padding=True, return_tensors="pt").to(model.device)
        try:
            with torch.inference_mode():
                outputs = model(**inputs).logits.view(-1).float().tolist()
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            size = len(rows) // 2
            continue
        for row, logit in zip(rows, outputs, strict=True):
            logits[row] = logit
        start += len(rows)
    return logits


def _encode(
    tokenizer: Any, pairs: Sequence[tuple[str, str]], max_length: int
) -> dict[str, list[list[int]]]:
    part, whole = _QUERY_SHARE
    if not pairs:
        return {"input_ids": []}
    queries = [query for query, _ in pairs]
    cut = tokenizer(
        queries,
        add_special_tokens=False,
        truncation=True,
        max_length=max_length * part // whole,
        return_offsets_mapping=True,
    )["offset_mapping"]
    queries = [
        query[: offsets[-1][1]] if offsets else query
        for query, offsets in zip(queries, cut, strict=True)
    ]
    texts = [text for _, text in pairs]
    encoded = tokenizer(queries, texts, truncation="only_second", max_length=max_length)
    return dict(encoded)
