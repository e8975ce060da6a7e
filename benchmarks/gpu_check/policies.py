"""Parts that compare a policy in several places: merged, unmerged, engine and trainer."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_check.figures import GIB, Figures, Place, reset_peak, timed, watched
from benchmarks.gpu_check.models import (
    BF16_NATS,
    Shape,
    language_model,
    language_model_directory,
    shape_of,
    tokenizer_of,
)
from benchmarks.gpu_check.training import LORA, adapted, sft_record
from pipeline.config import EngineConfig, Grpo, Sft
from pipeline.llm.engine import Engine, GenerationRequest, GenerationResult
from pipeline.llm.merged_adapter import merge_and_measure
from pipeline.llm.open_engine import open_engine
from pipeline.training.advantages import EncodedTrajectory
from pipeline.training.grpo import grpo_trainer, token_reference_logps
from pipeline.training.history import History
from pipeline.training.lora import continue_adapter, load_base, new_adapter, save_adapter
from pipeline.training.sft import sft_trainer
from pipeline.training.trainer_args import train

if TYPE_CHECKING:
    import torch

RATES = (5e-4, 1e-5)  # of SFT in TeaRAG, and of GRPO in HiPRAG and ProGraph-R1
TRAINED_STEPS = 50
_WITHOUT_DROPOUT = LORA.model_copy(update={"dropout": 0.0})


def adapters(place: Place, figures: Figures) -> None:
    """How far a trained adapter's policy is from the exact policy, merged in bf16 and unmerged.

    The exact policy has base and adapter in float32. Differences are means of |Δ log p| over
    tokens, in nats; compare them with the change that the adapter makes.
    """
    shape = shape_of(place)
    for rate in RATES:
        _compare_merges(place, shape, rate, figures)
        reset_peak()


def _compare_merges(place: Place, shape: Shape, rate: float, figures: Figures) -> None:
    from peft import set_peft_model_state_dict

    count, length = (2, 32) if place.tiny else (8, 256)
    weights = _trained(shape, place, rate)
    reset_peak()
    policy: Any = new_adapter(language_model(shape, place, "bfloat16"), LORA, 0)
    set_peft_model_state_dict(policy, weights)
    policy.eval()
    ids_NT = _texts(shape, place, count, length)
    unmerged = _logps(policy, ids_NT)
    with policy.disable_adapter():
        state = dict(policy.get_base_model().state_dict())
    exact = language_model(shape, place, "float32")
    exact.load_state_dict(
        {
            name.replace(".base_layer", ""): value
            for name, value in state.items()
            if "lora_" not in name
        }
    )
    exact_policy: Any = new_adapter(exact, LORA, 0)
    set_peft_model_state_dict(exact_policy, weights)
    exact_policy.eval()
    reference = _logps(exact_policy, ids_NT)
    with exact_policy.disable_adapter():
        change = float((_logps(exact_policy, ids_NT) - reference).abs().mean())
    del exact, exact_policy, state
    gc.collect()
    lost = merge_and_measure(policy)
    merged = _logps(policy, ids_NT)
    name = f"learning rate {rate:g}"
    figures.add(f"{name}: change that the adapter makes", change, "nats")
    figures.add(
        f"{name}: unmerged in bf16, from fp32", float((unmerged - reference).abs().mean()), "nats"
    )
    figures.add(
        f"{name}: merged in bf16, from fp32", float((merged - reference).abs().mean()), "nats"
    )
    figures.add(f"{name}: merged from unmerged", float((merged - unmerged).abs().mean()), "nats")
    figures.add(f"{name}: error of the merged weights", lost.relative, "of the adapter")
    figures.add(f"{name}: entries that merging leaves unchanged", lost.unchanged, "share")


def _trained(shape: Shape, place: Place, rate: float) -> dict[str, Any]:
    """The adapter's weights after `TRAINED_STEPS` steps of SFT on short sequences.

    The trainer's model is not used further, since trainers wrap its forward pass.
    """
    from peft import get_peft_model_state_dict

    model = language_model(shape, place, "bfloat16")
    if place.dtype != "bfloat16":
        rounded, model = model, language_model(shape, place)
        model.load_state_dict(rounded.state_dict())
    length, steps = (32, 5) if place.tiny else (512, TRAINED_STEPS)
    records = [sft_record(shape, number, length) for number in range(2 * steps)]
    settings = Sft(
        learning_rate=rate, batch_size=2, per_device_batch_size=2, dtype=place.dtype,
    )  # fmt: skip
    policy = new_adapter(model, LORA, 0)
    history, folder = History(), Path(mkdtemp(prefix="gpu-check-"))
    trainer = sft_trainer(
        policy, tokenizer_of(shape.vocabulary), records, settings, seed=0, checkpoint_dir=folder,
        history=history,
    )  # fmt: skip
    train(trainer, history, folder)
    trained = get_peft_model_state_dict(trainer.accelerator.unwrap_model(trainer.model))
    return {name: value.detach().clone() for name, value in trained.items()}


def _texts(shape: Shape, place: Place, count: int, length: int) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(2)
    ids_NT = torch.randint(3, shape.vocabulary, (count, length), generator=generator)
    return ids_NT.to(place.device)


def _logps(policy: Any, ids_NT: torch.Tensor) -> torch.Tensor:
    """log p (nats) of every token after the first, [N, T - 1], in float32 from logits."""
    import torch

    rows = []
    with torch.inference_mode():
        for ids_T in ids_NT:
            logits_TV = policy(input_ids=ids_T[None]).logits[0, :-1].float()
            rows.append(logits_TV.log_softmax(-1).gather(-1, ids_T[1:, None])[:, 0].cpu())
    return torch.stack(rows)


def logprobs(place: Place, figures: Figures) -> None:
    """Log-probabilities of the transformers engine, compared with the trainer's."""
    requests, new = (8, 8) if place.tiny else (16, 64)
    engine_against_trainer("transformers", place, figures, requests, new)


def vllm_lora(place: Place, figures: Figures) -> None:
    """vLLM with an adapter beside the weights: its speed, and its log-probabilities."""
    engine_against_trainer("vllm", place, figures, requests=256, new=128)


def engine_against_trainer(
    kind: Literal["vllm", "transformers"], place: Place, figures: Figures, requests: int, new: int,
    *, layers: int | None = None, opened: Callable[..., Engine] = open_engine,
) -> None:  # fmt: skip
    """Compare engine and trainer with one unpadded pass of the same weights in float32.

    Prompts differ in length, so that batches are padded. ``opened`` opens the engine.
    """
    shape = shape_of(place, layers)
    directory = language_model_directory(place, layers)
    adapter = saved_adapter(directory, place)
    config = EngineConfig(
        kind=kind, dtype=place.dtype, max_model_len=min(2048, shape.positions), adapters="loaded",
        max_num_seqs=requests, gpu_memory_utilization=0.85,
    )  # fmt: skip
    prompts = _prompts(shape, requests, 16 if place.tiny else 256)
    warm, asked = (
        [
            GenerationRequest(
                f"{name}{number}", ids, new, (), temperature=1.0, top_p=1.0, seed=number
            )
            for number, ids in enumerate(of)
        ]
        for name, of in (("w", [ids[::-1] for ids in prompts]), ("r", prompts))
    )  # fmt: skip
    reset_peak()
    starting: list[float] = []
    generating: list[float] = []
    with watched(place) as peak:
        with timed(starting):
            engine = opened(config, directory, adapter=adapter, seed=0)
        engine.generate(warm)  # compiles kernels and captures graphs; no prompt shares a prefix
        with timed(generating):
            results = engine.generate(asked)
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
    trained = _trainer_logps(directory, adapter, place, compared, shape)
    recorded = np.concatenate([result.logprobs for _, result in compared])
    for name, logps in (("engine", recorded), ("trainer", trained)):
        away = np.abs(logps - exact)
        bound = BF16_NATS if place.dtype == "bfloat16" else 1e-3
        figures.verdict(
            f"{name}: mean difference of a log-probability from fp32", float(away.mean()),
            bool(away.mean() <= bound), expected=f"≤ {bound:g}", unit="nats",
        )  # fmt: skip
        figures.add(f"{name}: largest difference", float(away.max()), "nats")
    figures.add("mean difference of engine and trainer", float(np.abs(trained - recorded).mean()))
    figures.add(
        "mean probability ratio at the first step", float(np.exp(trained - recorded).mean())
    )
    figures.add("entropy estimate of the policy", float(-recorded.mean()), "nats")


def _prompts(shape: Shape, count: int, length: int) -> list[list[int]]:
    """Random prompts of half to one and a half times ``length`` tokens."""
    draw = np.random.default_rng(2)
    lengths = np.linspace(length // 2, length + length // 2, count).astype(int)
    return [draw.integers(3, shape.vocabulary, size).tolist() for size in lengths]


def saved_adapter(directory: Path, place: Place) -> Path:
    """The directory of an adapter that changes the base."""
    settings = Sft(learning_rate=1e-4, batch_size=1, dtype=place.dtype)
    folder = Path(mkdtemp(prefix="gpu-check-"))
    save_adapter(adapted(load_base(directory, settings, "sft"), dropout=0.0), folder)
    gc.collect()
    return folder


_Compared = list[tuple[list[int], GenerationResult]]  # prompts, and the engine's output


def _exact_logps(
    directory: Path, adapter: Path, place: Place, compared: _Compared
) -> NDArray[np.float32]:
    """log p (nats) of all written tokens, from passes in float32 over one sequence each."""
    import torch

    settings = Sft(learning_rate=1e-4, batch_size=1, dtype="float32")
    model = continue_adapter(load_base(directory, settings, "sft"), adapter, _WITHOUT_DROPOUT)
    model.eval()
    rows = []
    for prompt, result in compared:
        ids_T = torch.tensor([*prompt, *result.token_ids], device=place.device)
        rows.append(_logps(model, ids_T[None])[0, len(prompt) - 1 :].numpy())
    del model
    reset_peak()
    return np.concatenate(rows)


def _trainer_logps(
    directory: Path, adapter: Path, place: Place, compared: _Compared, shape: Shape
) -> NDArray[np.float32]:
    """log p (nats) of all written tokens, as the trainer computes them in padded batches."""
    trajectories = [
        EncodedTrajectory(
            result.id, "q", prompt, list(result.token_ids), [1] * len(result.token_ids),
            cast(list[float], list(result.logprobs)), [0.0] * len(result.token_ids),
        )
        for prompt, result in compared
    ]  # fmt: skip
    settings = Grpo(
        learning_rate=1e-5, batch_size=2, per_device_batch_size=2, beta=0.0, dtype=place.dtype,
    )  # fmt: skip
    model = continue_adapter(load_base(directory, settings, "grpo"), adapter, _WITHOUT_DROPOUT)
    trainer = grpo_trainer(
        model, tokenizer_of(shape.vocabulary), trajectories, settings, temperature=1.0, seed=0,
        checkpoint_dir=Path(mkdtemp(prefix="gpu-check-")), history=History(),
    )  # fmt: skip
    return np.concatenate(token_reference_logps(trainer, trajectories, adapter="default"))
