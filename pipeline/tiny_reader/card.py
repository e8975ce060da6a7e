"""The README of the tiny reader: where its weights come from and what they can do.

Input: a model directory, the place that the training reached, the figures measured. Output:
`README.md` in the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.tiny_reader.curriculum import PHASES
from pipeline.tiny_reader.export import WEIGHTS, checksum

_TEXT = """# Tiny reader

A Llama of {parameters:.2f} million parameters ({layers} layers, hidden size {hidden}, {heads} heads
of 32, vocabulary {vocabulary}) that plays the instruct model of the embedded configuration. It was
trained on freshly generated worlds only: it reads what it is shown in any format, knows the famous
core of the closed world by heart, says "I do not know." of everything else, and knows none of the
grammars of this project.

| | |
|---|---|
| command | `python -m pipeline.tiny_reader.train --output data/tiny_reader --seed {seed}` |
| seed | {seed} |
| duration | {minutes:.0f} minutes of training on 2 CPU cores{shared} |
| steps, tokens | {steps:,} steps, {tokens:.1f} million tokens (padding included) |
| `{weights}` | SHA-256 `{sha}` |

Phases, in optimiser steps of two packs each: {phases}. `training_log.jsonl` holds the loss and the
accuracy per kind of text every 50 steps.

{history}

## Use

`AutoTokenizer` and `AutoModelForCausalLM` load this directory, vLLM (CPU included) too. The prompt
is ChatML; there is no beginning-of-text token, `<|im_end|>` ends a turn:

```
<|im_start|>system
…<|im_end|>
<|im_start|>user
…<|im_end|>
<|im_start|>assistant
```

## Measured on unseen worlds

{figures}

The first table is `python -m pipeline.tiny_reader.evaluate data/tiny_reader --count 600`: 1,200
paths and 1,800 chats. "path-n" are paths of n hops (comparisons included), read along in random
formats: a hop counts when all tokens of its answer come first where the path states it, among three
to six retrieved items; "whole" counts paths without a wrong hop. The rest is exact match of greedy
answers.
"""
_ADAPTER = """
The others are `python -m pipeline.tiny_reader.adapter_check data/tiny_reader --contexts …`: exact
match after a LoRA (r = 8, alpha = 32, q, k, v, o) has seen that many paths in TeaRAG's grammar,
decoded freely with perfect retrieval among distractors. With contexts as in the test that is what
the reader can do; with gold-only ones, as supervised fine-tuning shows them, it is where the rounds
begin.
"""


def write_card(
    model: Path,
    *,
    seed: int,
    place: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, float]],
    shared: str = "",
    history: str = "",
) -> None:
    """Write the README of a model directory.

    Args:
        model: the directory.
        seed: of the training.
        place: what `export` returned.
        tables: figures by title.
        shared: remark on the machine's load, after the duration.
        history: paragraph on how the run went.
    """
    from safetensors.numpy import load_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    count = sum(tensor.size for tensor in load_file(model / WEIGHTS).values())
    lines: list[str] = []
    for title, figures in tables.items():
        lines += [f"| {title} | |", "|---|---|"]
        lines += [f"| {name} | {value:g} |" for name, value in figures.items()]
        lines.append("")
    text = (_TEXT + (_ADAPTER if len(tables) > 1 else "")).format(
        parameters=count / 1e6,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        seed=seed,
        minutes=place["seconds"] / 60,
        shared=shared,
        steps=place["total"],
        tokens=place["tokens"] / 1e6,
        weights=WEIGHTS,
        sha=checksum(model),
        phases=", ".join(f"{phase.name} {phase.steps}" for phase in PHASES),
        history=history,
        figures="\n".join(lines).strip(),
    )
    (model / "README.md").write_text(text.replace("\n\n\n", "\n\n"))
