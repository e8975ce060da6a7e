"""Contradictions between limits of tokens, and between sizes of batches.

Input: settings. Output: a sentence for each limit that contradicts another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.config import Config, Trainer
from pipeline.core.errors import ConfigError

_CHARACTERS_PER_TOKEN = 4.0  # of English text; a tokenizer is not loaded for this
_QUESTION_TOKENS = 50  # with the marks of a chat template


def roll_out_faults(settings: Config) -> Iterator[str]:
    """Compare the limits of a trajectory with the engine, and the rank of a loaded adapter."""
    from pipeline.llm.adapter_files import LORA_RANKS

    engine, sampling = settings.engine, settings.sampling
    if sampling.max_total_tokens >= engine.max_model_len:
        yield (
            f"sampling.max_total_tokens is {sampling.max_total_tokens}, and engine.max_model_len "
            f"is {engine.max_model_len}, prompt included; raise engine.max_model_len, or lower "
            "sampling.max_total_tokens"
        )
    if engine.kind == "vllm" and engine.adapters == "loaded" and settings.lora.r > LORA_RANKS[-1]:
        yield (
            f"lora.r is {settings.lora.r}, and vLLM loads adapters of at most rank "
            f"{LORA_RANKS[-1]}; set engine.adapters to merged, or lower lora.r"
        )


def over_long_faults(settings: Config) -> Iterator[str]:
    """Compare the longest trajectory with the training of a round."""
    block, trainer = settings.objective, settings.trainer
    longest = settings.sampling.max_total_tokens + _prompt_tokens(settings)
    longest = min(settings.engine.max_model_len, longest)
    if trainer.over_long == "refuse" and trainer.max_length < longest:
        yield (
            f"{block}.max_length is {trainer.max_length}, and a trajectory can have {longest} "
            f"tokens with its prompt; {block}.over_long: refuse would stop there; raise "
            f"{block}.max_length, or set {block}.over_long to drop"
        )


def trainer_faults(block: str, trainer: Trainer) -> Iterator[str]:
    """Compare the batch of an optimizer step with the batches of the processes."""
    from pipeline.training.collate import accumulation_steps

    try:
        accumulation_steps(
            trainer.batch_size, trainer.per_device_batch_size, trainer.processes, block
        )
    except ConfigError as error:
        yield str(error)


def _prompt_tokens(settings: Config) -> int:
    written = len(settings.prompt.system) + len(settings.prompt.user)
    return int(written / _CHARACTERS_PER_TOKEN) + _QUESTION_TOKENS
