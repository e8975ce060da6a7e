"""How many training processes start on the GPUs of a machine."""

from typing import Any

import pytest

from pipeline.config import Sft
from pipeline.config.machine_choices import processes_on
from pipeline.training.collate import accumulation_steps


def trainer(**changes: Any) -> Sft:
    values = {"learning_rate": 1e-4, "batch_size": 48, "per_device_batch_size": 2, "processes": 4}
    return Sft(**{**values, **changes})


@pytest.mark.parametrize(("gpus", "expected"), [(0, 4), (1, 1), (2, 2), (3, 2), (4, 4), (8, 4)])
def test_each_process_has_a_gpu_and_the_micro_batches_fill_the_batch(
    gpus: int, expected: int
) -> None:
    count = processes_on(trainer(), gpus)
    assert count == expected
    micro_batches = accumulation_steps(48, per_device=2, processes=count, block="sft")
    assert 2 * count * micro_batches == 48
