"""Missing models and adapters are refused with a message that names the remedy."""

import io
import json
from pathlib import Path

import pytest

from pipeline.config import Dpo, EngineConfig, Reranker
from pipeline.core.errors import InputError, SteepError
from pipeline.grammars.tokenizer import model_tokenizer
from pipeline.index.embed import Embedder
from pipeline.llm.engine import open_engine
from pipeline.retrieval.rerank import CrossEncoderModel, FlagModel
from pipeline.training.lora import load_base, vocabulary_size
from tests.llm.small_models import small_model

CONFIG = EngineConfig(kind="transformers")


def test_a_model_directory_without_weights_names_the_remedy(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"has no weights .* or point model\.base at"):
        open_engine(CONFIG, tmp_path, adapter=None, seed=0)


def test_an_empty_model_directory_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_engine(CONFIG, tmp_path, adapter=None, seed=0)


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "tests/absent"])
def test_a_missing_path_is_not_resolved_as_a_hub_name(name: str):
    with pytest.raises(InputError, match="no such"):
        open_engine(CONFIG, name, adapter=None, seed=0)


def test_the_error_names_the_configuration_key_of_the_model():
    with pytest.raises(InputError, match=r"no such model directory; correct graph\.model"):
        open_engine(CONFIG, "./absent", adapter=None, seed=0, key="graph.model")


def test_an_adapter_without_weights_is_refused(tmp_path: Path):
    for name, files in (("model", ("config.json", "model.safetensors")), ("adapter", ())):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        open_engine(CONFIG, tmp_path / "model", adapter=tmp_path / "adapter", seed=0)


OPENED = {
    "engine": lambda model: open_engine(CONFIG, model, adapter=None, seed=0),
    "tokenizer": lambda model: model_tokenizer(model),
    "base": lambda model: load_base(model, Dpo(learning_rate=1e-3, batch_size=1), "dpo"),
    "vocabulary": lambda model: vocabulary_size(model),
    "embedder": lambda model: Embedder(str(model)).encode(["text"], "query"),
    "flag": lambda model: FlagModel(Reranker(model=str(model))).compute([("a", "b")]),
    "cross": lambda model: CrossEncoderModel(Reranker(model=str(model))).compute([("a", "b")]),
}


@pytest.mark.parametrize("opens", OPENED.values(), ids=OPENED)
def test_the_code_in_a_model_directory_never_runs_even_if_every_question_is_answered_with_yes(
    opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, ran = small_model(tmp_path / "model"), tmp_path / "ran"
    (model / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((model / name).read_text())
        classes = ("AutoConfig", "AutoModelForCausalLM", "AutoModelForSequenceClassification", "AutoModel")
        values["auto_map"] = dict.fromkeys(classes, "own.Own") | {"AutoTokenizer": ["own.Own", "own.Own"]}
        values |= {"model_type": "own", "tokenizer_class": "Own"}
        (model / name).write_text(json.dumps(values))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    with pytest.raises(SteepError):
        opens(model)
    assert not ran.exists()
