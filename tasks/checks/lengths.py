"""Lengths and batches: whether the limits of tokens and the sizes of batches go together."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pipeline.config import Config
from pipeline.core.errors import ConfigError
from pipeline.llm.vllm_engine import LORA_RANKS
from pipeline.training.collate import accumulation_steps
from tasks.checks.uses import ROLL_OUTS, plain, trainers

_CHARACTERS_PER_TOKEN = 4.0  # of English text; a tokenizer is not loaded for this
_QUESTION_TOKENS = 50  # with the marks of a chat template


def length_faults(settings: Config, stages: Collection[str]) -> Iterator[str]:
    """A sentence for each limit that another one makes impossible."""
    names = plain(stages)
    engine, sampling = settings.engine, settings.sampling
    prompt = int(len(settings.prompt.system) / _CHARACTERS_PER_TOKEN) + _QUESTION_TOKENS
    if names & ROLL_OUTS:
        if sampling.max_total_tokens >= engine.max_model_len:
            yield (
                f"sampling.max_total_tokens is {sampling.max_total_tokens}, and engine.max_model_len is "
                f"{engine.max_model_len}, prompt included; raise engine.max_model_len, or lower "
                "sampling.max_total_tokens"
            )
        elif prompt + sampling.max_segment_tokens > engine.max_model_len:
            yield (
                f"engine.max_model_len is {engine.max_model_len}; the prompt (about {prompt} tokens) and "
                f"one segment (sampling.max_segment_tokens, {sampling.max_segment_tokens}) need more; "
                "raise it"
            )
        if (
            engine.kind == "vllm"
            and engine.adapters == "loaded"
            and settings.lora.r > LORA_RANKS[-1]
        ):
            yield (
                f"lora.r is {settings.lora.r}, and vLLM loads adapters of at most rank {LORA_RANKS[-1]}; "
                "set engine.adapters to merged, or lower lora.r"
            )
    longest = min(engine.max_model_len, sampling.max_total_tokens + prompt)
    for block, trainer in trainers(settings, names):
        if block != "sft" and trainer.over_long == "refuse" and trainer.max_length < longest:
            yield (
                f"{block}.max_length is {trainer.max_length}, and a trajectory can have {longest} tokens "
                f"with its prompt, which {block}.over_long: refuse would stop at; raise {block}.max_length, "
                f"or set {block}.over_long to drop"
            )
        try:
            accumulation_steps(
                trainer.batch_size, trainer.per_device_batch_size, trainer.processes, block
            )
        except ConfigError as error:
            yield str(error)
