"""Batch order and padding for the TRL trainers.

Input: encoded records. Output: the order in which a trainer reads them, and the tensors of a batch.
Every optimizer step sees the same records as under plain shuffling. Only *inside* a step are they
sorted by length, so that micro-batches hold records of similar length and little padding, while the
losses stay the same as with shuffled batches. (Trainer's ``group_by_length`` groups whole steps by
length, which changes them.) With several processes, each gets about as many tokens of a step,
because none goes on before the last is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError
from pipeline.llm.tokenizer import Tokenizer
from pipeline.training.trl_types import Batch, Collator, DatasetRow

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class StepSortedSampler:
    """Indices of one epoch: shuffled by seed and epoch, sorted by length inside each step.

    Args:
        lengths: the number of tokens of every record; a pair counts its longer side.
        step: records per optimizer step, over all devices.
        seed: determines the order together with the epoch.
        per_device: records of a micro-batch.
        processes: number of micro-batches that run concurrently; they follow one another in the
            order.
        tokens: the same, but a pair counts both sides; by default ``lengths``.
        groups: a name per record. Records of one name are shuffled as a unit and share an optimizer
            step, unless the step ends within them.
    """

    lengths: Sequence[int]
    step: int
    seed: int
    per_device: int = 1
    processes: int = 1
    tokens: Sequence[int] = ()
    groups: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.tokens = self.tokens or self.lengths
        members: dict[str, list[int]] = {}
        for index, name in enumerate(self.groups):
            members.setdefault(name, []).append(index)
        self.group_members = list(members.values())
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch; Trainer calls this at the start of every epoch and after a resume."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        units = len(self.group_members) or len(self.lengths)
        order: list[int] = torch.randperm(units, generator=generator).tolist()
        if self.group_members:
            order = [index for group in order for index in self.group_members[group]]
        for start in range(0, len(order), self.step):
            batch = order[start : start + self.step]
            # Longest first: if memory runs out, it does so in the first micro-batch.
            batch.sort(key=lambda index: -self.lengths[index])
            concurrent = self.per_device * self.processes
            whole = len(batch) - len(batch) % concurrent
            shares = self._shares(batch[:whole])
            for first in range(0, whole // self.processes, self.per_device):
                for share in shares:
                    yield from share[first : first + self.per_device]
            yield from batch[whole:]

    def _shares(self, records: Sequence[int]) -> list[list[int]]:
        """Each process's share of sorted records: as many as of the others, and about the tokens.

        The largest record goes first, each to the process with the fewest tokens.
        """
        if self.processes == 1:
            return [list(records)]
        shares: list[list[int]] = [[] for _ in range(self.processes)]
        loads, most = [0] * self.processes, len(records) // self.processes
        for index in sorted(records, key=lambda index: -self.tokens[index]):
            open_ones = [number for number, share in enumerate(shares) if len(share) < most]
            number = min(open_ones, key=lambda number: loads[number])
            shares[number].append(index)
            loads[number] += self.tokens[index]
        return [sorted(share, key=lambda index: -self.lengths[index]) for share in shares]


def accumulation_steps(batch_size: int, per_device: int, processes: int, block: str) -> int:
    """Micro-batches per optimizer step, so that ``batch_size`` holds over all devices.

    Raises ConfigError when ``batch_size`` is not a multiple of ``per_device * processes``.
    """
    concurrent = per_device * processes
    if batch_size % concurrent:
        raise ConfigError(
            f"{block}.batch_size is {batch_size}; expected a multiple of "
            f"{block}.per_device_batch_size x {block}.processes = {per_device} x {processes} = "
            f"{concurrent}; change one of them"
        )
    return batch_size // concurrent


def padding_id(tokenizer: Tokenizer) -> int:
    """The padding id of a tokenizer of `pipeline.training.lora.load_tokenizer`."""
    assert tokenizer.pad_token_id is not None
    return tokenizer.pad_token_id


def trajectory_collator(pad_token_id: int) -> Collator:
    """A collator for GRPO: rows of trajectories to the tensors of TRL's loss [B, T].

    TRL pads prompts on the left, which the lean CPU forward pass does not support. The "prompt" of
    a batch is therefore the first token alone, and the rest of the prompt belongs to the
    completion, where ``tool_mask`` excludes it. Everything is padded on the right.
    """
    import torch
    from trl.trainer.utils import pad

    def pad_right(sequences: list[torch.Tensor], value: float) -> torch.Tensor:
        result: torch.Tensor = pad(sequences, value, "right")
        return result

    def padded(
        rows: Sequence[DatasetRow], name: str, value: float, dtype: torch.dtype
    ) -> torch.Tensor:
        values = [[value] * (len(row["prompt_ids"]) - 1) + row[name] for row in rows]
        return pad_right([torch.tensor(numbers, dtype=dtype) for numbers in values], value)

    def collate(rows: Sequence[DatasetRow]) -> Batch:
        sequences = [torch.tensor(row["prompt_ids"] + row["completion_ids"]) for row in rows]
        batch = {
            "prompt_ids": torch.stack([ids[:1] for ids in sequences]),
            "prompt_mask": torch.ones(len(rows), 1, dtype=torch.long),
            "completion_ids": pad_right([ids[1:] for ids in sequences], pad_token_id),
            "completion_mask": pad_right([torch.ones_like(ids[1:]) for ids in sequences], 0),
            "tool_mask": padded(rows, "mask", 0, torch.long),
            "advantages": padded(rows, "advantages", 0.0, torch.float32),
            "old_per_token_logps": padded(rows, "old_logprobs", 0.0, torch.float32),
        }
        if "reference" in rows[0]:
            batch["ref_per_token_logps"] = padded(rows, "reference", 0.0, torch.float32)
        return batch

    return collate
