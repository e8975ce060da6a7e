"""Peak memory of LoRA training on one GPU.

Input: the shape of the base model, and settings of the trainer and the adapter. Output: bytes by
part. With T = R N tokens in a micro-batch of R rows, the longest of N tokens (a DPO pair has two
rows), L layers of width h, MLPs of width i, q and kv the widths of queries and keys, b = 2 bytes in
bfloat16 (4 in float32), and a the parameters of the adapter::

    weights      P b; in 4 bit .52 bytes for each weight of the layers' projections (NF4 with double
                 quantization), in 8 bit 1; the rest, embeddings included, is then in float32
                 (PEFT's prepare_model_for_kbit_training)
    adapter      16 a: weights, gradients and two Adam moments in float32, and with several
                 processes 4 a of gradient buckets
    layer inputs T L h b                                    with gradient checkpointing
    one layer    T [8 h + b (3 h + 2 (q + 2 kv) + q + 4 i) + lora]
                 norms in float32, with their outputs; q, k, v before and after the rotary
                 embedding; attention; gate, up, their activation and product. Without
                 checkpointing every layer keeps this
    mask         R N N (1 + b), and T 2 q b in each layer    for rows of several lengths, so R > 1
    lora         for every target of input width w: 4 w for its input in float32, and with dropout
                 5 w more (output and mask)
    gradients    T b (2 i + 2 h), of the layer in work
    head         2 tiles of 4,096 tokens × 32,768 ids in float32, and T h 4 for the gradient of its
                 input

Where a row is padded, transformers (5.19) makes a boolean mask of R × N × N for the attention of
PyTorch, whose kernel copies it in b bytes for the layer in work, and repeats keys and values for
every head of the queries. Rows that run without a mask (`pipeline.training.lean_forward`) need
neither; the plan does not count on that.

The full logits, T × V × 4 bytes, never exist: TRL's head (1.16) computes log-probabilities in
tiles. For 32,768 tokens of Llama-3 they would take 16.8 GB, and as much again for their gradients.

The paper's training took 42 and 61 GB a GPU for 8 and 14 billion parameters (TeaRAG table 9); these
formulas give 45 and 69 GB for two pairs of 8,192 tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.gpus import CONTEXT_BYTES
from pipeline.core.model_shapes import DTYPE_BYTES, ModelShape

_QUANTIZED_BYTES = {"4bit": 0.52, "8bit": 1.0}
_TILE_BYTES = 2 * 4096 * 32_768 * 4.0
_FRAGMENTATION = 0.1  # of the activations: blocks that the allocator of PyTorch cannot reuse


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one training process on its GPU, by part."""

    weights: float
    adapter: float
    layer_inputs: float
    layer: float  # of the layers that are held whole: one, or all without gradient checkpointing
    mask: float  # of the attention
    head: float
    overhead: float  # CUDA context and fragmentation

    @property
    def total(self) -> float:
        """All parts."""
        activations = self.layer_inputs + self.layer + self.mask + self.head
        return self.weights + self.adapter + activations + self.overhead


def training_memory(
    shape: ModelShape,
    *,
    rows: int,
    length: int,
    rank: int,
    targets: Sequence[str],
    dropout: bool,
    dtype: str = "bfloat16",
    quantization: str = "none",
    checkpointing: bool = True,
    processes: int = 1,
) -> TrainingMemory:
    """The peak of one process, for ``rows`` of which the longest has ``length`` tokens."""
    tokens = rows * length
    size, h, i = DTYPE_BYTES[dtype], shape.hidden, shape.intermediate
    q, kv = shape.query_width, shape.kv_width
    adapter = shape.lora_parameters(rank, targets) * (20 if processes > 1 else 16)
    widths = [width[0] for target in targets if (width := shape.width(target)) is not None]
    lora = sum(widths) * (9 if dropout else 4)
    padded = rows > 1
    repeated = 2 * q * size if padded and q != kv else 0
    layer = tokens * (repeated + 8 * h + size * (3 * h + 2 * (q + 2 * kv) + q + 4 * i) + lora)
    gradients = tokens * size * (2 * i + 2 * h)
    # The norms and embeddings of a quantized model are in float32, and so are the values between
    # layers.
    between = size if quantization == "none" else 4
    inputs = tokens * shape.layers * h * between if checkpointing else 0.0
    held = layer * (1 if checkpointing else shape.layers) + gradients
    copies = 1 if checkpointing else shape.layers
    mask = rows * float(length) ** 2 * (1 + size * copies) if padded else 0.0
    head = min(tokens, 4096) / 4096 * _TILE_BYTES + tokens * h * 4.0
    return TrainingMemory(
        weights=weight_bytes(shape, dtype, quantization),
        adapter=float(adapter),
        layer_inputs=float(inputs),
        layer=float(held),
        mask=mask,
        head=head,
        overhead=CONTEXT_BYTES + _FRAGMENTATION * (inputs + held + mask + head),
    )


def weight_bytes(shape: ModelShape, dtype: str, quantization: str = "none") -> float:
    """Bytes of the frozen base weights."""
    if quantization == "none":
        return float(shape.parameters * DTYPE_BYTES[dtype])
    return shape.linear_parameters * _QUANTIZED_BYTES[quantization] + shape.other_parameters * 4.0
