"""One round of preference training (TeaRAG, arXiv 2511.05385, eq. 15-17), through TRL.

Input: encoded pairs with token masks, and policy n - 1 as a PEFT model. Output: a DPOTrainer whose
model becomes policy n. The loss of a batch of B pairs (w preferred, l rejected, ref the reference)
is::

    L_DPO = -1/B sum log sigmoid(beta [(log p(w) - log ref(w)) - (log p(l) - log ref(l))])
    L     = L_DPO + eta L_SFT(w)

where log p is the sum over model-written tokens only, in both terms and on both sides. ``eta_of``
chooses L_SFT: with "sum" it is -1/B sum log p(w), as eq. 15 prints it; with "mean" it is the mean
over the same tokens of an optimizer step, which is smaller by their number per pair. TRL's "sft" is
a mean over the tokens of a micro-batch, so its weight here holds the share of the micro-batch in
the step (`pipeline.training.step_weights`). Unlike in TRL's default, the dropout of LoRA stays on
(the paper trains both stages with 0.1); the reference has none.

The reference's log-probabilities are computed once, before training
(`pipeline.training.reference`), and stored under a key of their content (base, adapter and ids,
never a file path).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.config.base import for_round
from pipeline.config.policy import Dpo
from pipeline.core.atomic import save_array
from pipeline.core.progress import Progress
from pipeline.grammars.tokenizer import Tokenizer
from pipeline.training.collate import column_dataset, pair_collator
from pipeline.training.cpu_forward import install_lean_forward
from pipeline.training.encode import EncodedPair
from pipeline.training.encoded_file import lengths_of
from pipeline.training.history import DROP, History, history_callback
from pipeline.training.lora import load_weights, padding_id
from pipeline.training.reference import REFERENCE, reference_logps
from pipeline.training.step_weights import counted_steps
from pipeline.training.trackers import Tracking
from pipeline.training.trainer_args import check_processes, on_main, shared_arguments, sorted_steps
from pipeline.training.trl_types import (
    Batch,
    Dataset,
    DpoTrainer,
    FusedOutput,
    PeftModel,
    TrainerClass,
)

if TYPE_CHECKING:
    import torch

COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask")


def dpo_trainer(
    model: PeftModel,
    tokenizer: Tokenizer,
    pairs: Sequence[EncodedPair],
    settings: Dpo,
    *,
    number: int,
    seed: int,
    checkpoint_dir: Path,
    history: History,
    reference_name: str,
    reference_adapter: Path | None = None,
    tracking: Tracking | None = None,
    progress: Progress | None = None,
) -> DpoTrainer:
    """TRL's DPOTrainer for round ``number`` (from 1), with the reference in its dataset.

    ``model`` is policy n - 1 as a PEFT model with a trainable adapter. The reference is the same
    policy unless ``reference_adapter`` names another adapter over the same base. Its
    log-probabilities become columns of the dataset. ``reference_name`` identifies the reference's
    content. ``checkpoint_dir`` stores checkpoints and log-probabilities. Raises ConfigError for
    batch sizes that do not divide, DependencyError for a missing device, and TrainingError for a
    wrong number of processes.
    """
    from trl import DPOConfig

    eta = for_round(settings.eta, number)
    arguments = DPOConfig(
        **shared_arguments(
            settings, "dpo", epochs=for_round(settings.round_epochs, number),
            records=len(pairs), seed=seed, checkpoint_dir=checkpoint_dir, tracking=tracking,
        ),
        beta=settings.beta,
        loss_type=["sigmoid", "sft"],
        loss_weights=[1.0, eta],
        disable_dropout=False,
    )  # fmt: skip
    check_processes(arguments, settings, "dpo")
    lengths = lengths_of(pairs)
    trainer: DpoTrainer = sorted_steps(_recorded_ids_trainer(), lengths, settings, seed)(
        model=model,
        args=arguments,
        train_dataset=column_dataset(pairs, COLUMNS),
        data_collator=pair_collator(padding_id(tokenizer)),
        processing_class=tokenizer,
        callbacks=[history_callback(history)],
    )
    trainer.eta, trainer.eta_of = eta, settings.eta_of
    install_lean_forward(trainer)
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if reference_adapter is not None:
        load_weights(policy, reference_adapter, REFERENCE)
    stored = checkpoint_dir / f"reference-{_content_name(reference_name, pairs)}.npy"
    found_P2 = _stored_logps(stored, len(pairs))
    logps_P2 = pair_reference_logps(trainer, pairs, progress) if found_P2 is None else found_P2
    on_main(trainer, lambda: save_array(stored, logps_P2))
    policy.delete_adapter(REFERENCE)
    trainer.train_dataset = trainer.train_dataset.add_column(
        "ref_chosen_logps", logps_P2[:, 0].tolist()
    ).add_column("ref_rejected_logps", logps_P2[:, 1].tolist())
    # As a constructor argument this would make TRL hash the whole base model for its cache.
    trainer.precompute_ref_logps = True
    return trainer


def pair_reference_logps(
    trainer: DpoTrainer, pairs: Sequence[EncodedPair], progress: Progress | None = None
) -> NDArray[np.float64]:
    """log p (nats) of both sides of every pair under the reference, [P, 2] (chosen, rejected).

    Log-probabilities are summed over model-written tokens.
    """

    def sums(batch: Batch, indices: list[int]) -> list[tuple[float, float]]:
        sides = trainer.compute_ref_log_probs(trainer.model, batch)
        chosen, rejected = (side.float().tolist() for side in sides)
        return list(zip(chosen, rejected, strict=True))

    dataset = column_dataset(pairs, COLUMNS)
    logps = reference_logps(trainer, dataset, lengths_of(pairs), sums, progress)
    return np.array(logps, dtype=np.float64).reshape(len(pairs), 2)


def _recorded_ids_trainer() -> TrainerClass:
    from trl import DPOTrainer

    class RecordedIdsTrainer(DPOTrainer):
        """DPOTrainer that keeps the sampled ids and logs the terms of the loss."""

        def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
            return dataset  # tokenizing the text again would not reproduce the sampled ids

        def _compute_loss(
            self, model: PeftModel, inputs: Batch, return_outputs: bool
        ) -> torch.Tensor | tuple[torch.Tensor, object]:
            pairs, chosen_tokens = _count(inputs)
            step = self.step_counts
            of_pairs = 1.0 if step is None else step.share_of_records(pairs)
            if self.eta_of == "sum":  # TRL's mean over tokens, times the tokens of a pair
                of_tokens = of_pairs * chosen_tokens / pairs
            else:
                of_tokens = 1.0 if step is None else step.share_of_tokens(chosen_tokens)
            self.loss_weights = [of_pairs, self.eta * of_tokens]
            recorder = _OutputRecorder(model)
            result: torch.Tensor | tuple[torch.Tensor, object] = super()._compute_loss(
                recorder, inputs, return_outputs
            )
            metrics = self._metrics["train" if self.model.training else "eval"]
            tokens = inputs["completion_mask"][:, 1:].sum(1).float()
            # The outputs of the pass that computed the loss: logging needs no second pass.
            half = tokens.size(0) // 2
            nll = -recorder.last.log_probs[:half].detach().sum() / tokens[:half].sum()
            loss = (result[0] if isinstance(result, tuple) else result).detach()
            terms = [
                nll * of_tokens,
                loss - self.loss_weights[1] * nll,
                *(part.mean() * of_pairs for part in tokens.chunk(2)),
            ]
            sft, preference, chosen, rejected = (
                self.accelerator.gather(term).mean().item() for term in terms
            )
            metrics["loss/sft"].append(sft)
            metrics["loss/dpo"].append(preference)
            metrics["lengths/chosen"].append(chosen)
            metrics["lengths/rejected"].append(rejected)
            metrics[DROP].append(-metrics["rewards/chosen"][-1] / self.beta * of_pairs)
            return result

    return counted_steps(RecordedIdsTrainer, _count)


def _count(batch: Batch) -> tuple[int, int]:
    """The pairs of a collated batch, and the trained tokens of their chosen sides."""
    mask_2BT = batch["completion_mask"]
    pairs = len(mask_2BT) // 2
    return pairs, int(mask_2BT[:pairs, 1:].sum())


class _OutputRecorder:
    """A model that keeps the outputs of its last call in ``last``."""

    def __init__(self, model: PeftModel) -> None:
        self.model = model

    def __call__(self, **inputs: object) -> FusedOutput:
        self.last = self.model(**inputs)
        return self.last


def _content_name(reference: str, pairs: Sequence[EncodedPair]) -> str:
    digest = hashlib.sha256(reference.encode())
    for pair in pairs:
        for ids in (pair.prompt_ids, pair.chosen_ids, pair.rejected_ids):
            digest.update(np.asarray([len(ids), *ids], dtype=np.int64).tobytes())
        digest.update(bytes(pair.chosen_mask) + bytes(pair.rejected_mask))
    return digest.hexdigest()[:16]


def _stored_logps(path: Path, pairs: int) -> NDArray[np.float64] | None:
    """The log-probabilities of an earlier start of this training; None without usable ones."""
    try:
        logps_P2: NDArray[np.float64] = np.load(path)
    except (OSError, ValueError, EOFError):
        return None
    complete = logps_P2.shape == (pairs, 2) and bool(np.isfinite(logps_P2).all())
    return logps_P2 if complete else None
