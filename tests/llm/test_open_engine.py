"""Missing models and adapters are refused with a message that names the remedy."""

from pathlib import Path

import pytest

from pipeline.config import EngineConfig
from pipeline.core.errors import InputError
from pipeline.llm.open_engine import open_engine

CONFIG = EngineConfig(kind="transformers")


def test_a_model_directory_without_weights_names_the_remedy(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"has no weights .* or point model\.base at"):
        open_engine(CONFIG, tmp_path, adapter=None, seed=0)


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "tests/absent"])
def test_a_missing_path_is_not_resolved_as_a_hub_name(name: str):
    with pytest.raises(InputError, match=r"no such .*directory.*; correct graph\.model"):
        open_engine(CONFIG, name, adapter=None, seed=0, key="graph.model")


def test_an_adapter_without_weights_is_refused(tmp_path: Path):
    for name, files in (("model", ("config.json", "model.safetensors")), ("adapter", ())):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")
    with pytest.raises(InputError, match=r"has no adapter_config\.json"):
        open_engine(CONFIG, tmp_path / "model", adapter=tmp_path / "adapter", seed=0)
