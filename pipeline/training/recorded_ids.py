"""Preference training with TRL on recorded token ids; only tokens of the model carry loss.

TRL alone tokenizes the texts again, and trains on every token after the prompt, retrieved texts
included. This file needs nothing of steep: `steep export pairs --to trl` copies it beside the
pairs::

    pairs = load_dataset("path/to/the/export", split="train")
    collator = RecordedIdsCollator(pad_token_id=tokenizer.pad_token_id)
    RecordedIdsTrainer(policy, args=DPOConfig(max_length=None), train_dataset=pairs,
                       data_collator=collator, processing_class=tokenizer).train()

``loss_type=["sigmoid", "sft"], loss_weights=[1.0, eta]`` of DPOConfig is DPO with an SFT term on
the chosen side (TeaRAG, arXiv 2511.05385, eq. 15-17).
"""

from __future__ import annotations

from typing import Any

import torch
from trl import DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference

_MASKS = ("chosen_mask", "rejected_mask")


class RecordedIdsCollator(DataCollatorForPreference):
    """Rows with ids and masks of both sides to ``input_ids`` and masks [2B, T], chosen half first.

    ``completion_mask`` is 1 on the tokens that the model wrote.
    """

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super().torch_call(examples)
        mask_2BT = torch.zeros_like(batch["completion_mask"])
        sides = [(row, row[side]) for side in _MASKS for row in examples]
        for index, (row, written) in enumerate(sides):
            start = len(row["prompt_ids"])
            mask_2BT[index, start : start + len(written)] = torch.tensor(written)
        return batch | {"completion_mask": mask_2BT}


class RecordedIdsTrainer(DPOTrainer):
    """DPOTrainer over rows that have their token ids already."""

    _signature_columns: list[str] | None

    def _prepare_dataset(self, dataset: Any, *_: object) -> Any:
        return dataset  # tokenizing the text again would not reproduce the sampled ids

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            self._signature_columns = [*(self._signature_columns or ()), *_MASKS]
