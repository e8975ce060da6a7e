"""One round of preference training (TeaRAG, arXiv 2511.05385, eq. 15-17), through TRL.

Input: encoded pairs with token masks, and policy n - 1 as a PEFT model. Output: a DPOTrainer whose
model becomes policy n. `preference_loss` is the loss; TRL runs the model, logs its metrics and
takes the steps. Unlike in TRL's default, the dropout of LoRA stays on (the paper trains both stages
with 0.1); the reference has none.

The reference's log-probabilities are computed once, before training
(`pipeline.training.reference`), and stored under a key of their content (base, adapter and ids,
never a file path).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.config.base import for_round
from pipeline.config.policy import Dpo
from pipeline.core.atomic import save_array
from pipeline.core.progress import Progress
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.collate import padding_id
from pipeline.training.encode import EncodedPair
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.history import DROP
from pipeline.training.lora import load_weights
from pipeline.training.reference import REFERENCE, reference_logps
from pipeline.training.step_weights import counted_steps
from pipeline.training.trainer_args import Training, build_trainer, on_main, shared_arguments
from pipeline.training.trl_types import (
    Batch,
    DpoTrainer,
    FusedOutput,
    PeftModel,
    TrainerClass,
)

if TYPE_CHECKING:
    import torch

COLUMNS = ["prompt_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask"]


class PreferenceLoss(NamedTuple):
    """A loss and its two terms; ``sft`` is without its weight eta."""

    total: torch.Tensor
    dpo: torch.Tensor
    sft: torch.Tensor


def preference_loss(
    logps_2BT: torch.Tensor,
    mask_2BT: torch.Tensor,
    reference: tuple[torch.Tensor, torch.Tensor],
    *,
    beta: float,
    eta: float,
    eta_of: Literal["sum", "mean"],
    kind: Literal["sigmoid", "apo_zero"] = "sigmoid",
    pair_share: float = 1.0,
    token_share: float = 1.0,
) -> PreferenceLoss:
    """DPO with an SFT term on the chosen side (TeaRAG, arXiv 2511.05385, eq. 15-17).

    For B pairs of a preferred trajectory w and a rejected l::

        L_DPO = -1/B sum log sigmoid(beta [(log p(w) - log ref(w)) - (log p(l) - log ref(l))])
        L     = L_DPO + eta L_SFT(w)

    where log p is the sum over model-written tokens only, in both terms and on both sides. With
    ``eta_of`` "sum" L_SFT is -1/B sum log p(w), as eq. 15 prints it; with "mean" it is the mean
    over the same tokens, which is smaller by their number per pair.

    With ``kind`` "apo_zero" the preference term is APO-zero (arXiv 2408.06266, eq. 7). It is
    unpaired: each side has a term of its own, which the other side does not change::

        L_APO = 1/B sum [1 - sigmoid(beta (log p(w) - log ref(w)))
                         + sigmoid(beta (log p(l) - log ref(l)))]

    Args:
        logps_2BT: log p (nats) of each token, 0 outside the mask; the chosen sides come first.
        mask_2BT: 1 on model-written tokens.
        reference: log ref of the chosen and of the rejected sides, [B] each.
        pair_share, token_share: the factors that turn the means over a micro-batch into its share
            of the means over an optimizer step (`pipeline.training.step_weights`).
    """
    from torch.nn.functional import logsigmoid

    pairs = len(mask_2BT) // 2
    chosen_B, rejected_B = (
        logps_B - reference_B
        for logps_B, reference_B in zip(logps_2BT.sum(1).chunk(2), reference, strict=True)
    )
    if kind == "apo_zero":
        losses_B = 1 - (beta * chosen_B).sigmoid() + (beta * rejected_B).sigmoid()
    else:
        losses_B = -logsigmoid(beta * (chosen_B - rejected_B))
    dpo = losses_B.mean() * pair_share
    written_BT = mask_2BT[:pairs].bool()
    mean = -logps_2BT[:pairs][written_BT].mean()
    of_sum = pair_share * int(written_BT.sum()) / pairs  # a mean over tokens as a sum per pair
    weight = of_sum if eta_of == "sum" else token_share
    return PreferenceLoss(dpo + mean * (eta * weight), dpo, mean * weight)


def dpo_trainer(
    model: PeftModel,
    tokenizer: Tokenizer,
    pairs: EncodedFile[EncodedPair],
    settings: Dpo,
    training: Training,
    *,
    number: int,
    reference_name: str,
    reference_adapter: Path | None = None,
) -> DpoTrainer:
    """TRL's DPOTrainer for round ``number`` (from 1), with the reference in its dataset.

    ``model`` is policy n - 1 as a PEFT model with a trainable adapter. The reference is the same
    policy unless ``reference_adapter`` names another adapter over the same base. Its
    log-probabilities become columns of the dataset. ``reference_name`` identifies the reference's
    content. Raises what `shared_arguments` and `build_trainer` raise.
    """
    from trl import DPOConfig

    from pipeline.training.recorded_ids import RecordedIdsCollator

    epochs = for_round(settings.round_epochs, number)
    arguments = DPOConfig(
        **shared_arguments(settings, "dpo", training, epochs=epochs, records=len(pairs)),
        max_length=None,
        beta=settings.beta,
        disable_dropout=False,
    )
    assert settings.loss != "sft", "pipeline.training.sft trains the chosen sides alone"
    loss = partial(
        preference_loss,
        beta=settings.beta,
        eta=for_round(settings.eta, number),
        eta_of=settings.eta_of,
        kind=settings.loss,
    )
    trainer: DpoTrainer = build_trainer(
        _preference_trainer(loss),
        arguments, model, tokenizer, pairs, COLUMNS, settings, "dpo", training,
        data_collator=RecordedIdsCollator(pad_token_id=padding_id(tokenizer)),
    )  # fmt: skip
    policy = trainer.accelerator.unwrap_model(trainer.model)
    if reference_adapter is not None:
        load_weights(policy, reference_adapter, REFERENCE)
    stored = training.checkpoint_dir / f"reference-{_content_name(reference_name, pairs)}.npy"
    logps_P2 = _stored_logps(stored, len(pairs))
    if logps_P2 is None:
        logps_P2 = pair_reference_logps(trainer, pairs, training.history.progress)
    on_main(trainer, lambda: save_array(stored, logps_P2))
    policy.delete_adapter(REFERENCE)
    trainer.train_dataset = trainer.train_dataset.add_column(
        "ref_chosen_logps", logps_P2[:, 0].tolist()
    ).add_column("ref_rejected_logps", logps_P2[:, 1].tolist())
    # As a constructor argument this would make TRL hash the whole base model for its cache.
    trainer.precompute_ref_logps = True
    return trainer


def pair_reference_logps(
    trainer: DpoTrainer, pairs: EncodedFile[EncodedPair], progress: Progress | None = None
) -> NDArray[np.float64]:
    """log p (nats) of both sides of every pair under the reference, [P, 2] (chosen, rejected).

    Log-probabilities are summed over model-written tokens.
    """

    def sums(batch: Batch, indices: list[int]) -> list[tuple[float, float]]:
        sides = trainer.compute_ref_log_probs(trainer.model, batch)
        chosen, rejected = (side.float().tolist() for side in sides)
        return list(zip(chosen, rejected, strict=True))

    logps = reference_logps(trainer, pairs.lengths, sums, progress)
    return np.array(logps, dtype=np.float64).reshape(len(pairs), 2)


def _preference_trainer(loss_of: Callable[..., PreferenceLoss]) -> TrainerClass:
    from pipeline.training.recorded_ids import RecordedIdsTrainer

    class PreferenceTrainer(RecordedIdsTrainer):
        """A trainer with the loss ``loss_of``, which logs its terms."""

        def _compute_loss(
            self, model: PeftModel, inputs: Batch, return_outputs: bool
        ) -> torch.Tensor | tuple[torch.Tensor, object]:
            recorder = _OutputRecorder(model)
            result: torch.Tensor | tuple[torch.Tensor, object]
            # TRL runs the model and logs its metrics; its loss is not used.
            result = super()._compute_loss(recorder, inputs, return_outputs)
            pairs, chosen_tokens = _count(inputs)
            step = self.step_counts
            of_pairs = 1.0 if step is None else step.share_of_records(pairs)
            mask_2BT = inputs["completion_mask"][:, 1:]
            loss = loss_of(
                recorder.last.log_probs,
                mask_2BT,
                (inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]),
                pair_share=of_pairs,
                token_share=1.0 if step is None else step.share_of_tokens(chosen_tokens),
            )
            chosen, rejected = (part.mean() * of_pairs for part in mask_2BT.sum(1).float().chunk(2))
            logged = {
                "loss/sft": loss.sft, "loss/dpo": loss.dpo,
                "lengths/chosen": chosen, "lengths/rejected": rejected,
            }  # fmt: skip
            metrics = self._metrics["train" if self.model.training else "eval"]
            for name, value in logged.items():
                metrics[name].append(self.accelerator.gather(value.detach()).mean().item())
            metrics[DROP].append(-metrics["rewards/chosen"][-1] / self.beta * of_pairs)
            return (loss.total, result[1]) if isinstance(result, tuple) else loss.total

    return counted_steps(PreferenceTrainer, _count)


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


def _content_name(reference: str, pairs: EncodedFile[EncodedPair]) -> str:
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
