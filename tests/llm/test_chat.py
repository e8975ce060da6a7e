"""Chat models: the engine of this process, the model of a settings block, and the cache of replies."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config import Config, Graph, load
from pipeline.core.content_cache import ContentCache
from pipeline.core.records import Message
from pipeline.llm.chat import Chat, EngineChat, chat_cache
from pipeline.llm.engine import GenerationRequest
from pipeline.llm.models import Models
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.scripted_engine import ScriptedEngine

EMBEDDED = Path(__file__).parents[2] / "configs" / "embedded.yaml"


class Opener:
    """Opens engines that repeat the last word of the prompt; records both."""

    def __init__(self, max_model_len: int = 4096) -> None:
        self.opened = 0
        self.prompts: list[str] = []
        self.max_model_len = max_model_len

    def __call__(self) -> ScriptedEngine:
        self.opened += 1

        def script(prompt: str, request: GenerationRequest) -> str:
            self.prompts.append(prompt.split()[-2])
            return self.prompts[-1]

        return ScriptedEngine(script, CharacterTokenizer(), max_model_len=self.max_model_len)


def engine_model(folder: Path, opener: Opener) -> EngineChat:
    cache = ContentCache(folder / "chat.sqlite")
    return EngineChat(opener, {"model": "m"}, cache)


def prompts(*texts: str) -> list[tuple[str, list[Message]]]:
    return [(text, [Message("user", text)]) for text in texts]


def test_the_engine_is_opened_once_and_only_for_missing_answers(tmp_path: Path) -> None:
    opener = Opener()
    with engine_model(tmp_path, opener) as model:
        assert model.ask(prompts("a", "b"), max_tokens=9)["b"].text == "b"
        model.ask(prompts("c"), max_tokens=9)
    assert opener.opened == 1
    with engine_model(tmp_path, opener) as reopened:
        assert [*reopened.ask(prompts("c", "a"), max_tokens=9)] == ["c", "a"]
        assert reopened.usage.total() == {
            "answers": 2,
            "prompt_tokens": 2 * len("user: a\nassistant: "),
            "completion_tokens": 4,  # a character and the end, each
            "cost": 0.0,
        }
    assert opener.opened == 1


def test_a_prompt_longer_than_the_context_is_a_fault(tmp_path: Path) -> None:
    opener = Opener(max_model_len=40)
    with engine_model(tmp_path, opener) as model:
        answers = model.ask(prompts("a" * 60, "b"), max_tokens=64)
    assert answers["a" * 60].fault == "prompt too long"
    assert answers["a" * 60].raw == "78 tokens; engine.max_model_len is 40"
    assert answers["b"].text == "b"


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record[:-20],
        lambda record: record.replace(b'"content": "a"', b'"content": "b"'),
        lambda record: record.replace(b'"finish": "stop"', b'"finish": "unanswered"'),
        lambda record: b"[" * 100_000,
    ],
)
def test_a_damaged_stored_answer_is_reported_and_asked_for_again(
    tmp_path: Path, damage: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    opener = Opener()
    with engine_model(tmp_path, opener) as model:
        answers = model.ask(prompts("a", "b"), max_tokens=9)
        key = model.key(prompts("a")[0][1], 9)
    cache = ContentCache(tmp_path / "chat.sqlite")
    record = cache.get([key])[key]
    assert damage(record) != record
    cache.remove([key])
    cache.put([(key, damage(record))])
    cache.close()
    with engine_model(tmp_path, opener) as model:
        assert model.ask(prompts("a", "b"), max_tokens=9) == answers
    assert opener.prompts == ["a", "b", "a"]
    assert "chat.sqlite: 1 damaged answers are asked for again" in capsys.readouterr().out
    with engine_model(tmp_path, opener) as model:
        assert model.ask(prompts("a", "b"), max_tokens=9) == answers
    assert opener.prompts == ["a", "b", "a"]  # the new answer was stored


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return load(EMBEDDED, (f"runs_dir={tmp_path}/runs", f"cache_dir={tmp_path}/cache"))


def models(settings: Config) -> Models:
    return Models(settings.model, settings.engine, settings.cache_dir, settings.hashes_file)


def engine_chat(settings: Config, model: str, **engine: object) -> Chat:
    block = Graph.model_validate({"source": "llm", "model": model, "engine": engine})
    return models(settings).chat("graph", block)


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


def test_the_identity_of_a_policy_has_the_way_its_adapter_is_loaded(tmp_path: Path) -> None:
    """Merging rounds the weights."""
    (tmp_path / "adapter_config.json").write_text("{}")

    def key(way: str, adapter: Path | None) -> bytes:
        folders = (f"runs_dir={tmp_path}/runs", f"cache_dir={tmp_path}/cache")
        settings = load(EMBEDDED, (*folders, f"engine.adapters={way}"))
        with models(settings).policy_chat(adapter) as chat:
            return chat.key([], 9)

    assert key("merged", tmp_path) != key("loaded", tmp_path)
    assert key("merged", None) == key("loaded", None)


def modes(folder: Path) -> set[str]:
    return {oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


def test_only_its_owner_can_read_the_cache_of_prompts(tmp_path: Path) -> None:
    """Also where the umask allows everything."""
    earlier = os.umask(0)
    try:
        new = chat_cache(tmp_path / "new")
        new.put([(b"key", b"prompt")])
        assert modes(tmp_path / "new") == {"0o600"}
        new.close()
    finally:
        os.umask(earlier)
