"""SFT data with models in one piece and in three shards: the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.engine.context import StageContext
from tasks import sft_data
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.fake_endpoint import FakeEndpoint
from tests.llm.scripted_engine import ScriptedEngine
from tests.stages.divided import content, run_divided, run_shard, run_whole
from tests.stages.test_sft_data import prepared

NAMES = ["Ada", "Bea", "Cleo", "Dora", "Ella"]


def question(number: int, director: str) -> dict[str, Any]:
    """A question of two hops; several have the same director, and so the same second hop."""
    film = f"Film {number}"
    return {
        "id": f"2hop__{number}",
        "paragraphs": [
            {"idx": 0, "title": film, "paragraph_text": f"{director} directed {film}."},
            {"idx": 1, "title": director, "paragraph_text": f"{director} was born in Rome."},
        ],
        "question": f"Where was the director of {film} born?",
        "question_decomposition": [
            {"question": f"{film} >> director", "answer": director, "paragraph_support_idx": 0},
            {"question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 1},
        ],
        "answer": "Rome",
    }


QUESTIONS = [question(number, NAMES[number % 3]) for number in range(8)]


def answer(text: str, earlier: int) -> str:
    """Extracts one triplet, selects the first fact, and rewrites a question."""
    if "Facts:" in text:
        return "[1]"
    if "Title: Film" in text:
        film, director = text.split("Title: ")[1].split("\n")[0], text.split("Text: ")[1].split()[0]
        return json.dumps([[film, "was directed by", director], ["broken"]])
    if "Title: " in text:
        return json.dumps([[text.split("Title: ")[1].split("\n")[0], "was born in", "Rome"]])
    return text.replace("Who", "Which person")


def context_of(root: Path, server: FakeEndpoint, *overrides: str) -> StageContext:
    endpoint = json.dumps({"base_url": server.url, "model": "fake", "concurrency": 1})
    return prepared(
        root,
        "judges=null",
        "rewards.hiprag.process=0",
        "sft_data.triplets=llm",
        "sft_data.selector=llm",
        "sft_data.rewriter=llm",
        f"sft_data.endpoint={endpoint}",
        "sft_data.memory={searched: 0.5, rehearsed: 3}",
        f"cache_dir={root / 'cache'}",
        f"runs_dir={root / 'runs'}",
        *overrides,
        base="embedded-hiprag.yaml",
        questions=QUESTIONS,
        triples=[{"head": "Ada", "relation": "is", "tail": "director", "title": "Ada"}],
    )


@pytest.fixture(autouse=True)
def base_model_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **__: Any) -> ScriptedEngine:
        return ScriptedEngine(lambda prompt, request: "Rome", CharacterTokenizer())

    monkeypatch.setattr("pipeline.llm.models.open_engine", opened)


def test_the_bytes_do_not_depend_on_the_division(tmp_path: Path) -> None:
    with FakeEndpoint(answer) as server:
        whole_context = context_of(tmp_path / "a", server)
        counts, whole = run_whole(whole_context, tmp_path / "a", sft_data.run)
        asked = dict(server.request_counts)
        server.request_counts.clear()
        context = context_of(tmp_path / "b", server)
        joined_counts, joined = run_divided(
            context, tmp_path / "b", 3, shard=sft_data.run_shard, merge=sft_data.run
        )
        assert dict(server.request_counts) == asked
    assert joined_counts == counts
    assert content(joined) == content(whole)
    statistics = json.loads((whole / "statistics.json").read_text())
    assert statistics["hops that it knows"] > 0
    assert statistics["left out: rejected triplets"] == 8
    assert counts["train"] > 8


def test_a_shard_refuses_too_few_examples_before_a_model_is_asked(tmp_path: Path) -> None:
    with FakeEndpoint(answer) as server:
        context = context_of(tmp_path, server, "sft_data.min_share=1", "sft_data.sizes={2: 99}")
        with pytest.raises(InputError, match="99"):
            run_shard(sft_data.run_shard, replace(context), tmp_path / "shard", 0, 3)
        assert server.request_counts.total() == 0
