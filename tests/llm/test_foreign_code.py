"""The code of a model's directory is never run, whatever standard input answers."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config import EngineConfig, Reranker
from pipeline.core.errors import SteepError
from pipeline.knowledge.index.embed import Embedder
from pipeline.knowledge.retrieval.rerank import CrossEncoderModel
from pipeline.llm.open_engine import open_engine
from pipeline.llm.tokenizer import model_tokenizer
from tests.llm.small_models import small_model

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import pathlib
pathlib.Path({ran!r}).write_text("ran")
from transformers import PreTrainedConfig, PreTrainedModel
class Config(PreTrainedConfig):
    model_type = "foreign"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer:
    pass
"""


def open_tokenizer(folder: str) -> None:
    model_tokenizer(folder)


def open_with_engine(folder: str) -> None:
    open_engine(EngineConfig(kind="transformers", dtype="float32"), folder, adapter=None, seed=0)


def open_embedder(folder: str) -> None:
    Embedder(folder, device="cpu").encode(["a"], "query")


def open_flag_reranker(folder: str) -> None:
    CrossEncoderModel(Reranker(kind="flag", model=folder, device="cpu")).compute([("a", "b")])


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights whose configuration, classes and tokenizer are code of its own."""
    folder = small_model(tmp_path_factory.mktemp("foreign") / "model")
    (folder / "foreign.py").write_text(CODE.format(ran=str(folder / "ran")))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "foreign",
        "architectures": ["Model"],
        "auto_map": {
            "AutoConfig": "foreign.Config",
            "AutoModel": "foreign.Model",
            "AutoModelForCausalLM": "foreign.Model",
            "AutoModelForSequenceClassification": "foreign.Model",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer |= {
        "tokenizer_class": "Tokenizer",
        "auto_map": {"AutoTokenizer": ["foreign.Tokenizer", "foreign.Tokenizer"]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.mark.parametrize(
    "opening",
    [
        open_tokenizer,
        open_with_engine,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (open_embedder, open_flag_reranker)),
    ],
)
def test_a_model_that_needs_code_of_its_own_is_refused_even_with_yes_on_standard_input(
    opening: Callable[[str], None],
    foreign: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
    with pytest.raises(SteepError, match="custom code, which is never run"):
        opening(str(foreign))
    assert not (foreign / "ran").exists()
    assert "(y/n)" not in "".join(capfd.readouterr()).lower()


# The directories that these load are LoRA adapters, which have no code.
PEFT = {"PeftModel", "LoadedPeftModel", "LoraConfig"}
OPENERS = {"SentenceTransformer", "CrossEncoder", "FlagReranker", "EngineArgs", "LLM"}


def test_every_call_that_opens_a_model_forbids_its_code() -> None:
    checked = 0
    for path in sorted([*ROOT.glob("pipeline/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in (*OPENERS, "from_pretrained", "from_config")):
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and opens_a_model(call.func):
                given = {argument.arg: argument.value for argument in call.keywords}
                if "modules" in given:  # built of modules that the caller made
                    continue
                checked += 1
                value = given.get("trust_remote_code")
                where = f"{path.relative_to(ROOT)}:{call.lineno}"
                assert isinstance(value, ast.Constant), f"{where} leaves trust_remote_code out"
                assert value.value is False, where
    assert checked >= 12


def opens_a_model(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id in OPENERS
    if not isinstance(function, ast.Attribute):
        return False
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if function.attr == "from_config":
        return owner.startswith("Auto")
    return function.attr == "from_pretrained" and owner not in PEFT
