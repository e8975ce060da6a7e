"""A stage's process that generates with vLLM's multi-process engine until it is killed.

``python -m pipeline.engine.process.process tests.llm.killed_engine MODEL`` opens the engine, prints the first
segment and then generates without end; with ``once`` as second argument it closes the engine instead.
When the engine fails, it prints the message, closes the engine and ends with the error's exit status.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.config.base import EngineConfig
from pipeline.core.errors import EngineError
from pipeline.llm.engine import Engine, GenerationRequest
from pipeline.llm.open_engine import open_engine

CONFIG = EngineConfig(
    dtype="float32", max_model_len=512, max_num_seqs=8, cpu_kv_cache_gib=1, enforce_eager=True
)


def segment(engine: Engine, number: int) -> list[int]:
    request = GenerationRequest(str(number), [1, 5, 9], 200, (), 1.0, 1.0, number)
    return engine.generate([request])[0].token_ids


def main(model: Path, once: bool) -> None:
    engine = open_engine(CONFIG, model, adapter=None, seed=0)
    print("segment", *segment(engine, 0)[:8], flush=True)
    number = 1
    try:
        while not once:
            segment(engine, number)
            number += 1
    except EngineError as error:
        print("error", error, flush=True)
        sys.exit(error.exit_status)
    finally:
        engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["once"])
