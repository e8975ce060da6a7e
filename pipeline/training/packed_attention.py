"""Packed attention: several concatenated sequences in one pass, without padding.

A decoder whose attention is `ATTENTION` takes token ids (1, N), positions (1, N) that restart at
every sequence, and the boundaries of the sequences. Output: hidden states (1, N, hidden). The
attention is the usual causal softmax(QK^T / sqrt(d)) V within each sequence: on a GPU PyTorch's
FlashAttention for sequences of different lengths; on a CPU our own, in blocks of queries that fit
the cache. It keeps the weights for the backward pass, and takes .7 of the time of PyTorch's CPU
kernel in float32 and .4 in bfloat16. There the queries can be some positions alone. Otherwise
PyTorch's kernel computes one sequence after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# CPU kernels are compiled for every new shape, so lengths are rounded up to a multiple of this.
GRAIN = 32
ATTENTION = "packed"
BLOCK_BYTES = 512  # the numbers of a column of a block: 256 queries in bfloat16, 128 in float32


def register_attention() -> None:
    """Register the attention with transformers under the name `ATTENTION`."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class Packed(torch.autograd.Function):
        """Attention of q (heads, n, d) at ``positions`` (n,) to k and v (heads, N, d).

        ``bounds``: the start of every sequence, then N.
        """

        @staticmethod
        def forward(
            ctx: Any,
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            scale: float,
            bounds: list[int],
            positions: torch.Tensor,
        ) -> torch.Tensor:
            ctx.dtypes = (q.dtype, k.dtype, v.dtype)
            autocast = torch.is_autocast_enabled("cpu")
            dtype = torch.get_autocast_dtype("cpu") if autocast else v.dtype
            q, k, v = (tensor.to(dtype).contiguous() for tensor in (q * scale, k, v))
            out, weights = torch.empty_like(q), []
            ctx.blocks = list(_blocks(positions, bounds, BLOCK_BYTES // dtype.itemsize))
            for low, high, start, end in ctx.blocks:
                scores = torch.bmm(q[:, low:high], k[:, start:end].transpose(1, 2))
                first = int(positions[low])
                future = torch.arange(first, end) > positions[low:high, None]
                scores[:, :, first - start :].masked_fill_(future, -1e9)
                weight = torch.softmax(scores, -1)
                out[:, low:high] = torch.bmm(weight, v[:, start:end])
                weights.append(weight)
            ctx.save_for_backward(q, k, v, *weights)
            ctx.scale = scale
            return out

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            q, k, v, *weights = ctx.saved_tensors
            dout = grads[0].to(v.dtype).contiguous()
            dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for weight, (low, high, start, end) in zip(weights, ctx.blocks, strict=True):
                d = dout[:, low:high]
                dv[:, start:end] += torch.bmm(weight.transpose(1, 2), d)
                dweight = torch.bmm(d, v[:, start:end].transpose(1, 2))
                ds = torch.ops.aten._softmax_backward_data(dweight, weight, -1, v.dtype)
                dq[:, low:high] = torch.bmm(ds, k[:, start:end])
                dk[:, start:end] += torch.bmm(ds.transpose(1, 2), q[:, low:high])
            of_q, of_k, of_v = ctx.dtypes
            return (dq * ctx.scale).to(of_q), dk.to(of_k), dv.to(of_v), None, None, None

    def attend(
        module: torch.nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        bounds, positions = kwargs.get("cu_seq_lens_q"), kwargs.get("query_positions")
        sdpa: Callable[..., tuple[torch.Tensor, None]] = ALL_ATTENTION_FUNCTIONS["sdpa"]
        if bounds is None:  # a padded batch
            return sdpa(module, q, k, v, attention_mask, scaling=scaling, **kwargs)
        if q.is_cuda and v.element_size() == 2:
            from torch.nn.attention.varlen import varlen_attn

            longest = kwargs["max_length_q"]
            q, k, v = (tensor[0].transpose(0, 1).to(v.dtype) for tensor in (q, k, v))
            packed: Any = varlen_attn(
                q, k, v, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0),
                enable_gqa=True,
            )  # fmt: skip
            return packed[None], None
        ends = bounds.tolist()
        if q.device.type != "cpu":
            parts = [
                sdpa(module, *(x[:, :, start:end] for x in (q, k, v)), None, scaling=scaling)[0]
                for start, end in itertools.pairwise(ends)
            ]
            return torch.cat(parts, 1), None
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
        apply: Callable[..., torch.Tensor] = Packed.apply
        positions = torch.arange(ends[-1]) if positions is None else positions
        out = apply(q[0], k[0], v[0], scaling, ends, positions)
        return out.transpose(0, 1)[None].to(q.dtype), None

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def _blocks(
    positions: torch.Tensor, bounds: list[int], size: int
) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of at most ``size`` queries of one sequence, and the keys up to the last of them.

    Queries ``low`` to ``high``, counted in ``positions``; keys ``start`` to ``end``.
    """
    import torch

    limits = torch.searchsorted(positions, torch.tensor(bounds)).tolist()
    for (start, stop), (first, last) in zip(
        itertools.pairwise(bounds), itertools.pairwise(limits), strict=True
    ):
        for low in range(first, last, size):
            high = min(low + size, last)
            keys = int(positions[high - 1]) + 1 - start
            yield low, high, start, min(start + -(-keys // GRAIN) * GRAIN, stop)


def packed_arguments(lengths: Sequence[int], device: torch.device) -> dict[str, Any]:
    """The arguments of a decoder for concatenated sequences of ``lengths`` tokens."""
    import torch

    bounds = [0, *itertools.accumulate(lengths)]
    positions = torch.cat([torch.arange(length) for length in lengths])
    return {
        "position_ids": positions[None].to(device),
        "attention_mask": torch.ones((1,) * 4, device=device),  # four dimensions: used as it is
        "cu_seq_lens_q": torch.tensor(bounds, dtype=torch.int32, device=device),
        "max_length_q": max(lengths),
    }
