"""Part ``vllm-lora``: log-probabilities of a policy by engine and trainer, and in float32."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_check.figures import Figures, Place, reset_peak, timed, watched
from benchmarks.gpu_check.models import BF16_NATS, language_model_directory, shape_of
from benchmarks.gpu_check.training import LORA, adapted, in_file, trainer_of
from pipeline.config import EngineConfig, Grpo, Sft
from pipeline.core.gpus import GIB
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult
from pipeline.llm.open_engine import open_engine
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.grpo import token_reference_logps
from pipeline.training.lora import continue_adapter, load_base, save_adapter
from pipeline.training.trainer_args import Training

_Compared = list[tuple[list[int], GenerationResult]]  # prompts, and the engine's output


def vllm_lora(
    place: Place, figures: Figures, *, layers: int | None = None, new: int | None = None,
    opened: Callable[..., Engine] = open_engine,
) -> None:  # fmt: skip
    """Compare engine and trainer with one unpadded pass of the same weights in float32.

    The engine is vLLM with an adapter beside the weights, in a rehearsal on a CPU transformers.
    Prompts differ in length, so that batches are padded. ``opened`` opens the engine, and ``new``
    is the number of tokens that it writes for each prompt.
    """
    requests, length = (8, 16) if place.tiny else (256, 256)
    new = new or (8 if place.tiny else 128)
    shape, directory = shape_of(place, layers), language_model_directory(place, layers)
    adapter = saved_adapter(directory, place)
    config = EngineConfig(
        kind="vllm" if place.cuda else "transformers", dtype=place.dtype, adapters="loaded",
        max_model_len=min(2048, shape.positions), max_num_seqs=requests,
        gpu_memory_utilization=0.85,
    )  # fmt: skip
    draw = np.random.default_rng(2)
    lengths = np.linspace(length // 2, length + length // 2, requests).astype(int)
    prompts = [draw.integers(3, shape.vocabulary, size).tolist() for size in lengths]
    reset_peak()
    starting: list[float] = []
    generating: list[float] = []
    with watched(place) as peak:
        with timed(starting):
            engine = opened(config, directory, adapter=adapter, seed=0)
        # Compiles kernels and captures graphs; no prompt shares a prefix with a timed one.
        engine.generate(_requests("w", [ids[::-1] for ids in prompts], new))
        with timed(generating):
            results = engine.generate(_requests("r", prompts, new))
        engine.close()
    del engine
    reset_peak()
    written = sum(len(result.token_ids) for result in results)
    figures.add("start of the engine", starting[0], "s")
    figures.add("tokens", written / generating[0], "tokens/s")
    if place.cuda:  # vLLM's model is in a process of its own
        figures.add("peak of the GPU's memory", peak["used"] / GIB, "GiB")
    # Neighbors have similar lengths, so the compared prompts are far apart.
    compared = list(zip(prompts, results, strict=True))[:: max(1, requests // 16)]
    exact = _exact_logps(directory, adapter, place, compared)
    trained = _trainer_logps(directory, adapter, place, compared)
    recorded = np.concatenate([result.logprobs for _, result in compared])
    bound = BF16_NATS if place.dtype == "bfloat16" else 1e-3
    for name, logps in (("engine", recorded), ("trainer", trained)):
        away = np.abs(logps - exact)
        figures.add(
            f"{name}: mean difference of a log-probability from fp32", float(away.mean()), "nats",
            expected=f"≤ {bound:g}", holds=bool(away.mean() <= bound),
        )  # fmt: skip
        figures.add(f"{name}: largest difference", float(away.max()), "nats")
    figures.add("mean difference of engine and trainer", float(np.abs(trained - recorded).mean()))
    ratio = float(np.exp(trained - recorded).mean())
    figures.add("mean probability ratio at the first step", ratio)
    figures.add("entropy estimate of the policy", float(-recorded.mean()), "nats")


def _requests(name: str, prompts: list[list[int]], new: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(f"{name}{number}", ids, new, (), temperature=1.0, top_p=1.0, seed=number)
        for number, ids in enumerate(prompts)
    ]


def saved_adapter(directory: Path, place: Place) -> Path:
    """The directory of an adapter that changes the base."""
    settings = Sft(learning_rate=1e-4, batch_size=1, dtype=place.dtype)
    folder = Path(mkdtemp(prefix="gpu-check-"))
    save_adapter(adapted(load_base(directory, settings, "sft")), folder)
    gc.collect()
    return folder


def _policy(directory: Path, adapter: Path, settings: Sft | Grpo) -> Any:
    lora = LORA.model_copy(update={"dropout": 0.0})
    return continue_adapter(load_base(directory, settings, "grpo"), adapter, lora)


def _exact_logps(
    directory: Path, adapter: Path, place: Place, compared: _Compared
) -> NDArray[np.float32]:
    """log p (nats) of all written tokens, from passes in float32 over one sequence each."""
    import torch

    settings = Sft(learning_rate=1e-4, batch_size=1, dtype="float32")
    model = _policy(directory, adapter, settings).eval()
    rows = []
    for prompt, result in compared:
        ids_T = torch.tensor([*prompt, *result.token_ids], device=place.device)
        with torch.inference_mode():
            logps_TV = model(input_ids=ids_T[None]).logits[0, :-1].float().log_softmax(-1)
        rows.append(logps_TV.gather(-1, ids_T[1:, None])[len(prompt) - 1 :, 0].cpu().numpy())
    del model
    reset_peak()
    return np.concatenate(rows)


def _trainer_logps(
    directory: Path, adapter: Path, place: Place, compared: _Compared
) -> NDArray[np.float32]:
    """log p (nats) of all written tokens, as the trainer computes them in padded batches."""
    trajectories = []
    for prompt, result in compared:
        ids, ones = list(result.token_ids), [1] * len(result.token_ids)
        logps: Any = list(result.logprobs)
        trajectories.append(
            EncodedTrajectory(result.id, "q", prompt, ids, ones, logps, [0.0] * len(ids))
        )
    settings = Grpo(
        learning_rate=1e-5, batch_size=2, per_device_batch_size=2, beta=0.0, dtype=place.dtype
    )
    folder = Path(mkdtemp(prefix="gpu-check-"))
    policy = _policy(directory, adapter, settings)
    records = in_file(folder, trajectories)
    trainer = trainer_of(policy, records, settings, Training(0, folder))
    return np.concatenate(token_reference_logps(trainer, records, adapter="default"))
