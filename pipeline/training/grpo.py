"""Step-wise GRPO on a cached batch (ProGraph-R1, eq. 16), through TRL.

Input: encoded trajectories with an advantage per token, and policy n - 1 as a PEFT model. Output: a
GRPOTrainer that samples nothing. With rho_t = p(y_t) / b(y_t), b the probabilities recorded at
sampling time (``old_logprobs``), and T_i the model-written tokens of trajectory i, the loss of a
batch of B trajectories is::

    L    = -1/B sum_i 1/|T_i| sum_t in T_i
               [ min(rho_t A_t, clip(rho_t, 1 - eps, 1 + eps) A_t) - beta KL_t ]
    KL_t = ref(y_t) / p(y_t) - log(ref(y_t) / p(y_t)) - 1

which is TRL's loss type "grpo" with advantages [B, T]. Probabilities are computed at the sampling
temperature; at any other temperature the ratio would not start at 1. The reference is policy n - 1,
see `pipeline.training.reference`. One advantage per trajectory gives plain GRPO, which HiPRAG's
reward uses.

Over a base in 4 or 8 bit, b are the probabilities of policy n - 1 over that base, computed before
training. The engine sampled from the base in 16 bit. Its probabilities would add the error of
quantization to rho, which exceeds the change of one step, so ratios would be clipped before the
first step. Departure from eq. 16: nothing corrects for sampling from the other base.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.config.policy import Grpo
from pipeline.core.errors import ConfigError
from pipeline.core.progress import Progress
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.collate import padding_id, trajectory_collator
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.lora import is_quantized
from pipeline.training.reference import REFERENCE, reference_logps
from pipeline.training.step_weights import counted_steps
from pipeline.training.trainer_args import Training, build_trainer, shared_arguments
from pipeline.training.trl_types import Batch, FusedOutput, GrpoTrainer, PeftModel, TrainerClass

if TYPE_CHECKING:
    import torch

COLUMNS = ["prompt_ids", "completion_ids", "mask", "old_logprobs", "advantages"]


def grpo_trainer(
    model: PeftModel,
    tokenizer: Tokenizer,
    trajectories: EncodedFile[EncodedTrajectory],
    settings: Grpo,
    training: Training,
    *,
    temperature: float,
) -> GrpoTrainer:
    """TRL's GRPOTrainer over cached trajectories, with reference log-probabilities in its dataset.

    ``model`` is policy n - 1 as a PEFT model with a trainable adapter. It is also the reference.
    ``temperature`` is the sampling temperature. Raises ConfigError for temperature 0, at which
    trajectories have no probabilities to compare, and for batch sizes that do not divide.
    """
    from trl import GRPOConfig

    if temperature <= 0:
        raise ConfigError(
            f"sampling.temperature is {temperature:g}; grpo needs trajectories that were sampled "
            "at a temperature above 0; raise sampling.temperature"
        )
    epochs, records = settings.epochs, len(trajectories)
    arguments = GRPOConfig(
        **shared_arguments(settings, "grpo", training, epochs=epochs, records=records),
        loss_type="grpo",
        beta=settings.beta,
        epsilon=settings.epsilon,
        temperature=temperature,
        use_bias_correction_kl=False,  # TRL's default multiplies the KL by rho; eq. 16 does not
        num_generations=settings.batch_size,  # TRL checks divisibility; nothing is generated
        disable_dropout=False,
    )
    trainer: GrpoTrainer = build_trainer(
        _cached_batch_trainer(),
        arguments, model, tokenizer, trajectories, COLUMNS, settings, "grpo", training,
        # The advantages of a question sum to zero. Within one optimizer step they cancel on the
        # tokens that its trajectories share.
        groups=list(trajectories.dataset["question"]),
        temperature=temperature,
        reward_funcs=_no_reward,
    )  # fmt: skip
    trainer.data_collator = trajectory_collator(padding_id(tokenizer))
    policy = trainer.accelerator.unwrap_model(trainer.model)
    columns: dict[str, list[NDArray[np.float32]]] = {}
    progress = training.history.progress
    if settings.beta:
        columns["reference"] = token_reference_logps(trainer, trajectories, REFERENCE, progress)
        policy.delete_adapter(REFERENCE)
    if is_quantized(policy):
        columns["old_logprobs"] = columns.get("reference") or token_reference_logps(
            trainer, trajectories, "default", progress
        )
        trainer.train_dataset = trainer.train_dataset.remove_columns(["old_logprobs"])
    for name, logps in columns.items():
        trainer.train_dataset = trainer.train_dataset.add_column(name, logps)
    return trainer


def token_reference_logps(
    trainer: GrpoTrainer,
    trajectories: EncodedFile[EncodedTrajectory],
    adapter: str = REFERENCE,
    progress: Progress | None = None,
) -> list[NDArray[np.float32]]:
    """log p (nats) of every completion token under ``adapter``, 0 for tokens of observations."""
    import torch
    from trl.trainer.utils import use_adapter

    policy = trainer.accelerator.unwrap_model(trainer.model)

    def token_values(batch: Batch, indices: list[int]) -> list[NDArray[np.float32]]:
        with torch.no_grad(), use_adapter(policy, adapter_name=adapter):
            logps_BT = trainer.token_logps(trainer.model, batch).float()
        rows = zip((trajectories[index] for index in indices), logps_BT.cpu().numpy(), strict=True)
        return [_completion(trajectory, logps_T) for trajectory, logps_T in rows]

    return reference_logps(trainer, trajectories.lengths, token_values, progress)


def _completion(trajectory: EncodedTrajectory, logps_T: NDArray[np.float32]) -> NDArray[np.float32]:
    """The completion's part of log-probabilities, which start at the second token of the prompt."""
    start = len(trajectory.prompt_ids) - 1
    return logps_T[start : start + len(trajectory.completion_ids)].copy()


def _no_reward(**_: object) -> list[float]:
    raise AssertionError("trajectories of a cached batch are scored before training")


def _cached_batch_trainer() -> TrainerClass:
    from transformers import Trainer
    from trl import GRPOTrainer

    class CachedBatchTrainer(GRPOTrainer):
        """GRPOTrainer that takes trajectories as they were sampled, scored and collated."""

        # Trainer's method: batches are trajectories. GRPOTrainer's would be prompts to generate
        # from.
        def get_train_dataloader(self) -> object:
            return Trainer.get_train_dataloader(self)

        def _prepare_inputs(self, inputs: Batch) -> Batch:
            batch: Batch = Trainer._prepare_inputs(self, inputs)
            return batch

        def _compute_loss(self, model: PeftModel, inputs: Batch) -> torch.Tensor:
            loss: torch.Tensor = super()._compute_loss(
                _MaskedLabels(model, inputs["tool_mask"]), inputs
            )
            step = self.step_counts
            return loss if step is None else loss * step.share_of_records(_count(inputs)[0])

        def token_logps(self, model: PeftModel, inputs: Batch) -> torch.Tensor:
            """log p of the tokens after the first, [B, T], 0 for tokens outside ``tool_mask``."""
            import torch

            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            masked = _MaskedLabels(model, inputs["tool_mask"])
            size = inputs["completion_ids"].size(1)
            score: Callable[..., tuple[torch.Tensor, ...]]
            score = self._get_per_token_logps_and_entropies
            return score(masked, ids, mask, size)[0]

    return counted_steps(CachedBatchTrainer, _count)


def _count(batch: Batch) -> tuple[int, int]:
    """The trajectories of a collated batch, and their trained tokens."""
    return len(batch["tool_mask"]), int(batch["tool_mask"].sum())


class _MaskedLabels:
    """A model whose labels are ignored outside a mask [B, T]; its head skips those tokens."""

    def __init__(self, model: PeftModel, mask_BT: torch.Tensor) -> None:
        self.model = model
        self.mask_BT = mask_BT

    def __call__(self, labels: torch.Tensor, **inputs: object) -> FusedOutput:
        labels = labels.clone()
        labels[:, 1:].masked_fill_(self.mask_BT == 0, -100)
        return self.model(labels=labels, **inputs)
