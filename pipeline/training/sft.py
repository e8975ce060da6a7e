"""Supervised fine-tuning: policy 0 (TeaRAG, arXiv 2511.05385, eq. 4), through TRL's SFTTrainer.

With ``dpo.loss: sft`` it trains the rounds too, on their chosen trajectories: rejection-sampling
fine-tuning (RAFT, arXiv 2304.06767), which is eq. 15 without L_DPO. The weight eta would only scale
the gradient, which AdamW undoes, and is left out.

Input: encoded examples and a PEFT model. Output: a trainer whose model holds the trained adapter.
Eq. 4, L_SFT = - sum over model-written tokens of log p(token | before), is averaged over the
unmasked tokens of an optimizer step (TRL's "nll"). This departure from the paper's sum only scales
the gradient, and it makes the learning rate independent of trajectory lengths.
"""

from __future__ import annotations

from pipeline.config.policy import Dpo, Sft
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.encode import EncodedSft
from pipeline.training.encoded_file import EncodedFile
from pipeline.training.trainer_args import Training, build_trainer, shared_arguments
from pipeline.training.trl_types import PeftModel, TrlTrainer

COLUMNS = ["input_ids", "labels"]


def sft_trainer(
    model: PeftModel,
    tokenizer: Tokenizer,
    examples: EncodedFile[EncodedSft],
    settings: Sft | Dpo,
    training: Training,
    number: int = 0,
) -> TrlTrainer:
    """TRL's SFTTrainer over prepared ids and labels.

    ``model`` is a PEFT model with a trainable adapter. ``settings`` are those of policy 0, or those
    of round ``number`` (from 1) with loss "sft". Raises what `shared_arguments` and
    `build_trainer` raise.
    """
    from trl import SFTConfig, SFTTrainer

    block, epochs = "dpo" if number else "sft", settings.passes(number)
    arguments = SFTConfig(
        **shared_arguments(settings, block, training, epochs=epochs, records=len(examples)),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    return build_trainer(
        SFTTrainer, arguments, model, tokenizer, examples, COLUMNS, settings, block, training
    )


def heldout_loss(trainer: TrlTrainer, examples: EncodedFile[EncodedSft]) -> dict[str, float]:
    """Mean losses (nats) and token accuracies of held-out examples; empty without examples."""
    if not examples:
        return {}
    longest_first = sorted(range(len(examples)), key=lambda at: -examples.lengths[at])
    metrics = trainer.evaluate(examples.dataset.select_columns(COLUMNS).select(longest_first))
    return {
        name: float(metrics[f"eval_{name}"])
        for name in ("loss", "mean_token_accuracy")
        if f"eval_{name}" in metrics
    }
