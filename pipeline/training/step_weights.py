"""The share of a micro-batch in its optimizer step; losses do not depend on micro-batches.

Trainer averages the losses of a step's micro-batches. Micro-batches can differ in size: in the last
step of an epoch, and nearly always in their token counts. That average then differs from the mean
over the whole step. `counted_steps` counts records and tokens of each step before its first
micro-batch, over all processes. A loss times its share of the `StepCounts` then averages to the
mean over the step. (For losses of a model, transformers does the same with ``num_items_in_batch``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.training.trl_types import Batch, TrainerClass

if TYPE_CHECKING:
    import torch

Count = Callable[[Batch], "tuple[int, int]"]


@dataclass(frozen=True)
class StepCounts:
    """Records and tokens of an optimizer step over all processes.

    ``micro_batches`` is the number of losses that Trainer averages, over all processes.
    """

    records: int
    tokens: int
    micro_batches: int

    def share_of_records(self, records: int) -> float:
        """The factor of a mean over ``records`` records of one micro-batch."""
        return records * self.micro_batches / self.records

    def share_of_tokens(self, tokens: int) -> float:
        """The factor of a mean over ``tokens`` tokens of one micro-batch."""
        return tokens * self.micro_batches / max(self.tokens, 1)


def counted_steps(trainer_class: TrainerClass, count: Count) -> TrainerClass:
    """A subclass of a trainer with the counts of the current step in ``step_counts``.

    ``count`` gives records and tokens of a collated micro-batch. Outside of training,
    ``step_counts`` is None.
    """

    class CountedSteps(trainer_class):
        step_counts: StepCounts | None = None

        def get_batch_samples(
            self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
        ) -> tuple[Sequence[Batch], object]:
            import torch

            batches: Sequence[Batch]
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
            counts = [count(batch) for batch in batches]
            sums_3 = torch.tensor([*map(sum, zip(*counts, strict=True)), len(batches)]).to(device)
            self.step_counts = None
            if batches:
                total = self.accelerator.reduce(sums_3, reduction="sum").tolist()
                self.step_counts = StepCounts(*total)
            return batches, items

    CountedSteps.__name__ = trainer_class.__name__
    return CountedSteps
