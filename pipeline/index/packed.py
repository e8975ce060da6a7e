"""Embed texts of different lengths in one forward pass on a CPU, without padding.

Input: a sentence-transformers model over BERT, and texts. Output: one vector for each text, which
is a function of that text alone. The tokens of several texts are laid end to end in packs of a
fixed number of tokens. The linear layers see the same shape at every pass, and compute each row in
the same way at every position. Attention and pooling run for each text by itself, in shapes that
its length decides.

A pack has `PACK` tokens. A longer text has a separate pack, whose size is the next multiple of
`PACK`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# Tokens of a forward pass. A query alone pays for a whole pack; smaller packs make texts slower.
PACK = 128
ATTENTION = "packed_texts"
# Model types whose positions start at 0 and whose attention sees the whole text.
_FAMILIES = frozenset({"bert"})


def supports_packing(model: Any) -> bool:
    """Whether the texts of a sentence-transformers model can share a forward pass."""
    from sentence_transformers.models import Transformer

    if not isinstance(model[0], Transformer):
        return False
    settings = model[0].auto_model.config
    if settings.model_type not in _FAMILIES or settings.is_decoder:
        return False
    return model.default_prompt_name is None  # a prompt that `SentenceTransformer.encode` would add


def encode_packed(model: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    """L2-normalized vectors [n, d] of one or more texts; `supports_packing` holds for ``model``."""
    import torch

    encoder = model[0].auto_model
    if encoder.config._attn_implementation != ATTENTION:
        _register_attention()
        encoder.set_attn_implementation(ATTENTION)
        model.eval()
    features = model.preprocess(list(texts))
    lengths: list[int] = features["attention_mask"].sum(dim=1).tolist()
    vectors: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for pack in packs(lengths):
            tokens = [features["input_ids"][row, : lengths[row]] for row in pack]
            for row, hidden_TH in zip(pack, _hidden_states(encoder, tokens), strict=True):
                vectors[row] = _pooled(model, hidden_TH)
    return np.stack([vectors[row].float().numpy() for row in range(len(texts))])


def packs(lengths: Sequence[int]) -> list[list[int]]:
    """Rows that share a pack: each row in the first pack with room for it, the longest first."""
    filled: list[tuple[list[int], int]] = []  # rows and free tokens
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        length = lengths[row]
        for number, (rows, free) in enumerate(filled):
            if length <= free:
                filled[number] = ([*rows, row], free - length)
                break
        else:
            filled.append(([row], PACK - length))
    return [rows for rows, _ in filled]


def _hidden_states(encoder: Any, tokens: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The hidden states [T, H] of each text of a pack."""
    import torch

    bounds = [0, *np.cumsum([len(ids) for ids in tokens]).tolist()]
    size = -(-bounds[-1] // PACK) * PACK
    ids_N = torch.zeros(size, dtype=torch.long)
    positions_N = torch.zeros(size, dtype=torch.long)
    for ids, (start, end) in zip(tokens, pairwise(bounds), strict=True):
        ids_N[start:end] = ids
        positions_N[start:end] = torch.arange(end - start)
    hidden_NH = encoder(
        input_ids=ids_N[None],
        token_type_ids=torch.zeros_like(ids_N)[None],
        position_ids=positions_N[None],
        cu_seq_lens_q=bounds,
    ).last_hidden_state[0]
    for start, end in pairwise(bounds):
        yield hidden_NH[start:end]


def _pooled(model: Any, hidden_TH: torch.Tensor) -> torch.Tensor:
    """The normalized vector [d] of one text, by the modules after the encoder."""
    import torch

    features: dict[str, Any] = {
        "token_embeddings": hidden_TH[None],
        "attention_mask": torch.ones(1, len(hidden_TH), dtype=torch.long),
    }
    for module in list(model)[1:]:
        features = module(features)
    vector_1D: torch.Tensor = features["sentence_embedding"]
    return torch.nn.functional.normalize(vector_1D, dim=1)[0]


def _register_attention() -> None:
    """Register the attention with transformers under the name `ATTENTION`."""
    import torch
    from transformers import AttentionInterface

    def attend(
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attention of q, k, v (1, heads, N, d) within each text; rows after the last are 0."""
        out = torch.zeros_like(q)
        for start, end in pairwise(kwargs["cu_seq_lens_q"]):
            text = (..., slice(start, end), slice(None))
            out[text] = torch.nn.functional.scaled_dot_product_attention(
                q[text], k[text], v[text], scale=scaling
            )
        return out.transpose(1, 2), None

    AttentionInterface.register(ATTENTION, attend)
