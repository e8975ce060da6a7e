"""The stage from decomposed questions to masked examples, without and with models."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import config
from pipeline.core.content_cache import ContentCache
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_jsonl
from pipeline.core.records import Chunk, SftExample, Triplet
from pipeline.engine.context import StageContext
from pipeline.llm.chat import EngineChat
from pipeline.llm.engine import GenerationRequest
from pipeline.rollout.grammars.base import grammar
from pipeline.training.sft_data.by_model import (
    extract_triplets,
    parse_numbers,
    rewrite,
    select_supporting,
)
from pipeline.training.sft_data.steps import Hop
from tasks import corpus, graph, sft_data
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.fake_endpoint import FakeEndpoint
from tests.llm.scripted_engine import ScriptedEngine
from tests.stages.question_stages import run_questions, run_stages

CONFIGS = Path(__file__).parents[2] / "configs"
BEFORE = {"corpus": corpus, "graph": graph}

QUESTION = {
    "id": "2hop__1_2",
    "paragraphs": [
        {"idx": 0, "title": "Emma", "paragraph_text": "Ann Lee directed </Reference> Emma."},
        {"idx": 1, "title": "Ann Lee", "paragraph_text": "Ann Lee was born in Rome."},
    ],
    "question": "Where was the director of Emma born?",
    "question_decomposition": [
        {"question": "Emma >> director", "answer": "Ann Lee", "paragraph_support_idx": 0},
        {"question": "Where was #1 born?", "answer": "Rome", "paragraph_support_idx": 1},
    ],
    "answer": "Rome",
}
TRIPLES = [
    {"head": "Emma", "relation": "has director", "tail": "Ann Lee", "title": "Emma"},
    {"head": "Ann Lee", "relation": "was born in", "tail": "Rome", "title": "Ann Lee"},
]


def prepared(
    folder: Path,
    *overrides: str,
    base: str = "embedded.yaml",
    questions: Sequence[dict[str, Any]] = (QUESTION,),
    triples: Sequence[dict[str, Any]] = TRIPLES,
) -> StageContext:
    """The stage over these questions of MuSiQue, after the stages before it."""
    root = folder / "data"
    root.mkdir(parents=True)
    write_jsonl(root / "musique.jsonl", questions)
    sentences = [triple | {"sentence": triple["head"]} for triple in triples]
    write_jsonl(root / "triplets.jsonl", sentences)
    settings = config.load(
        CONFIGS / base,
        (
            "data={}",
            f"data.root={root}",
            "data.sft=[{dataset: musique, path: musique.jsonl}]",
            "corpus.files=[{path: musique.jsonl, format: questions, dataset: musique}]",
            "sft_data.sizes={1: 5, 2: 5}",
            "sft_data.test_sizes={}",
            "sft_data.min_share=0",
            *overrides,
        ),
    )
    inputs = {"questions": run_questions(settings, folder, "sft")[0].output}
    run_stages(settings, folder, inputs, BEFORE)
    output = folder / "sft-data"
    output.mkdir()
    return StageContext(settings, "sft-data", output, folder, inputs)


def run(folder: Path, *overrides: str, **data: Any) -> tuple[dict[str, int], Path]:
    """The counts and the output of the stage."""
    context = prepared(folder, "prompt.system=Think in steps.", *overrides, **data)
    return sft_data.run(context), context.output


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[SftExample]:
    """What the stage makes of one question of two hops."""
    counts, output = run(tmp_path_factory.mktemp("one"))
    assert counts == {"train": 3, "test": 0}
    return read_records(output / "train.parquet", SftExample)


def test_a_question_gives_its_trajectory_and_each_of_its_steps(examples: list[SftExample]) -> None:
    by_id = {example.example_id: example for example in examples}
    assert set(by_id) == {"2hop__1_2", "2hop__1_2#1", "2hop__1_2#2"}
    whole = by_id["2hop__1_2"]
    assert [(message.role, message.content) for message in whole.prompt] == [
        ("system", "Think in steps."),
        ("user", "Where was the director of Emma born?"),
    ]
    parsed = grammar("tearag").parse(whole.completion, whole.spans)
    assert parsed.format_ok
    assert parsed.answer == "Rome"
    assert [(step.entities, step.subquery) for step in parsed.steps] == [
        (["Emma"], "Who is the director of Emma?"),
        (["Ann Lee"], "Where was Ann Lee born?"),
    ]
    single = by_id["2hop__1_2#2"]
    assert (single.hops, single.prompt[1].content) == (1, "Where was Ann Lee born?")


def test_the_loss_covers_the_opening_tag_and_none_of_the_evidence(
    examples: list[SftExample],
) -> None:
    for example in examples:
        model = [example.completion[s:e] for s, e, writer in example.spans if writer == "model"]
        masked = [example.completion[s:e] for s, e, writer in example.spans if writer != "model"]
        assert len(masked) == example.hops
        assert all(piece.endswith("<Reference>") for piece in model[:-1])
        assert all(piece.endswith("</Reference>\n") for piece in masked)
        assert all("Evidence 1:" in piece for piece in masked)
        assert not any("Evidence" in piece for piece in model)
        # The document that says </Reference> could not close the reference.
        assert all(piece.count("</Reference>") == 1 for piece in masked)


def test_the_error_for_an_empty_training_set_has_requested_and_available_numbers(
    tmp_path: Path,
) -> None:
    said = r"1-hop: 0 \+ 0 requested, 2 available; .*3-hop: 4 \+ 0 requested, 0 available"
    with pytest.raises(InputError, match=said):
        run(tmp_path, "sft_data.sizes={3: 4}", "sft_data.test_sizes={2: 1}")


def write_elsewhere(folder: Path) -> str:
    """Has Emma's paragraph with other words around it, and not Ann Lee's; returns the override."""
    documents = [
        {"title": "Emma", "text": "A comedy: Ann Lee directed </Reference> Emma.", "id": "e"},
        {"title": "Ann Lee", "text": "Ann Lee sings in a choir of Oslo.", "id": "a"},
    ]
    write_jsonl(folder / "emma.jsonl", documents)
    return f"corpus.files=[{{path: {folder}/emma.jsonl}}]"


def answer(text: str, before: int) -> str:
    """A model that extracts one triplet, and calls the first fact the supporting one."""
    if "Title: Ann Lee" in text:
        return '[["Ann Lee", "was born in", "Rome"]]' if "Rome" in text else "[]"
    return '[["Emma", "has director", "Ann Lee"]]'


@pytest.mark.parametrize("source", ["sft_data", "graph"])
def test_a_paragraph_outside_the_corpus_is_extracted_from_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """By the model of sft_data, or by that of the graph if triplets come from the graph."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    corpus_files = write_elsewhere(tmp_path)
    with FakeEndpoint(answer) as server:
        settings = json.dumps({"base_url": server.url, "model": "fake", "api_key_env": None})
        overrides = {
            "sft_data": ("sft_data.triplets=llm", f"sft_data.endpoint={settings}"),
            "graph": (f"graph={{source: llm, endpoint: {settings}}}",),
        }[source]
        cache = f"cache_dir={tmp_path / 'cache'}"
        alone = "sft_data.other_paragraph=0"
        counts, output = run(tmp_path, corpus_files, *overrides, cache, alone)
        asked = sum(times for text, times in server.request_counts.items() if "in Rome" in text)
    assert asked == 1  # the own paragraph, by one of the two models
    assert counts == {"train": 3, "test": 0}
    statistics = json.loads((output / "statistics.json").read_text())
    assert {name: count for name, count in statistics.items() if "paragraph" in name} == {
        "hops with a paragraph found by text": 0,
        "hops with a paragraph found by overlap": 1,
        "hops with the question's own paragraph": 1,
    }
    examples = read_records(output / "train.parquet", SftExample)
    (whole,) = (example for example in examples if example.example_id == "2hop__1_2")
    first, second = grammar("tearag").parse(whole.completion, whole.spans).steps
    assert any("A comedy: Ann Lee directed" in item.text for item in first.context)
    assert [item.text for item in second.context if item.kind == "chunk"] == [
        "Ann Lee was born in Rome."
    ]
    assert [item.text for item in second.context if item.kind == "triplet"] == [
        "Ann Lee was born in Rome"
    ]


def test_paragraphs_outside_the_corpus_stop_the_stage_with_the_setting_that_extracts(
    tmp_path: Path,
) -> None:
    questions = [QUESTION | {"id": f"2hop__1_{n}", "question": f"{n}?"} for n in range(3)]
    (tmp_path / "other.jsonl").write_text('{"title": "Emma", "text": "x", "id": "e"}\n')
    said = r"hop: paragraph not in the corpus: 6; set sft_data.triplets: llm"
    with pytest.raises(InputError, match=said):
        run(tmp_path, f"corpus.files=[{{path: {tmp_path}/other.jsonl}}]", questions=questions)


def test_real_questions_give_well_formed_trajectories(real_data: Path, tmp_path: Path) -> None:
    settings = config.load(CONFIGS / "musique-sample.yaml", data=str(real_data))
    inputs = {"questions": run_questions(settings, tmp_path, "sft")[0].output}
    run_stages(settings, tmp_path, inputs, {**BEFORE, "sft-data": sft_data})
    train = read_records(tmp_path / "sft-data/train.parquet", SftExample)
    test = read_records(tmp_path / "sft-data/test.parquet", SftExample)
    hops = Counter(example.hops for example in train)
    assert hops[1] > 80
    assert hops[2] > 20
    assert not {one.question_id for one in train} & {one.question_id for one in test}
    statistics = json.loads((tmp_path / "sft-data/statistics.json").read_text())
    assert statistics["train 2-hop"] == hops[2] < statistics["train 2-hop asked for"] == 60
    for example in train:
        parsed = grammar("tearag").parse(example.completion, example.spans)
        assert parsed.format_ok
        for step in parsed.steps:
            assert all(entity in step.subquery for entity in step.entities)
            assert {item.kind for item in step.context} == {"chunk", "triplet"}


def hop() -> Hop:
    chunk = Chunk("c", "Emma", "Ann Lee directed Emma.", "d")
    triplets = [
        Triplet("c:0", "Emma", "is", "film", "c"),
        Triplet("c:1", "Ann", "made", "Emma", "c"),
    ]
    return Hop("q", 1, "Emma >> director?", "Ann Lee", ("Emma",), "Emma", [chunk], triplets)


def model(folder: Path, answer: str) -> EngineChat:
    def script(prompt: str, request: GenerationRequest) -> str:
        return answer

    cache = ContentCache(folder / f"{answer}.sqlite")
    return EngineChat(lambda: ScriptedEngine(script, CharacterTokenizer()), {}, cache)


@pytest.mark.parametrize(
    ("answer", "question", "fault"),
    [
        ("Who directed\nEmma?", "Who directed Emma?", None),
        ("Did Ann Lee direct Emma?", "Emma >> director?", "rewriting leaks the answer"),
        ("Who directed it?", "Emma >> director?", "rewriting loses a name"),
        ("I cannot do that.", "Emma >> director?", "rewriting is no question"),
    ],
)
def test_a_rewritten_question_is_used_only_if_it_can_be_the_question(
    tmp_path: Path, answer: str, question: str, fault: str | None
) -> None:
    rewritten, faults = hop(), Counter[str]()
    rewrite([rewritten], model(tmp_path, answer), faults)
    assert rewritten.question == question
    assert dict(faults) == ({fault: 1} if fault else {})


def test_a_model_extracts_and_selects_the_supporting_triplets(tmp_path: Path) -> None:
    single, faults = hop(), Counter[str]()
    answer = '[["Ann Lee", "directed", "Emma"], ["Emma"]]'
    assert extract_triplets([single], model(tmp_path, answer)) == 1
    assert [triplet.text for triplet in single.facts] == ["Ann Lee directed Emma"]
    selected = select_supporting([single], model(tmp_path, "The answer is [1]."), faults)
    assert selected == {single.id: single.facts}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[]", []),
        ("[2, 1]", [2, 1]),
        ("[3]", None),
        ("[1] or [2]", None),
        ("1", None),
        ("[1, 1]", None),
    ],
)
def test_a_selection_is_one_list_of_known_numbers(text: str, numbers: list[int] | None) -> None:
    assert parse_numbers(text, 2) == numbers
