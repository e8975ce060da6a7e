"""Every method's cold start as conversations with tool calls, over the closed world."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.closed_world.write import write_closed_world
from pipeline.config import load
from pipeline.core.record_io import as_json, read_records
from pipeline.core.records import SftExample
from pipeline.core.shipped import ROOT
from pipeline.llm.tokenizer import model_tokenizer
from pipeline.rollout.conversations.chat_template import ChatTemplate
from pipeline.rollout.conversations.steps import parse, tool_format
from pipeline.training.encode import encode_sft
from tasks import corpus, graph, sft_data
from tasks import hypergraph as hyper_stage
from tests.stages.question_stages import run_questions, run_stages

READER = str(ROOT / "data" / "tiny_reader")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed") / "world"
    write_closed_world(folder, seed=1, documents=200, sizes={"musique_train": 24})
    return folder


@pytest.mark.parametrize("name", ["hiprag-tools", "prograph-tools"])
def test_supervised_conversations_equal_the_templates_rendering(
    name: str, world: Path, tmp_path: Path
) -> None:
    settings = load(
        name,
        (
            f"model.base={READER}",
            "engine={kind: transformers, dtype: float32}",
            "sft_data.sizes={1: 4, 2: 4, 3: 4}",
            "sft_data.test_sizes={}",
            *(f"data.{split}=[]" for split in ("sampling", "validation", "test")),
        ),
    )
    questions, _ = run_questions(settings, tmp_path, "sft", world)
    inputs = {"world": world, "questions": questions.output}
    knowledge = hyper_stage if settings.grammar == "prograph" else graph
    run_stages(
        settings, tmp_path, inputs, {"corpus": corpus, "graph": knowledge, "sft-data": sft_data}
    )
    tokenizer = model_tokenizer(READER, settings.model.chat_template)
    assert tokenizer.chat_template == load("embedded-tools").model.chat_template
    template = ChatTemplate(tokenizer, tool_format(settings.grammar).tools)
    examples = read_records(tmp_path / "sft-data" / "train.parquet", SftExample)
    encoded = encode_sft(tokenizer, examples)
    conversations = 0
    for example, one in zip(examples, encoded, strict=True):
        if not example.hops:  # HiPRAG rehearses closed-book questions, without tools
            assert (name, example.tools) == ("hiprag-tools", None)
            continue
        messages = [as_json(message) for message in (*example.prompt, *example.messages)]
        built = template.build(messages)
        assert (built.mismatch, one.input_ids) == ("", built.prompt_ids + built.token_ids)
        parsed = parse(tool_format(settings.grammar), messages)
        assert parsed.format_error is None
        assert len(parsed.steps) == example.hops + (name == "prograph-tools")  # its answer
        conversations += 1
    assert conversations == 12
