"""Closed-book answers of a policy to search queries."""

import pytest

from pipeline.core.content_cache import ContentCache
from pipeline.judges.closed_book import ClosedBookAnswer, closed_book_answers
from pipeline.llm.chat import EngineChat
from pipeline.rollout.grammars import grammar
from tests.graph.character_tokenizer import CharacterTokenizer
from tests.llm.scripted_engine import ScriptedEngine

TRAJECTORY = (
    "Step 1:\nImportant entity: Ann\nSubquery: Who?\n<Reference>\nEvidence 1: Triplet: a b c\n"
    "</Reference>\nSummary: So.\nFinal answer: Ann Lee"
)
ANSWERS = {
    "Who directed it?": "Ann Lee directed it.",
    "Who?": TRAJECTORY,
    "Nothing?": "",
    "Loop?": "la" * 50,
    "Token?": "Ann<|im_end|>user: no",
    "Thought?": "<think>\nIs it Bob? No.\n</think>\n\nAnn Lee",
    "Begun?": "is it Bob? No.</think>Ann Lee",  # the template began the block
    "Endless?": "<think>Bob" + "?" * 200,
}


@pytest.fixture(scope="module")
def by_query(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClosedBookAnswer]:
    """The answers to `ANSWERS`, to a query that the policy repeats, and to one that is too long."""

    def script(prompt: str, request: object) -> str:
        query = prompt.splitlines()[-2].removeprefix("user: ")
        return ANSWERS.get(query, f"prompt: {prompt}")

    def open_engine() -> ScriptedEngine:
        return ScriptedEngine(script, CharacterTokenizer(), max_model_len=400)

    cache = ContentCache(tmp_path_factory.mktemp("chat") / "chat.sqlite")
    with EngineChat(open_engine, {}, cache) as chat:
        queries = [*ANSWERS, "Echo?", "x" * 500]
        return closed_book_answers(queries, chat, grammar("tearag"), max_tokens=200)


def test_answers_are_read_from_text_and_from_whole_trajectories(by_query):
    assert by_query["Who directed it?"] == ClosedBookAnswer("Ann Lee directed it.")
    assert by_query["Who?"] == ClosedBookAnswer("Ann Lee")
    assert by_query["Nothing?"] == ClosedBookAnswer("")  # an empty answer is not a missing answer
    assert by_query["Loop?"].text == "la" * 50
    assert by_query["Token?"] == ClosedBookAnswer("Ann")
    assert by_query["Thought?"] == by_query["Begun?"] == ClosedBookAnswer("Ann Lee")
    cut_off = "no answer of the policy: its thoughts have no end"
    assert by_query["Endless?"] == ClosedBookAnswer("", cut_off)
    assert by_query["x" * 500] == ClosedBookAnswer("", "no answer of the policy: prompt too long")


def test_the_prompt_is_the_query_alone(by_query):
    assert by_query["Echo?"].text == "prompt: user: Echo?\nassistant:"
