"""Missing models are refused with a message that names the remedy."""

import pytest

from pipeline.config import EngineConfig
from pipeline.core.errors import InputError
from pipeline.llm.open_engine import open_engine

CONFIG = EngineConfig(kind="transformers")


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "tests/absent"])
def test_a_missing_path_is_not_resolved_as_a_hub_name(name: str):
    with pytest.raises(InputError, match=r"no such .*directory.*; correct graph\.model"):
        open_engine(CONFIG, name, adapter=None, seed=0, key="graph.model")
