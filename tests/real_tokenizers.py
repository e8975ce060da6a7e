"""The real tokenizers of the data directory, each loaded once for all tests of a process."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

from pipeline.llm.tokenizer import Tokenizer, model_tokenizer, read_template


def real_tokenizer(data: Path, name: str, template: Path | None = None) -> Tokenizer:
    """A tokenizer below ``data``; the file ``template`` replaces its chat template.

    It has dictionaries and lists of its own: a test that sets ``bos_token`` changes it for no other.
    """
    tokenizer: Tokenizer = copy.copy(_loaded(data / "tokenizers" / name))
    for key, value in vars(tokenizer).items():
        if isinstance(value, dict | list) and key not in ("_vocab", "_merges"):  # 30 ms to copy
            setattr(tokenizer, key, copy.copy(value))
    if template is not None:
        tokenizer.chat_template = read_template(str(template))
    return tokenizer


@cache
def _loaded(folder: Path) -> Tokenizer:
    return model_tokenizer(folder)
