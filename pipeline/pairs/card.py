"""The dataset card of a directory of pairs, with which ``datasets.load_dataset`` loads it.

Input: the counts of the funnel and the pairing thresholds. Output: the text of ``README.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.pairs.funnel import table

_CARD = """\
---
pretty_name: {name}
task_categories:
- text-generation
tags:
- preference
- dpo
- retrieval
configs:
- config_name: default
  data_files:
  - split: train
    path: pairs.parquet
---

# {name}

{pairs:,} preference pairs of round {round}, selected from sampled search trajectories {selection}.

```python
from datasets import load_dataset

pairs = load_dataset("path/to/this/directory", split="train")
```

| field | content |
|---|---|
| `prompt`, `chosen`, `rejected` | \
chat messages; a trajectory is one assistant turn, retrieved text included |
| `kind` | why the rejected trajectory is worse: \
`format`, `easy` (wrong answer), `hard` (partly right answer), \
`margin` (right answer, lower reward), `step` (only the last step, after the same prefix) |
| `chosen_id`, `rejected_id`, `question_id`, `policy`, `round` | \
ids of the trajectories and their question, the policy that sampled them, the round |
| `chosen_rewards`, `rejected_rewards` | every reward term, as JSON text |
| `prompt_ids`, `chosen_ids`, `rejected_ids` | token ids as sampled and as inserted |
| `chosen_spans`, `rejected_spans` | \
the writer of every token; only tokens of the model carry loss |

## Selection

Thresholds: {thresholds}.

Bins of all sampled trajectories (`funnel.parquet` has the bin of each):

{funnel}
"""


def card(
    name: str,
    *,
    round_number: int | None,
    pairs: int,
    thresholds: Mapping[str, Any],
    counts: Mapping[str, Any],
    selection: str,
) -> str:
    """README.md with its YAML header.

    ``counts`` is the funnel; ``selection`` ends the sentence on how pairs were selected.
    """
    limits = ", ".join(f"{key} {value}" for key, value in thresholds.items() if value is not None)
    return _CARD.format(
        name=name,
        pairs=pairs,
        round="?" if round_number is None else round_number,
        thresholds=limits,
        selection=selection,
        funnel=table(counts),
    )
