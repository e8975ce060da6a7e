"""A random two-layer Llama with a byte-level tokenizer on disk, and records to train it on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.models import tokenizer_of
from pipeline.config import Lora
from pipeline.core.record_io import write_parquet
from pipeline.core.records import ChatMessage, Message, Pair, SftExample, Span
from pipeline.core.spans import extend
from pipeline.engine.context import StageContext
from pipeline.training.encode import encode_sft
from pipeline.training.lora import load_base, new_adapter
from tests.smallest import small_config, small_pair


def byte_tokenizer() -> Any:
    """One token per byte with id 3 + rank; the three control tokens of ChatML have ids 0 to 2."""
    return tokenizer_of(3 + 256)


def write_base(directory: Path, width: int = 32, vocabulary: int = 259) -> Path:
    """Save tokenizer and model; ``width`` dimensions, two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    byte_tokenizer().save_pretrained(directory)
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        initializer_range=0.2,
    )
    LlamaForCausalLM(shape).save_pretrained(directory)
    return directory


def example(number: int, observation: str = " e\n</R>\n") -> SftExample:
    """A one-step trajectory with the given observation text."""
    first, last = f"Q{number}: who? <R>", f"S: it is {'x' * (number % 5)}{number}"
    text, spans = "", list[Span]()
    for writer, piece in (("model", first), ("observation", observation), ("model", last)):
        spans = extend(spans, len(piece), writer)
        text += piece
    prompt = [Message("user", f"question {number}")]
    return SftExample(f"e{number}", f"q{number}", 1, prompt, text, spans)


def sampled(
    tokenizer: Any, number: int, observation: str
) -> tuple[list[int], SftExample, list[int], list[Span]]:
    """Prompt ids, the example, its ids with the closing control token, and its token spans."""
    record = example(number, observation)
    ids = encode_sft(tokenizer, [record])[0].input_ids
    start = len(ids) - len(record.completion) - 1
    first, observed, last = (
        record.spans
    )  # one byte is one token, so character spans are token spans
    return ids[:start], record, ids[start:], [first, observed, (last[0], last[1] + 1, "model")]


def pair(tokenizer: Any, number: int, observation: str = " e\n</R>\n") -> Pair:
    """A pair as the sampler records it: ids with the closing control token, spans over tokens."""
    prompt_ids, chosen, chosen_ids, chosen_spans = sampled(tokenizer, number, observation)
    _, rejected, rejected_ids, rejected_spans = sampled(tokenizer, number + 100, observation)
    return small_pair(
        question_id=f"q{number}",
        prompt=chosen.prompt,
        chosen=[ChatMessage("assistant", chosen.completion)],
        rejected=[ChatMessage("assistant", rejected.completion)],
        chosen_id=f"c{number}",
        rejected_id=f"r{number}",
        prompt_ids=prompt_ids,
        chosen_ids=chosen_ids,
        rejected_ids=rejected_ids,
        chosen_spans=chosen_spans,
        rejected_spans=rejected_spans,
    )


def random_adapter(base: Path, settings: Any, block: str, seed: int = 1) -> Any:
    """A policy whose adapter changes the model: both factors are random, no dropout."""
    import torch

    model = new_adapter(load_base(base, settings, block), Lora(dropout=0.0), seed)
    for name, value in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(value, std=0.1)
    return model


def weights_of(output: Path) -> dict[str, Any]:
    """The tensors of the adapter that a stage wrote."""
    from safetensors.torch import load_file

    weights: dict[str, Any] = load_file(output / "adapter" / "adapter_model.safetensors")
    return weights


@dataclass
class Run:
    """Stage contexts over one temporary directory."""

    root: Path
    base: Path

    def context(self, stage: str, name: str, seed: int = 0, **blocks: Any) -> StageContext:
        """A context of ``stage`` that writes to the directory ``name``.

        ``blocks`` update configuration blocks; a value that is not a dictionary replaces the setting.
        """
        common = {"batch_size": 4, "per_device_batch_size": 2, "dtype": "float32"}
        sft = {"learning_rate": 1e-2, **common} | blocks.pop("sft", {})
        dpo = {"learning_rate": 1e-2, "round_epochs": [2], **common} | blocks.pop("dpo", {})
        config = small_config(
            name="t",
            model={"base": str(self.base)},
            prompt={"system": ""},
            **{"sft": sft, "dpo": dpo, **blocks},
        )
        output, checkpoint_dir = self.root / name, self.root / f"{name}.partial"
        output.mkdir(exist_ok=True)
        checkpoint_dir.mkdir(exist_ok=True)
        inputs = {
            "sft-data": self.root / "sft-data",
            "pair": self.root / "pair",
            "score": self.root / "score",
            "policy": self.root / "sft",
            "sft": self.root / "sft",
        }
        return StageContext(
            config=config,
            stage=stage,
            output=output,
            checkpoint_dir=checkpoint_dir,
            inputs={key: path for key, path in inputs.items() if path != output},
            round=1 if stage == "train" else None,
            seed=seed,
        )

    def write_data(self, examples: int = 8, pairs: int = 8) -> None:
        """Write the outputs of the stages sft-data and pair."""
        for name in ("sft-data", "pair"):
            (self.root / name).mkdir(exist_ok=True)
        records = [example(number) for number in range(examples)]
        write_parquet(self.root / "sft-data" / "train.parquet", records, SftExample)
        write_parquet(self.root / "sft-data" / "test.parquet", records[:2], SftExample)
        tokenizer = byte_tokenizer()
        rows = [pair(tokenizer, number) for number in range(pairs)]
        write_parquet(self.root / "pair" / "pairs.parquet", rows, Pair)

    def copy(self, root: Path, pairs: int = 8) -> Run:
        """The same base and data, and policies that were trained, below ``root`` with ``pairs`` pairs."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        run = Run(root, self.base)
        run.write_data(pairs=pairs)
        return run
