"""Missing models are refused with a message that names the remedy."""

import pytest

from pipeline.config import EngineConfig
from pipeline.core.errors import DependencyError
from pipeline.llm.open_engine import open_engine

CONFIG = EngineConfig(kind="transformers")


@pytest.mark.parametrize("name", ["./absent", "/absent/model"])
def test_a_missing_path_is_not_resolved_as_a_hub_name(name: str):
    with pytest.raises(
        DependencyError, match=rf"graph\.model: {name}: no such directory; name a m"
    ):
        open_engine(CONFIG, name, adapter=None, seed=0, key="graph.model")
