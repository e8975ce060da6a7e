"""Tiny models of several architectures, and adapters of every kind that PEFT trains over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.llm.small_models import SIZES, small_tokenizer

Settings = dict[str, Any]
_GPT2: Settings = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 512}


@dataclass(frozen=True)
class Family:
    """An architecture; the names are those of its modules."""

    model_type: str
    sizes: Settings
    projections: tuple[str, ...] = ("q_proj", "v_proj")
    embedding: str = "embed_tokens"
    norm: str = "norm"
    more: Settings = field(default_factory=dict)

    def write(self, directory: Path, *, tied: bool) -> Path:
        """Save a random model, whose logits are far from equal, and its tokenizer."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        tokenizer = small_tokenizer()
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            self.model_type,
            vocab_size=len(tokenizer),
            tie_word_embeddings=tied,
            **self.sizes,
            **self.more,
        )
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.mul_(4)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return directory


LLAMA = Family("llama", SIZES)
QWEN3 = Family("qwen3", SIZES, more={"head_dim": 32})
GEMMA3 = Family("gemma3_text", SIZES, more={"head_dim": 32})  # scales its embeddings
GPT2 = Family("gpt2", _GPT2, ("c_attn",), "wte", "ln_f")  # transposed weights, with biases
MIXTRAL = Family("mixtral", SIZES, more={"num_local_experts": 4})
FAMILIES = {"llama": LLAMA, "qwen3": QWEN3, "gemma3": GEMMA3, "gpt2": GPT2, "mixtral": MIXTRAL}

# Settings of PEFT for a family, besides rank and alpha; ``q`` are its projections.
KINDS: dict[str, Callable[[Family, list[str]], Settings]] = {
    "plain": lambda family, q: {"target_modules": q},
    "dora": lambda family, q: {"target_modules": q, "use_dora": True},
    "rslora": lambda family, q: {"target_modules": q, "use_rslora": True},
    "every linear layer": lambda family, q: {"target_modules": "all-linear"},
    "patterns": lambda family, q: {
        "target_modules": q, "rank_pattern": {q[0]: 2}, "alpha_pattern": {q[0]: 64},
    },
    "pissa": lambda family, q: {"target_modules": q, "init_lora_weights": "pissa"},
    "all biases": lambda family, q: {"target_modules": q, "bias": "all"},
    "bias of LoRA": lambda family, q: {"target_modules": q, "lora_bias": True},
    "saved norm": lambda family, q: {"target_modules": q, "modules_to_save": [family.norm]},
    "saved head": lambda family, q: {"target_modules": q, "modules_to_save": ["lm_head"]},
    "saved embedding": lambda family, q: {
        "target_modules": q, "modules_to_save": [family.embedding],
    },
    "saved both": lambda family, q: {
        "target_modules": q, "modules_to_save": [family.embedding, "lm_head"],
    },
    "embedding": lambda family, q: {"target_modules": [*q, family.embedding]},
    "embedding alone": lambda family, q: {"target_modules": [family.embedding]},
    "head": lambda family, q: {"target_modules": [*q, "lm_head"]},
    "both": lambda family, q: {"target_modules": [*q, family.embedding, "lm_head"]},
    "embedding with dora": lambda family, q: {
        "target_modules": [*q, family.embedding], "use_dora": True,
    },
    "embedding, kept tied": lambda family, q: {
        "target_modules": [*q, family.embedding], "ensure_weight_tying": True,
    },
    "tokens": lambda family, q: {
        "target_modules": q, "trainable_token_indices": {family.embedding: [5, 6, 7]},
    },
}  # fmt: skip


def policy_of_kind(kind: str, family: Family, base: Path, directory: Path) -> Any:
    """A policy over ``base`` of which everything that PEFT would train is changed; also saved."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    settings = KINDS[kind](family, list(family.projections))
    policy = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.05)
    policy.save_pretrained(directory)
    return policy


def adapter_of_kind(kind: str, family: Family, base: Path, directory: Path) -> Path:
    policy_of_kind(kind, family, base, directory)
    return directory
