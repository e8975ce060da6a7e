"""Cold-start examples of passages alone: without triplets, and of single-hop questions."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline import config
from pipeline.core.errors import InputError
from pipeline.core.record_io import read_records, write_jsonl
from pipeline.core.records import Chunk, Question, SftExample
from pipeline.knowledge.corpus.questions.load import Notes
from pipeline.methods.search_r1.cold_start import build_step
from pipeline.rollout.grammars.base import grammar
from pipeline.training.sft_data.steps import Hop, StepOptions, gold_sentence, parts_of
from tasks import corpus, graph, index, sft_data
from tasks.questions import read_split, supply_notes
from tests.stages.question_stages import run_questions, run_stages
from tests.stages.test_sft_data import run

CONFIGS = Path(__file__).parents[2] / "configs"
WITHOUT_TRIPLETS = (
    "grammar=search-r1",
    "graph={source: none, path: null}",
    "retrieval.variant=semantic",
)
DOCUMENTS = [
    {"title": "Brenholm", "text": "It is a port. Its mayor is Tom Villers. It has a harbour."},
    {"title": "Tom Villers", "text": "Tom Villers was born in Tollen."},
    {"title": "Tollen", "text": "Tollen lies on the Aske."},
    {"title": "Aske", "text": "The Aske is a river."},
]
ROWS = [
    {
        "id": "squad",
        "title": "Brenholm",
        "context": DOCUMENTS[0]["text"],
        "question": "who is the mayor of brenholm",
        "answers": {"text": ["Tom Villers"], "answer_start": [27]},
    },
    {
        "question_id": "own",
        "question": "Where was Tom Villers born?",
        "answers": ["Tollen town", "Tollen"],
        "evidence": ["Tom Villers: Tom Villers was born in Tollen."],
    },
    {"question_id": "bare", "question": "Who?", "answers": ["No one"], "hop": "single"},
    {
        "question_id": "two",
        "question": "Where was the mayor of Brenholm born?",
        "answers": ["Tollen"],
        "hop": "multi",
        "evidence": ["Brenholm: Its mayor is Tom Villers.", "Tom Villers: was born in Tollen."],
    },
]


def settings(tmp_path: Path, *overrides: str) -> config.Config:
    root = tmp_path / "data"
    root.mkdir(exist_ok=True)
    write_jsonl(root / "documents.jsonl", DOCUMENTS)
    write_jsonl(root / "questions.jsonl", ROWS)
    return config.load(
        CONFIGS / "embedded.yaml",
        (
            *WITHOUT_TRIPLETS,
            "data={}",
            f"data.root={root}",
            "data.sft=[{path: questions.jsonl}]",
            "corpus.files=[{path: documents.jsonl}]",
            "sft_data={sizes: {1: 9}, min_share: 0, other_paragraph: 0}",
            "index.embedder.dtype=float32",
            f"cache_dir={tmp_path}/cache",
            *overrides,
        ),
    )


def examples(
    tmp_path: Path, *overrides: str
) -> tuple[dict[str, SftExample], dict[str, int], config.Config]:
    """The training examples by id, and the stage's statistics."""
    chosen = settings(tmp_path, *overrides)
    inputs = {"questions": run_questions(chosen, tmp_path, "sft")[0].output}
    stages: dict[str, Any] = {"corpus": corpus, "graph": graph, "index": index}
    run_stages(chosen, tmp_path, inputs, {**stages, "sft-data": sft_data})
    done = read_records(tmp_path / "sft-data" / "train.parquet", SftExample)
    counts = json.loads((tmp_path / "sft-data" / "statistics.json").read_text())
    return {one.example_id: one for one in done}, counts, chosen


def only_step(example: SftExample) -> Any:
    [step] = grammar("search-r1").parse(example.completion, example.spans).steps
    return step


def test_decomposed_questions_need_no_triplets(tmp_path: Path) -> None:
    _, output = run(tmp_path, *WITHOUT_TRIPLETS, "sft_data.other_paragraph=0")
    done = read_records(output / "train.parquet", SftExample)
    assert sorted(one.hops for one in done) == [1, 1, 2]
    [whole] = [one for one in done if one.hops == 2]
    steps = grammar("search-r1").parse(whole.completion, whole.spans).steps
    assert '"Ann Lee was born in Rome"' in steps[1].summary
    assert [item.title for step in steps for item in step.context] == ["Emma", "Ann Lee"]


def test_a_single_hop_question_with_a_gold_passage_is_an_example(tmp_path: Path) -> None:
    done, counts, _ = examples(tmp_path)
    assert set(done) == {"squad#1", "own#1"}
    parsed = grammar("search-r1").parse(done["squad#1"].completion, done["squad#1"].spans)
    [step] = parsed.steps
    # The policy is asked this way, and its query is the question.
    assert done["squad#1"].prompt[-1].content == step.subquery == "who is the mayor of brenholm"
    assert step.think.startswith(("Who is the mayor of brenholm?", "What I need", "To find out"))
    assert '"Its mayor is Tom Villers"' in step.summary
    assert parsed.answer == "Tom Villers"
    assert [item.text for item in step.context] == [DOCUMENTS[0]["text"]]
    # Of several answers it takes the one that the passage names.
    assert done["own#1"].completion.endswith("<answer>Tollen</answer>")
    assert counts["left out: question without decomposition"] == 1
    assert counts["left out: hop: no supporting paragraph"] == 1


def test_a_step_shows_what_the_retrieval_shows_and_the_gold_passage(tmp_path: Path) -> None:
    overrides = ("retrieval.top_k=3", "retrieval.chunks=3", "sft_data.context=retrieved")
    done, _, _ = examples(tmp_path, *overrides)
    texts = {document["text"] for document in DOCUMENTS}
    for name, gold in (("squad#1", DOCUMENTS[0]), ("own#1", DOCUMENTS[1])):
        shown = [item.text for item in only_step(done[name]).context]
        assert len(set(shown)) == 3
        assert gold["text"] in shown
        assert set(shown) <= texts


def test_the_gold_passage_takes_every_place_and_is_shown_once() -> None:
    gold = Chunk("g", "Brenholm", "Its mayor is Tom Villers.", "d")
    others = [Chunk(f"o{n}", "Other", f"Passage {n}.", "d") for n in range(3)]
    places: Counter[int] = Counter()
    for seed in range(300):
        found = others if seed % 2 else [gold, *others[:2]]
        hop = Hop("q", 1, "Who is the mayor?", "Tom Villers", chunks=[gold], retrieved=found)
        step = build_step(hop, [], random.Random(seed), StepOptions())
        assert step
        ids = [item.id for item in step.context]
        assert len(ids) == 3
        assert ids.count("g") == 1
        places[ids.index("g")] += 1
    assert min(places[place] for place in range(3)) > 70


def test_a_shown_passage_is_cut_as_in_roll_outs(tmp_path: Path) -> None:
    overrides = ("sft_data.context=retrieved", "sampling.max_context_tokens=60")
    done, _, _ = examples(tmp_path, "retrieval.chunks=4", "retrieval.top_k=4", *overrides)
    shown = [item.text for item in only_step(done["own#1"]).context]
    assert 1 <= len(shown) < 4
    assert DOCUMENTS[1]["text"] in shown


def test_the_sentence_shares_the_most_words_with_the_question() -> None:
    text = 'Ann Lee sings. The film "Emma" of 1999 is by Ann Lee. Ann Lee directed Rome.'
    hop = Hop("q", 1, "Who made the film Emma?", "Ann Lee", chunks=[Chunk("c", "T", text, "d")])
    assert [fact.text for fact in gold_sentence(hop)] == [
        "\"The film 'Emma' of 1999 is by Ann Lee\""
    ]
    initials = Chunk("c", "T", "It was so. It was led by Bo K. Lee. It was so.", "d")
    hop = Hop("q", 1, "Who led it?", "Bo K. Lee", chunks=[initials])
    assert [fact.text for fact in gold_sentence(hop)] == ['"It was led by Bo K. Lee"']
    long = Hop("q", 1, "Who?", "Ann Lee", chunks=[Chunk("c", "T", "Ann Lee " * 31, "d")])
    assert gold_sentence(long) == []
    assert long.fault == "no sentence of the supporting paragraph names the answer"


@pytest.mark.parametrize(
    ("hop", "evidence", "count"),
    [("single", 2, 1), ("single", 0, 1), ("unknown", 1, 1), ("unknown", 2, 0), ("multi", 1, 0)],
)
def test_which_questions_are_their_own_only_hop(hop: Any, evidence: int, count: int) -> None:
    question = Question("q", "d", "Who?", ["Ann"], hop, ["Title: of Ann"] * evidence)
    assert len(parts_of(question)) == count


def checked(tmp_path: Path, *overrides: str, whole: bool = True) -> list[str]:
    chosen = settings(tmp_path, *overrides)
    files = [(file, Path(chosen.data.root or "") / file.path) for file in chosen.data.sft]
    questions = read_split("sft", files, 0, Notes())
    return list(supply_notes(chosen, questions, whole=whole))


def test_a_check_counts_the_examples_and_names_what_is_left_out_most(tmp_path: Path) -> None:
    assert checked(tmp_path) == [
        "data.sft: 4 questions give about 2 of the 9 examples that sft_data.sizes and "
        "sft_data.test_sizes ask for; left out most often: hop: no supporting paragraph (1)"
    ]
    assert checked(tmp_path, "sft_data.sizes={1: 2}") == []
    assert checked(tmp_path, whole=False)[0].startswith("data.sft: the first 4 questions")


def test_a_check_refuses_questions_without_any_example(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none of the 4 questions .* no triplets"):
        checked(tmp_path, "grammar=tearag", "pairs.terms=outcome-format")
    only = "data.sft=[{path: questions.jsonl, filter: {hop: multi}}]"
    with pytest.raises(InputError, match=r"none of the 1 .* question without decomposition: 1"):
        checked(tmp_path, only)
    assert checked(tmp_path, only, whole=False)


def test_shares_of_a_file_have_no_question_in_common(tmp_path: Path) -> None:
    rows = [{"question": f"Who is {n}?", "answer": "Ann"} for n in range(200)]
    write_jsonl(tmp_path / "q.jsonl", [*rows, *rows[:9]])

    def of(*share: float) -> set[str]:
        file = config.QuestionFile(path="q.jsonl", share=share)
        split = read_split("sampling", [(file, tmp_path / "q.jsonl")], 0, Notes())
        return {question.question for question in split}

    few, others = of(0, 0.3), of(0.3, 1)
    assert not few & others
    assert len(few | others) == 200
    assert 40 < len(few) < 80
