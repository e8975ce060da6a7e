"""The files of a model: changes that alter its hash, changes that do not, and the keys that use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config import Reranker
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.model_files import file_hash, model_files, model_hash
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
ENCODER = ["1_Pooling/config.json", "config.json", "model.safetensors", "modules.json"]


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


@pytest.mark.parametrize("name", BESIDE)
def test_other_files_do_not_change_the_hash(tmp_path: Path, name: str):
    directory = write(tmp_path, LANGUAGE_MODEL)
    before = model_hash(directory)
    write(directory, [name])
    assert model_hash(directory) == before


def test_files_of_a_sentence_transformer_include_its_modules(tmp_path: Path):
    directory = write(tmp_path, ENCODER)
    before = model_hash(directory)
    (directory / "1_Pooling/config.json").write_text("another pooling")
    assert model_hash(directory) != before


def test_hash_depends_on_content_and_not_on_the_location(tmp_path: Path):
    item, two = write(tmp_path / "one", LANGUAGE_MODEL), write(tmp_path / "two", LANGUAGE_MODEL)
    assert model_hash(item) == model_hash(two)
    first, second = two / "config.json", two / "merges.txt"
    swapped = second.read_text(), first.read_text()
    first.write_text(swapped[0])
    second.write_text(swapped[1])
    assert model_hash(item) != model_hash(two)


def test_cached_hashes_are_equal_and_read_each_file_once(tmp_path: Path):
    directory = write(tmp_path / "model", LANGUAGE_MODEL)
    cache_file = tmp_path / "store" / ".hashes.json"
    first, old = ContentHashes(cache_file), Path(json.__file__).resolve()
    assert first.of(directory) == model_hash(directory)
    assert first.of(old) == file_hash(old)
    first.save()
    # A cached hash that is wrong on purpose shows that the file is not read again. Those of the model
    # are of files that were changed just now, and are not kept.
    known = json.loads(cache_file.read_text())
    assert list(known) == [str(old)]
    known[str(old)][1] = "remembered"
    cache_file.write_text(json.dumps(known))
    reloaded = ContentHashes(cache_file)
    assert reloaded.of(old) == "remembered"
    (directory / "config.json").write_text("grown in the meantime")
    assert reloaded.of(directory) == model_hash(directory)


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
    (base / "vocab.txt").write_text("other words")
    assert all(item != other for item, other in zip(before, keys(), strict=True))
