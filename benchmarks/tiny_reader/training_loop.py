"""The training loop of the tiny reader: one of several data-parallel processes on the CPU.

Input: the work directory of a training (tokenizer, and `state.pt` when the training resumes).
Output: `state.pt` in the work directory, and the training log. Every process has one thread and
trains on its own packs; gradients are averaged over the processes. On a busy machine this loses
little time, whereas two threads of one process would wait for each other at every operation.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tiny_reader.curriculum import PHASES, Phase
from benchmarks.tiny_reader.packing import Pack
from benchmarks.tiny_reader.sample_feed import PackFeed

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

RANKS = 2  # training processes
LOG = "training_log.jsonl"
STATE = "state.pt"
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.01
CLIP = 1.0  # norm of the gradient at most
WARMUP = 200  # optimizer steps
LOG_EVERY = 50  # optimizer steps
SAVE_EVERY_S = 150.0


def learning_rate(phase: Phase, step: int) -> float:
    """Learning rate at an optimizer step of a phase.

    Linear from `rate` to `last_rate`, multiplied by a linear warm-up in a fresh phase.
    """
    rate = phase.rate + (phase.last_rate - phase.rate) * step / phase.steps
    return rate * min(1.0, (step + 1) / WARMUP) if phase.fresh else rate


def training_step(model: LlamaForCausalLM, pack: Pack) -> tuple[Any, Any, Any, Any]:
    """One forward and backward pass; the gradients are accumulated in the model.

    Returns the mean weighted loss (scalar), and for the M targets of the pack their positions,
    their weights, and whether the most probable token is correct, (M,) each.
    """
    import torch

    from pipeline.training.packed_attention import hidden_states

    positions, targets, weights = pack.targets()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden_ND = hidden_states(model.model, torch.from_numpy(pack.ids).long(), pack.lengths)
        logits_MV = hidden_ND[torch.from_numpy(positions)] @ model.lm_head.weight.T
    targets_M, weights_M = torch.from_numpy(targets), torch.from_numpy(weights)
    losses_M = torch.nn.functional.cross_entropy(logits_MV.float(), targets_M, reduction="none")
    loss: Any = (losses_M * weights_M).sum() / weights_M.sum()
    loss.backward()
    correct_M = (logits_MV.detach().argmax(-1) == targets_M).numpy()
    return loss.detach(), positions, weights, correct_M


class _LogTotals:
    """Loss, and accuracy per kind of sample, since the last line of the log."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.steps = 0
        self.num_correct: dict[str, int] = {}
        self.num_targets: dict[str, int] = {}

    def add(self, loss: float, pack: Pack, positions: Any, weights: Any, correct: Any) -> None:
        import numpy as np

        self.loss += loss
        self.steps += 1
        samples = np.searchsorted(np.cumsum(pack.lengths), positions, side="right")
        for sample, is_correct, weight in zip(
            samples.tolist(), correct.tolist(), weights, strict=True
        ):
            if weight < 1.0:
                continue
            kind = pack.kinds[sample]
            self.num_targets[kind] = self.num_targets.get(kind, 0) + 1
            self.num_correct[kind] = self.num_correct.get(kind, 0) + int(is_correct)

    def accuracy(self) -> dict[str, float]:
        return {
            kind: round(self.num_correct[kind] / count, 4)
            for kind, count in sorted(self.num_targets.items())
        }


def train_rank(rank: int, output: str, seed: int, stop_after: str | None) -> None:
    """Run one training process to the end of the last phase, or of the phase `stop_after`.

    Args:
        rank: of the process, below `RANKS`.
        output: model directory; its subdirectory `work` holds the tokenizer and the state.
        seed: of the training.
        stop_after: name of the phase that ends the training; None for the last one.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    from transformers import AutoTokenizer

    from benchmarks.tiny_reader.model import new_model

    torch.set_num_threads(1)
    work = Path(output) / "work"
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(work / "rendezvous"), RANKS
    )
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, store=store)
    tokenizer = AutoTokenizer.from_pretrained(work, trust_remote_code=False)
    model = new_model(
        len(tokenizer), eos=tokenizer.eos_token_id, pad=tokenizer.pad_token_id, seed=seed
    )
    parameters = list(model.parameters())
    optimizer = _new_optimizer(parameters)
    progress: dict[str, Any] = {"phase": 0, "step": 0, "total": 0, "tokens": 0, "seconds": 0.0}
    positions = [(0, 0)] * RANKS  # (chunk, index in the chunk) of every rank's next pack
    state_file = work / STATE
    if state_file.exists():
        state = torch.load(state_file, weights_only=True)
        model.load_state_dict(state["model"])
        if state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
        progress, positions = state["place"], [tuple(p) for p in state["places"]]
    feed = PackFeed(str(work), seed, rank)
    started = last_saved = time.monotonic()
    earlier_seconds = progress["seconds"]

    def save(chunk: int, index: int) -> None:
        gathered: list[Any] = [None] * RANKS
        dist.all_gather_object(gathered, (chunk, index))
        progress["seconds"] = earlier_seconds + time.monotonic() - started
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            temporary = state_file.with_suffix(".t")
            torch.save({**state, "place": progress, "places": gathered}, temporary)
            temporary.replace(state_file)

    for number in range(progress["phase"], len(PHASES)):
        phase = PHASES[number]
        if number > progress["phase"]:
            progress["phase"], progress["step"], positions = number, 0, [(0, 0)] * RANKS
            if phase.fresh:
                optimizer.state.clear()
        chunk, index = positions[rank]
        feed.start(number, chunk, index)
        totals, logged_at, logged_tokens = _LogTotals(), time.monotonic(), progress["tokens"]
        while progress["step"] < phase.steps:
            chunk, index, pack = feed.next()
            loss, *scores = training_step(model, pack)
            tokens, norm = _average_gradients(parameters, len(pack.ids))
            rate = learning_rate(phase, progress["step"])
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            progress["step"] += 1
            progress["total"] += 1
            progress["tokens"] += tokens
            totals.add(float(loss), pack, *scores)
            now = time.monotonic()
            if rank == 0 and progress["step"] % LOG_EVERY == 0:
                line = {
                    "phase": phase.name,
                    "step": progress["step"],
                    "total": progress["total"],
                    "tokens": progress["tokens"],
                    "seconds": round(earlier_seconds + now - started, 1),
                    "tokens_per_s": round((progress["tokens"] - logged_tokens) / (now - logged_at)),
                    "loss": round(totals.loss / totals.steps, 4),
                    "norm": round(norm, 3),
                    "rate": rate,
                    "accuracy": totals.accuracy(),
                }
                with (Path(output) / LOG).open("a") as log:
                    log.write(json.dumps(line) + "\n")
                totals, logged_at, logged_tokens = _LogTotals(), now, progress["tokens"]
            due = torch.tensor([float(rank == 0 and now - last_saved > SAVE_EVERY_S)])
            if progress["step"] % 20 == 0:
                dist.all_reduce(due)
                if due > 0:
                    save(chunk, index + 1)
                    last_saved = now
        save(chunk, index + 1)
        feed.stop()
        if phase.name == stop_after:
            break
    dist.destroy_process_group()


def _new_optimizer(parameters: list[Any]) -> Any:
    """AdamW with weight decay on matrices only."""
    import torch

    matrices = [p for p in parameters if p.dim() == 2]
    vectors = [p for p in parameters if p.dim() != 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=PHASES[0].rate,
        betas=BETAS,
        fused=True,
    )


def _average_gradients(parameters: list[Any], num_tokens: int) -> tuple[int, float]:
    """Average the gradients over the processes and clip their norm, in place.

    Returns the tokens of all processes, and the norm before clipping.
    """
    import torch
    import torch.distributed as dist

    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    # The number of tokens is summed in the same message.
    flat = torch.cat([flat, torch.tensor([float(num_tokens)])])
    dist.all_reduce(flat)
    tokens = int(flat[-1])
    flat = flat[:-1] / RANKS
    norm = float(flat.norm())
    flat *= min(1.0, CLIP / (norm + 1e-6))
    offset = 0
    for p in parameters:
        p.grad = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return tokens, norm
