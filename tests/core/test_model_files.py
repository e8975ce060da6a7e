"""The files of a model, its hash, and the cache keys that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config import Reranker
from pipeline.core.model_files import model_files, model_hash
from pipeline.index.embed import Embedder
from pipeline.llm.merged_adapter import merged_key
from pipeline.retrieval.rerank import CrossEncoderModel, FlagModel

LANGUAGE_MODEL = [
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "modeling_own.py",
    "tokenizer.model",
    "tokenizer_config.json",
]
BESIDE = [
    ".cache/download/config.json",
    ".hidden.json",
    "README.md",
    "checkpoint-10/optimizer.pt",
    "original/consolidated.00.pth",
    "training_log.jsonl",
    "work/state.pt",
]


def write(directory: Path, names: list[str]) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    return directory


def test_files_of_a_language_model_exclude_other_subdirectories(tmp_path: Path):
    directory = write(tmp_path, LANGUAGE_MODEL + BESIDE)
    files = [path.relative_to(directory).as_posix() for path in model_files(directory)]
    assert files == LANGUAGE_MODEL


@pytest.mark.parametrize("name", LANGUAGE_MODEL)
def test_every_file_of_a_model_changes_its_hash(tmp_path: Path, name: str):
    directory = write(tmp_path, LANGUAGE_MODEL)
    before = model_hash(directory)
    (directory / name).write_text("something else")
    changed = model_hash(directory)
    (directory / name).unlink()
    assert len({before, changed, model_hash(directory)}) == 3


def test_cache_keys_of_models_depend_on_all_their_files(tmp_path: Path):
    """The vocabulary is in .txt files, which one of the keys once ignored."""
    base = write(tmp_path / "base", ["config.json", "model.safetensors", "vocab.txt"])
    adapter = write(tmp_path / "adapter", ["adapter_config.json", "adapter_model.safetensors"])

    def keys() -> list[str]:
        settings = Reranker(model=str(base))
        key = merged_key(base, adapter, "float32")
        models = Embedder(str(base)), FlagModel(settings), CrossEncoderModel(settings)
        return [key, *(model.identity for model in models)]

    before = keys()
    assert keys() == before
    assert merged_key(base, adapter, "bfloat16") != before[0] != merged_key(base, base, "float32")
    (base / "vocab.txt").write_text("other words")
    assert all(item != other for item, other in zip(before, keys(), strict=True))
