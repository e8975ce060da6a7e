"""The parts of the GPU check, with their measurements, requirements and time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from pipeline.core.errors import InputError
from pipeline.core.gpus import compiler_fault

_TRAINING = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "pydantic")
_MODEL = ("torch", "transformers", "pydantic")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: a function ``module.function`` below this package.

    ``packages`` are the modules that it imports. With ``cuda`` a CPU cannot run it. ``limit`` is in
    seconds; typical durations are far below.
    """

    name: str
    title: str
    function: str
    packages: tuple[str, ...]
    cuda: bool = False
    limit: int = 180
    model: str = "llama-8b"

    def missing(self, device: str) -> str | None:
        """Why the part cannot run here; None when it can."""
        absent = [package for package in self.packages if find_spec(package) is None]
        if absent:
            return f"missing: {', '.join(absent)}"
        if device == "cuda" and "vllm" in self.packages and (fault := compiler_fault()):
            return fault
        return "needs a CUDA device" if self.cuda and device == "cpu" else None


# The most valuable first, because the budget may end before the last.
PARTS: tuple[Part, ...] = (
    Part("sft-8b", "SFT, 8 B, 16 × 2,500 tokens", "training.sft", _TRAINING),
    Part("dpo-8b", "DPO, 8 B, 2 pairs × 8,192 tokens", "training.dpo", _TRAINING),
    Part("dpo-mixed", "DPO, 8 B, 2 pairs of about 1,000 tokens a side, packed and padded",
         "training.dpo_mixed", _TRAINING),
    Part("margin", "DPO's margin and loss at step one, adapter in use", "training.margin",
         _TRAINING),
    Part("vllm-lora", "vLLM with a LoRA adapter: tokens/s, log-probabilities against trainer",
         "policies.vllm_lora", (*_TRAINING, "vllm"), cuda=True, limit=420),
    Part("rollout", "sampling with engine, FAISS, embedder and reranker on one GPU",
         "rollout.rollout",
         (*_TRAINING, "faiss", "sentence_transformers", "FlagEmbedding", "luigi", "tenacity"),
         limit=420),
    Part("logprobs", "log-probabilities: transformers engine against trainer", "policies.logprobs",
         _TRAINING, limit=240),
    Part("resume", "training killed after step 3 of 6 and continued", "training.resume", _TRAINING),
    Part("kill", "kill -9 of an engine leaves nothing on the GPU", "processes.kill", _MODEL,
         cuda=True, limit=180),
    Part("grpo-8b", "GRPO, 8 B, 4 × 4,096 tokens", "training.grpo", _TRAINING),
    Part("faiss-gpu", "FAISS on the GPU: exact and IVF-PQ, 768 and 1,024 dimensions",
         "encoders.faiss_gpu",
         ("torch", "faiss", "pydantic"), cuda=True, limit=180, model="e5-base"),
    Part("embedder", "E5-base: fp32 and bf16", "encoders.embedder",
         (*_MODEL, "sentence_transformers"), model="e5-base"),
    Part("reranker-flag", "BGE-reranker-v2-m3 by FlagEmbedding", "encoders.reranker_flag",
         (*_MODEL, "FlagEmbedding"), model="bge-reranker"),
    Part("reranker-cross", "BGE-reranker-v2-m3 by sentence-transformers", "encoders.reranker_cross",
         (*_MODEL, "sentence_transformers"), model="bge-reranker"),
    Part("adapters", "adapters after 50 steps: merged in bf16, unmerged, fp32", "policies.adapters",
         _TRAINING),
    Part("two-engines", "a second vLLM engine on the same GPU is refused", "processes.two_engines",
         (*_MODEL, "vllm"), cuda=True, limit=180),
    Part("dpo-4bit", "DPO on 4-bit weights, 8 B, 1 pair × 8,192 tokens", "training.dpo_4bit",
         (*_TRAINING, "bitsandbytes"), cuda=True, limit=180),
    Part("sft-14b", "SFT, 14 B, 16 × 2,500 tokens", "training.sft", _TRAINING, model="qwen-14b"),
    Part("dpo-14b", "DPO, 14 B, 2 pairs × 8,192 tokens", "training.dpo", _TRAINING,
         model="qwen-14b"),
    Part("grpo-14b", "GRPO, 14 B, 4 × 4,096 tokens", "training.grpo", _TRAINING, model="qwen-14b"),
)  # fmt: skip


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts with these names or name prefixes (``sft``: both sizes), in table order.

    Raises InputError for a name that no part has.
    """
    unknown = [name for name in names if not any(_has(part, name) for part in PARTS)]
    if unknown:
        known = ", ".join(part.name for part in PARTS)
        raise InputError(f"--parts: no part {unknown[0]!r}; parts: {known}")
    return [part for part in PARTS if not names or any(_has(part, name) for name in names)]


def _has(part: Part, name: str) -> bool:
    return part.name == name or part.name.startswith(f"{name}-")
