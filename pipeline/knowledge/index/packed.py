"""Embed texts of different lengths in one forward pass on a CPU, without padding.

Input: a sentence-transformers model over BERT, and texts. Output: one vector for each text, which
is a function of that text alone. The tokens of several texts are laid end to end in packs. The
linear layers compute each row of a pack in the same way at every position. Attention and pooling
run for each text by itself, in shapes that its length decides.

A pack has one of `SIZES` tokens, the smallest that holds its texts, so that a single query does not
pay for many. Sizes for which the linear layers give other bits than for `PACK` tokens, which is
tested once for each model, are left out. A text that is longer than a pack has a separate one,
whose size is the next multiple of `PACK`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

SIZES = (16, 24, 32, 48, 64, 96, 128, 256)  # tokens; many texts fill the largest
PACK = 128
# Rows of the test of the sizes, a multiple of each. Kernels for other sizes may give other bits in
# one value of 10,000 only, which a single pack of 16 rows often does not show.
_TESTED = 768
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


class PackedTexts:
    """Embeds texts in packs; `supports_packing` holds for ``model``."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._encoder = model[0].auto_model
        _register_attention()
        self._encoder.set_attn_implementation(ATTENTION)
        self.sizes = _sizes_of_equal_bits(self._encoder)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """L2-normalized vectors [n, d] of one or more texts."""
        import torch

        features = self._model.preprocess(list(texts))
        lengths: list[int] = features["attention_mask"].sum(dim=1).tolist()
        vectors: dict[int, torch.Tensor] = {}
        with torch.inference_mode():
            for pack in packs(lengths, self.sizes[-1]):
                tokens = [features["input_ids"][row, : lengths[row]] for row in pack]
                for row, hidden_TH in zip(pack, self._hidden_states(tokens), strict=True):
                    vectors[row] = _pooled(self._model, hidden_TH)
        return np.stack([vectors[row].float().numpy() for row in range(len(texts))])

    def _hidden_states(self, tokens: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The hidden states [T, H] of each text of a pack."""
        import torch

        bounds = [0, *np.cumsum([len(ids) for ids in tokens]).tolist()]
        longer = -(-bounds[-1] // PACK) * PACK
        size = next((size for size in self.sizes if size >= bounds[-1]), longer)
        ids_N = torch.zeros(size, dtype=torch.long)
        positions_N = torch.zeros(size, dtype=torch.long)
        for ids, (start, end) in zip(tokens, pairwise(bounds), strict=True):
            ids_N[start:end] = ids
            positions_N[start:end] = torch.arange(end - start)
        hidden_NH = self._encoder(
            input_ids=ids_N[None],
            token_type_ids=torch.zeros_like(ids_N)[None],
            position_ids=positions_N[None],
            cu_seq_lens_q=bounds,
        ).last_hidden_state[0]
        for start, end in pairwise(bounds):
            yield hidden_NH[start:end]


def _sizes_of_equal_bits(encoder: torch.nn.Module) -> tuple[int, ...]:
    """The sizes of packs in which all linear layers of ``encoder`` compute a row as in `PACK`."""
    import torch

    of_shape = {
        layer.weight.shape: layer
        for layer in encoder.modules()
        if isinstance(layer, torch.nn.Linear)
    }
    random = torch.Generator().manual_seed(0)
    sizes: tuple[int, ...] = SIZES
    with torch.inference_mode():
        for layer in of_shape.values():
            rows_NH = torch.randn(_TESTED, layer.in_features, generator=random)
            rows_NH = rows_NH.to(layer.weight.dtype)
            expected = torch.cat([layer(rows) for rows in torch.split(rows_NH, PACK)])
            sizes = tuple(
                size
                for size in sizes
                if all(
                    torch.equal(layer(rows), same)
                    for rows, same in zip(
                        torch.split(rows_NH, size), torch.split(expected, size), strict=True
                    )
                )
            )
    return sizes


def packs(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Rows that share a pack of ``size``: each in the first with room for it, the longest first."""
    filled: list[tuple[list[int], int]] = []  # rows and free tokens
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        length = lengths[row]
        for number, (rows, free) in enumerate(filled):
            if length <= free:
                filled[number] = ([*rows, row], free - length)
                break
        else:
            filled.append(([row], size - length))
    return [rows for rows, _ in filled]


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
