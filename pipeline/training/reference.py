"""Log-probabilities under the frozen reference policy, computed once before training.

Input: encoded records and a TRL trainer whose model holds the reference as a second adapter.
Output: one value for each record, in the order of the records. Afterwards the reference adapter can
be deleted, so that training keeps one copy of the base weights and one adapter in memory and needs
no forward pass of the reference. DPO (TeaRAG, arXiv 2511.05385, eq. 16) takes a sum per side, GRPO
(ProGraph-R1, eq. 16) one value per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.core.progress import Progress
from pipeline.training.trl_types import Batch, TrlTrainer

REFERENCE = "ref"  # the name under which TRL looks for a frozen reference adapter

Value = TypeVar("Value")


def reference_logps(
    trainer: TrlTrainer,
    lengths: Sequence[int],
    batch_logps: Callable[[Batch, list[int]], Sequence[Value]],
    progress: Progress | None = None,
) -> list[Value]:
    """Log-probabilities (nats) of every row of the trainer's data set, in order.

    ``lengths`` are the tokens of each row. ``batch_logps`` maps a collated batch and its row
    indices to one value per row, under the reference. Batches hold rows of similar length; each
    process computes every n-th batch, and receives the results of all.
    Dropout is off. ``progress`` counts the records of this process.
    """
    from accelerate.utils import gather_object

    size = trainer.args.per_device_train_batch_size
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    own = batches[trainer.args.process_index :: trainer.args.world_size]
    progress = progress or Progress()
    progress.start(sum(map(len, own)), "records under the reference")
    values: list[tuple[int, Value]] = []
    trainer.model.eval()
    for indices in own:
        rows = [trainer.train_dataset[at] for at in indices]
        batch = trainer._prepare_inputs(trainer.data_collator(rows))
        values += zip(indices, batch_logps(batch, indices), strict=True)
        progress.advance(len(indices))
    by_index: dict[int, Value] = dict(gather_object(values))
    return [by_index[index] for index in range(len(lengths))]
