"""The parts of trl, peft, transformers and accelerate that the training modules use.

These libraries are imported inside functions, because they are slow to import, and the type checker
does not follow them. Their objects are named here once, as Protocols with the attributes that the
project uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

if TYPE_CHECKING:
    import torch

# Collated tensors by name, for example ``input_ids`` [B, T].
Batch = dict[str, "torch.Tensor"]
# One record as a dataset yields it: ids, masks, advantages, log-probabilities. Some columns are
# lists of integers and others lists of floats, so the type of a value is Any.
DatasetRow = Mapping[str, Any]
Collator = Callable[[Sequence[DatasetRow]], Batch]
# A trainer class of TRL or a subclass that is built at run time. Subclassing needs Any, because the
# type checker does not follow TRL.
TrainerClass = type[Any]


class ModelConfig(Protocol):
    """The configuration of a transformers model; ``max_position_embeddings`` may be missing."""

    @property
    def model_type(self) -> str: ...

    @property
    def _attn_implementation(self) -> str: ...


class DecoderOutput(Protocol):
    """The result of a causal model without its head; hidden states are [B, T, H]."""

    @property
    def last_hidden_state(self) -> torch.Tensor: ...


class Decoder(Protocol):
    """A causal model without its language-model head."""

    def __call__(self, **inputs: object) -> DecoderOutput: ...


class FusedOutput(Protocol):
    """TRL's ``FusedCausalLMOutput``; per-token values are [B, T-1] and belong to token t + 1."""

    @property
    def log_probs(self) -> torch.Tensor: ...


class CausalModel(Protocol):
    """A causal language model of transformers, with its head."""

    forward: Callable[..., object]

    @property
    def config(self) -> ModelConfig: ...

    @property
    def base_model(self) -> Decoder: ...

    def get_output_embeddings(self) -> Callable[[torch.Tensor], torch.Tensor]: ...

    def set_attn_implementation(self, attn_implementation: str) -> None: ...


class PeftModel(Protocol):
    """A causal language model with LoRA adapters; the adapter "default" is trained."""

    def named_parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]: ...

    def __call__(self, **inputs: object) -> FusedOutput: ...

    def eval(self) -> object: ...

    def get_base_model(self) -> CausalModel: ...

    def delete_adapter(self, adapter_name: str) -> None: ...

    def save_pretrained(
        self, directory: Path, *, selected_adapters: list[str], save_embedding_layers: bool
    ) -> None: ...


class Dataset(Protocol):
    """A ``datasets.Dataset``: one record per row."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[DatasetRow]: ...

    @overload
    def __getitem__(self, index: int) -> DatasetRow: ...
    @overload
    def __getitem__(self, index: str) -> Sequence[Any]: ...

    def remove_columns(self, column_names: list[str]) -> Dataset: ...

    def select_columns(self, column_names: list[str]) -> Dataset: ...

    def add_column(self, name: str, column: Sequence[object]) -> Dataset: ...


class TrainingArguments(Protocol):
    """The arguments of a trainer, resolved for this process."""

    _n_gpu: int  # the GPUs that this process trains on, without the GPUs of other processes

    @property
    def n_gpu(self) -> int: ...

    @property
    def per_device_train_batch_size(self) -> int: ...

    @property
    def process_index(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def bf16(self) -> bool: ...

    @property
    def report_to(self) -> list[str]: ...

    @property
    def device(self) -> torch.device: ...


class CallbackHandler(Protocol):
    """The callbacks of a trainer, in the order of their calls."""

    callbacks: list[Any]


class Accelerator(Protocol):
    """The processes of one training run."""

    def unwrap_model(self, model: PeftModel) -> PeftModel: ...

    def wait_for_everyone(self) -> None: ...


class TrlTrainer(Protocol):
    """A trainer of TRL, after construction."""

    train_dataset: Dataset
    data_collator: Collator
    callback_handler: CallbackHandler
    _total_train_tokens: int  # logged as ``num_tokens``; only in trainers that log it

    @property
    def args(self) -> TrainingArguments: ...

    @property
    def accelerator(self) -> Accelerator: ...

    @property
    def model(self) -> PeftModel: ...

    def train(self, *, resume_from_checkpoint: str | None) -> object: ...

    def evaluate(self, eval_dataset: Dataset) -> dict[str, float]: ...

    def add_callback(self, callback: object) -> None: ...

    def remove_callback(self, callback: type) -> None: ...

    def is_world_process_zero(self) -> bool: ...

    def _prepare_inputs(self, inputs: Batch) -> Batch: ...


class DpoTrainer(TrlTrainer, Protocol):
    """TRL's ``DPOTrainer``."""

    precompute_ref_logps: bool

    def compute_ref_log_probs(
        self, model: PeftModel, inputs: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class GrpoTrainer(TrlTrainer, Protocol):
    """The ``GRPOTrainer`` of `pipeline.training.grpo`."""

    def token_logps(self, model: PeftModel, inputs: Batch) -> torch.Tensor: ...
