"""Many prompts to a language model, with checkpoints.

Purpose: what graph extraction and SFT data share when a model does the work. Input: prompts with
ids, an engine (opened only when something is left to do), a folder that survives kills. Output: the
answer to each prompt. Finished batches lie in the folder as numbered Parquet files, so that a killed
run loses at most one batch, and a rerun asks only for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pipeline.engines.base import Engine, GenerationRequest
from pipeline.records import Message, read_records, write_parquet
from pipeline.trajectory.tokens import prompt_ids


@dataclass(slots=True)
class Answer:
    """What a model wrote for one prompt; ``finish`` is "length" when it was cut off."""

    id: str
    text: str
    finish: str


def ask(
    prompts: Sequence[tuple[str, list[Message]]],
    *,
    open_engine: Callable[[], Engine],
    folder: Path,
    batch: int,
    max_tokens: int,
    seed: int,
) -> dict[str, Answer]:
    """Greedy answers by prompt id; ``batch`` prompts at a time, each batch saved when done.

    Raises EngineError when the engine breaks; what was finished by then stays in the folder.
    """
    files = sorted(folder.glob("answers-*.parquet"))
    answers = {one.id: one for file in files for one in read_records(file, Answer)}
    left = [prompt for prompt in prompts if prompt[0] not in answers]
    if not left:
        return answers
    with closing(open_engine()) as engine:
        for number, start in enumerate(range(0, len(left), batch), start=len(files)):
            requests = [
                GenerationRequest(
                    id=name,
                    prompt_ids=prompt_ids(engine.tokenizer, messages),
                    max_tokens=max_tokens,
                    stop=(),
                    temperature=0.0,
                    top_p=1.0,
                    seed=seed,
                )
                for name, messages in left[start : start + batch]
            ]
            done = [Answer(one.id, one.text, one.finish) for one in engine.generate(requests)]
            write_parquet(folder / f"answers-{number:06d}.parquet", done, Answer)
            answers.update((one.id, one) for one in done)
    return answers
