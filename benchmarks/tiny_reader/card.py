"""The README of the tiny reader: the origin of its weights and their measured abilities.

Input: a model directory, the progress of its training, and the measured figures. Output:
`README.md` in the directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tiny_reader.curriculum import PHASES
from benchmarks.tiny_reader.export import WEIGHTS, checksum

_TEXT = """# Tiny reader

A Llama of {parameters:.2f} million parameters ({layers} layers, hidden size {hidden}, {heads} heads
of 32, vocabulary {vocabulary}) that serves \
as the instruct model of the embedded configuration. It was
trained on newly generated worlds only. It reads passages in any format. It knows the facts of the
closed world's famous core; without passages it answers "I do not know." to all other questions. It
has seen none of this project's grammars.

| | |
|---|---|
| command | `python -m benchmarks.tiny_reader.train --output data/tiny_reader --seed {seed}` |
| seed | {seed} |
| duration | {minutes:.0f} minutes of training on 2 CPU cores{machine_load} |
| steps, tokens | {steps:,} steps, {tokens:.1f} million tokens (including padding) |
| `{weights}` | SHA-256 `{sha}` |

Phases, in optimizer steps of two packs each: {phases}. `training_log.jsonl` holds the loss and the
accuracy per kind of text every 50 steps.

{history}

## Use

`AutoTokenizer`, `AutoModelForCausalLM` and vLLM (also on the CPU) load this directory. The prompt
format is ChatML. There is no beginning-of-text token; `<|im_end|>` ends a turn:

```
<|im_start|>system
…<|im_end|>
<|im_start|>user
…<|im_end|>
<|im_start|>assistant
```

## Measured on unseen worlds

{figures}

The first table was measured on 1,200 trajectories and 1,800 chats with
`python -m benchmarks.tiny_reader.evaluate data/tiny_reader --count 600`.

- "path-n": trajectories of n hops (including comparisons) \
in random formats, with teacher forcing. The
  figure is the share of hops in which every token \
of the answer is the most probable one, with three
  to six retrieved items per hop.
- "path-n whole": share of these trajectories in which every hop is correct.
- "decision to go on", "decision to stop": \
share of correct starts of another step, or of the answer,
  where the prompt describes the format.
- The other rows: exact match of greedy answers in chats.
"""
_ADAPTER = """
The other tables were measured with
`python -m benchmarks.tiny_reader.adapter_check data/tiny_reader --contexts …`. \
They show exact match after a LoRA (r = 8, alpha = 32, q, k, v, o) was trained on the
given number of trajectories in TeaRAG's grammar. \
Decoding is unconstrained; a correct subquery always
retrieves its evidence, among distractors. With retrieved contexts in training, as in the test, the
figures measure the reader's ability. With gold-only contexts in training, as in supervised
fine-tuning, they measure the starting point of the DPO rounds.
"""


def write_card(
    model: Path,
    *,
    seed: int,
    progress: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, float]],
    machine_load: str = "",
    history: str = "",
) -> None:
    """Write the README of a model directory.

    Args:
        model: the directory, with weights and configuration.
        seed: of the training.
        progress: training progress, as `export` returns it.
        tables: figures by title.
        machine_load: remark on the load of the machine, after the duration.
        history: paragraph on the course of the training.
    """
    from safetensors.numpy import load_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=False)
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
        minutes=progress["seconds"] / 60,
        machine_load=machine_load,
        steps=progress["total"],
        tokens=progress["tokens"] / 1e6,
        weights=WEIGHTS,
        sha=checksum(model),
        phases=", ".join(f"{phase.name} {phase.steps}" for phase in PHASES),
        history=history,
        figures="\n".join(lines).strip(),
    )
    (model / "README.md").write_text(text.replace("\n\n\n", "\n\n"))
