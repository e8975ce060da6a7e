"""Opening the chat model of a settings block, and the identity that its answers are cached under."""

import os
from pathlib import Path

import pytest

from pipeline.config import Config, Endpoint, Graph, load
from pipeline.llm.chat import Chat
from pipeline.llm.endpoint_chat import EndpointChat
from pipeline.llm.engine_chat import EngineChat
from pipeline.llm.factory import chat_cache
from pipeline.stages.resources import open_chat

EMBEDDED = Path(__file__).parents[2] / "configs" / "embedded.yaml"


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return load(EMBEDDED, (f"runs_dir={tmp_path}/runs", f"cache_dir={tmp_path}/cache"))


def engine_chat(settings: Config, model: str, **engine: object) -> Chat:
    block = Graph.model_validate({"source": "llm", "model": model, "engine": engine})
    return open_chat(settings, "graph", block)


def test_the_identity_of_a_model_is_its_content(settings: Config, tmp_path: Path) -> None:
    identities = []
    for content in ("{}", '{"a": 1}', "{}"):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(content)
        with engine_chat(settings, str(tmp_path / "model")) as chat:
            assert isinstance(chat, EngineChat)
            identities.append(chat.identity)
    assert identities[0] == identities[2] != identities[1]
    assert str(tmp_path) not in str(identities)


@pytest.mark.parametrize(
    ("engine", "same"),
    [
        ({"gpu_memory_utilization": 0.5, "max_num_seqs": 8}, True),
        ({"dtype": "float32"}, False),
        ({"kind": "transformers"}, False),
    ],
)
def test_the_identity_covers_numeric_engine_settings_only(
    settings: Config, engine: dict[str, object], same: bool
) -> None:
    with (
        engine_chat(settings, "owner/m") as default,
        engine_chat(settings, "owner/m", **engine) as changed,
    ):
        assert (default.identity == changed.identity) is same


def test_only_its_owner_can_read_the_cache_of_prompts(tmp_path: Path) -> None:
    """Also where the umask allows everything."""
    before = os.umask(0)
    try:
        cache = chat_cache(tmp_path)
        cache.put([(b"key", b"prompt")])
        assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {"0o600"}
        cache.close()
    finally:
        os.umask(before)


def test_an_endpoint_is_opened_without_a_key_or_a_connection(settings: Config) -> None:
    endpoint = Endpoint(base_url="http://localhost:9/v1", model="m", api_key_env="NOT_SET")
    with open_chat(settings, "graph", Graph(source="llm", endpoint=endpoint)) as chat:
        assert isinstance(chat, EndpointChat)
        assert chat.identity["model"] == "m"
        assert "api_key_env" not in chat.identity
