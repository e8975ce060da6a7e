"""Export of the tiny reader as a model directory that any inference engine can load.

Input: the work directory of a training. Output: `config.json`, `model.safetensors` (fp32),
`generation_config.json` and the tokenizer's files in the model directory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError

WEIGHTS = "model.safetensors"


def export(work: Path, output: Path) -> dict[str, Any]:
    """Write the model directory.

    Args:
        work: holds `state.pt` and the tokenizer.
        output: model directory; created if missing.

    Returns:
        The training progress of the state: phase, step, total steps, tokens, seconds.

    Raises:
        InputError: `work` has no `state.pt`.
    """
    import torch
    from transformers import AutoTokenizer, GenerationConfig

    from benchmarks.tiny_reader.model import new_model

    if not (work / "state.pt").exists():
        raise InputError(
            f"{work}: state.pt is missing; train first, or wait for the first checkpoint"
        )
    state = torch.load(work / "state.pt", weights_only=True)
    tokenizer = AutoTokenizer.from_pretrained(work, trust_remote_code=False)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model = new_model(len(tokenizer), eos=eos, pad=pad, seed=0)
    model.load_state_dict(state["model"])
    # Packed attention is used for training only.
    model.config._attn_implementation = "sdpa"
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output, save_jinja_files=False)
    (output / WEIGHTS).chmod(0o644)
    progress: dict[str, Any] = state["place"]
    return progress


def checksum(model: Path) -> str:
    """SHA-256 of the weights file."""
    return hashlib.sha256((model / WEIGHTS).read_bytes()).hexdigest()
