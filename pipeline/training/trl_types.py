"""Names for the objects of trl, peft, transformers and datasets that the training modules use.

These libraries are imported inside functions, because they are slow to import, and the type checker
does not follow them. The names say what an argument is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Collated tensors by name, for example ``input_ids`` [B, T].
Batch = dict[str, "torch.Tensor"]
# One record as a dataset yields it: ids, masks, advantages, log-probabilities.
DatasetRow = Mapping[str, Any]
Collator = Callable[[Sequence[DatasetRow]], Batch]
Dataset = Any  # a ``datasets.Dataset``: one record per row
Decoder = Any  # a causal model of transformers without its language-model head
DecoderLayer = Any  # a layer of a `Decoder` of one of the families of Llama
CausalModel = Any  # a causal language model of transformers, with its head
PeftModel = Any  # a causal language model with LoRA adapters; the adapter "default" is trained
FusedOutput = Any  # TRL's FusedCausalLMOutput; values of tokens are [B, T-1] and belong to t + 1
TrainingArguments = Any  # the arguments of a trainer, resolved for this process
TrlTrainer = Any  # a trainer of TRL, after construction
DpoTrainer = Any  # TRL's DPOTrainer
GrpoTrainer = Any  # the GRPOTrainer of `pipeline.training.grpo`
TrainerClass = type[Any]  # a trainer class of TRL, or a subclass that is built at run time
