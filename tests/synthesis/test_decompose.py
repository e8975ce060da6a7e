"""Hops of questions with known answers: what is kept of a model's decompositions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.records import Chunk, Decomposed, Question
from pipeline.training.synthesis.decompose import decompose
from tests.llm.fake_endpoint import FakeEndpoint
from tests.synthesis.test_synthesis import FIRST, HOPS, SECOND, opened

OTHER = Chunk("c-0", "Rome", "Rome is a city. Emma was shown there.", "c")
QUESTION = Question("q", "own", "Where was the director of Emma born?", ["Rome"], "unknown")
STEPS: list[dict[str, Any]] = [{**HOPS[0], "passage": 3}, {**HOPS[1], "passage": 2}]
ANSWERS = {  # with the title of the passage that gives it
    "Who directed Emma?": ("Emma", "Ann Lee"),
    "Where was Ann Lee born?": ("Ann Lee", "Rome"),
}


def made(tmp_path: Path, reply: object) -> Question | str:
    def script(prompt: str, _: int) -> str:
        if prompt.startswith("Decompose"):
            return reply if isinstance(reply, str) else json.dumps(reply)
        title, answer = ANSWERS[prompt.rpartition("Question: ")[2]]
        return json.dumps({"answer": answer if f'"{title}": ' in prompt else None})

    with FakeEndpoint(script) as endpoint, opened(endpoint, tmp_path / "replies") as chat:
        [result] = decompose([QUESTION], [[OTHER, SECOND, FIRST]], chat)
    return result


def test_a_question_gets_its_evidence_and_hops(tmp_path: Path) -> None:
    question = made(tmp_path, {"hops": STEPS})
    assert isinstance(question, Question)
    assert (question.question_id, question.answers, question.hop, question.hops) == (
        "q", ["Rome"], "multi", 2,
    )  # fmt: skip
    assert question.evidence == [
        "Emma: It was directed by Ann Lee in 1999.",
        "Ann Lee: Ann Lee was born in Rome.",
    ]
    assert question.decomposition == [
        Decomposed("Who directed Emma?", "Ann Lee", "Emma", FIRST.text),
        Decomposed("Where was #1 born?", "Rome", "Ann Lee", SECOND.text),
    ]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I think so.", "unreadable reply"),
        ({"hops": [{**STEPS[0], "passage": 4}, STEPS[1]]}, "unreadable reply"),
        ({"hops": STEPS * 3}, "unreadable reply"),
        ({"hops": []}, "the passages do not lead to the answer"),
        ({"hops": STEPS[:1]}, "another answer"),
        ({"hops": [STEPS[1], {**STEPS[1], "question": "Where was Ann Lee born?"}]},
         "the hops do not form a chain"),
        ({"hops": [{**STEPS[0], "passage": 1}, STEPS[1]]}, "evidence not in its passage"),
        (
            {
                "hops": [
                    {"question": "Who directed Emma?", "answer": "Rome", "passage": 1,
                     "evidence": "Rome is a city."},
                    {**STEPS[1], "question": "Where was Ann Lee, not #1, born?"},
                ]
            },
            "answer in the question of a hop",
        ),
        (
            {"hops": [{"question": "Where was Ann Lee born?", "answer": "Rome", "passage": 1,
                       "evidence": "Rome is a city."}]},
            "a hop is not answered by its passage",
        ),
    ],
)  # fmt: skip
def test_a_wrong_decomposition_is_left_out(reply: object, reason: str, tmp_path: Path) -> None:
    assert made(tmp_path, reply) == reason
