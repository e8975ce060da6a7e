"""The files of a model, its hash, and the cache keys that use it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np

from pipeline.config import EngineConfig, Reranker
from pipeline.core.content_hashes import ContentHashes
from pipeline.core.model_files import model_files, model_hash
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.retrieval.rerank import CrossEncoderModel
from pipeline.llm.chat import engine_identity
from pipeline.llm.merged_adapter import merged_key
from pipeline.training.lineage import policy_fingerprint

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


def in_place(path: Path) -> None:
    """Other bytes in the same file, which keeps its size, its inode and its time of modification."""
    before = path.stat()
    with path.open("r+b") as stream:
        first = stream.read(1)
        stream.seek(0)
        stream.write(bytes([first[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size, before.st_mtime_ns, before.st_ino,
    )  # fmt: skip


def replaced(path: Path) -> None:
    """Another file of the same size and time of modification under the name."""
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def added(path: Path) -> None:
    path.with_name("added_tokens.jinja").write_text("{}")


def removed(path: Path) -> None:
    path.unlink()


def test_no_key_of_a_changed_model_folder_is_that_of_the_old_one(tmp_path: Path) -> None:
    """Stages, chats, merged models, encoders and policies; some take hashes from the run's cache."""
    names = [*LANGUAGE_MODEL, "generation_config.json", "vocab.txt", "adapter_config.json"]
    folder = write(tmp_path / "model", names)
    adapter = write(tmp_path / "adapter", ["adapter_config.json", "adapter_model.safetensors"])
    memory = tmp_path / "hashes.json"

    def keys() -> list[object]:
        known = ContentHashes(memory)
        content = known.of(folder)
        known.save()
        engine = EngineConfig(kind="transformers", dtype="float32")
        models = Embedder(str(folder)), CrossEncoderModel(Reranker(model=str(folder)))
        return [
            content,
            engine_identity(str(folder), engine, memory)["model"],
            merged_key(folder, adapter, "float32"),
            model_hash(folder),
            *(model.identity for model in models),
        ]

    time.sleep(2.1)  # until the cache keeps the hashes
    assert keys() == keys()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    changes = [(change, path) for change in (in_place, replaced, removed) for path in files]
    for change, path in (*changes, (added, files[0])):
        if change is removed and path.name == "config.json":
            continue  # the folder is then no model
        before, content = keys(), path.read_bytes()
        change(path)
        assert not set(before) & set(keys()), (change, path)
        path.write_bytes(content)


def test_a_merged_model_depends_on_its_adapter_and_its_number_format(tmp_path: Path) -> None:
    base = write(tmp_path / "base", ["config.json", "model.safetensors"])
    adapter = write(tmp_path / "adapter", ["adapter_config.json", "adapter_model.safetensors"])
    merged = [(adapter, "float32"), (adapter, "bfloat16"), (base, "float32")]
    assert len({merged_key(base, one, dtype) for one, dtype in merged}) == 3


def test_policies_that_differ_in_any_setting_of_the_adapter_have_other_names(
    tmp_path: Path,
) -> None:
    """The indices of trained tokens, for one, are in no tensor."""
    from safetensors.numpy import save_file

    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "peft_type": "LORA"}
    variants = [
        {},
        {"trainable_token_indices": {"embed_tokens": [5, 6]}},
        {"trainable_token_indices": {"embed_tokens": [5, 7]}},
        {"use_rslora": True},
        {"init_lora_weights": "pissa"},
        {"lora_bias": True},
        {"alpha_pattern": {"q_proj": 16}},
        {"of_a_later_peft": True},
    ]
    tensors = {"base_model.model.q_proj.lora_A.weight": np.ones((4, 4), np.float32)}
    found = set()
    for number, variant in enumerate(variants):
        adapter = tmp_path / f"{number}"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text(json.dumps(settings | variant))
        save_file(tensors, adapter / "adapter_model.safetensors")
        found.add(policy_fingerprint(adapter, "base"))
    assert len(found) == len(variants)
    neutral = {
        "lora_dropout": 0.5,
        "inference_mode": True,
        "init_lora_weights": True,
        "revision": "x",
    }
    (tmp_path / "0" / "adapter_config.json").write_text(json.dumps(settings | neutral))
    assert policy_fingerprint(tmp_path / "0", "base") in found
