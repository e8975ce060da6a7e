"""Training of the tiny reader: `python -m benchmarks.tiny_reader.train --output DIR --seed 0`.

Purpose: create the weights of the embedded configuration's base model on two CPU cores. Input: a
seed. Output: a model directory with weights, tokenizer, README and training log. The training state
is saved every few minutes; the same command resumes an interrupted training.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tiny_reader.curriculum import PHASES, Phase
from benchmarks.tiny_reader.export import WEIGHTS
from benchmarks.tiny_reader.training_loop import LOG, RANKS, STATE, train_rank
from pipeline.core.errors import InputError
from pipeline.core.process_variables import MALLOC

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on worlds that no phase uses."""
    from benchmarks.tiny_reader.tokenizer import train_tokenizer
    from benchmarks.tiny_reader.training_texts import tokenizer_texts

    return train_tokenizer(tokenizer_texts(seed))


def start_from(weights: Path, phase: Phase, output: Path) -> None:
    """Prepare a training that starts with `phase` from the weights of a finished training.

    Args:
        weights: model directory with its training log.
        phase: the first phase; it must be fresh, because the optimizer state was not kept.
        output: model directory of the training.

    Raises:
        InputError: the phase is not fresh, or `weights` lacks a file.
    """
    import torch
    from safetensors.torch import load_file

    if not phase.fresh:
        raise InputError(
            f"--phase is {phase.name}; expected a phase that starts with an empty optimizer; "
            f"choose {' or '.join(option.name for option in PHASES if option.fresh)}"
        )
    for name in (WEIGHTS, LOG, "tokenizer.json"):
        if not (weights / name).is_file():
            raise InputError(f"--weights {weights}: {name} is missing; name a model directory")
    last = json.loads((weights / LOG).read_text().splitlines()[-1])
    progress = {key: last[key] for key in ("total", "tokens", "seconds")}
    work = output / "work"
    for file in weights.glob("tokenizer*"):
        shutil.copy(file, work)
    if weights != output:
        shutil.copy(weights / LOG, output)
    state: dict[str, Any] = {
        "model": load_file(weights / WEIGHTS),
        "optimizer": None,
        "place": {**progress, "phase": PHASES.index(phase), "step": 0},
        "places": [(0, 0)] * RANKS,
    }
    state["model"]["lm_head.weight"] = state["model"]["model.embed_tokens.weight"]  # tied
    torch.save(state, work / STATE)


def finish(output: Path, seed: int, *, machine_load: str = "", history: str = "") -> None:
    """Export the weights, evaluate them, and write the README.

    Args:
        output: model directory with the training's `work` directory in it.
        seed: of the training.
        machine_load: remark for the README, see `card.write_card`.
        history: paragraph for the README, see `card.write_card`.
    """
    from benchmarks.tiny_reader import adapter_check, evaluate
    from benchmarks.tiny_reader.card import write_card
    from benchmarks.tiny_reader.export import export

    progress = export(output / "work", output)
    decoder = evaluate.load(output)
    figures = evaluate.evaluate_trajectories(decoder, seed, 1200)
    figures |= evaluate.evaluate_chats(decoder, seed, 600)
    tables = {"Trajectories and chats": figures}
    for contexts, count in adapter_check.NUM_TRAJECTORIES.items():
        tables[f"Adapter, {contexts} contexts"] = adapter_check.check(
            output,
            count=count,
            seed=seed,
            learning_rate=5e-3,
            questions_per_kind=100,
            contexts=contexts,
        )
    write_card(
        output,
        seed=seed,
        progress=progress,
        tables=tables,
        machine_load=machine_load,
        history=history,
    )


def main(arguments: list[str] | None = None) -> None:
    """Train from scratch, or resume an interrupted training of the same directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="model directory")
    parser.add_argument("--seed", type=int, default=0)
    names = [phase.name for phase in PHASES]
    parser.add_argument("--stop-after", choices=names, help="last phase of the training")
    parser.add_argument("--weights", type=Path, help="model directory to start from")
    parser.add_argument("--phase", choices=names, help="first phase; requires --weights")
    options = parser.parse_args(arguments)
    if (options.weights is None) != (options.phase is None):
        parser.error("--weights and --phase must be used together; give both or neither")
    work = options.output / "work"
    work.mkdir(parents=True, exist_ok=True)
    if options.weights and not (work / STATE).exists():
        try:
            start_from(options.weights, PHASES[names.index(options.phase)], options.output)
        except InputError as error:
            parser.error(str(error))
    if not (work / "tokenizer.json").exists():
        make_tokenizer(options.seed).save_pretrained(work)
    if not (work / STATE).exists():
        (options.output / LOG).unlink(missing_ok=True)
    (work / "rendezvous").unlink(missing_ok=True)
    processes: Any = importlib.import_module("torch.multiprocessing")

    os.environ.update(MALLOC)
    processes.spawn(
        train_rank,
        (str(options.output), options.seed, options.stop_after),
        nprocs=RANKS,
        join=True,
    )
    if options.stop_after is None:
        finish(options.output, options.seed)
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
