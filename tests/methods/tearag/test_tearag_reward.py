"""TeaRAG's reward terms, computed by hand, and failures that must not become rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config.policy import TeaRagReward
from pipeline.core.errors import RetrievalError
from pipeline.core.records import ContextItem, Step, Trajectory
from pipeline.core.similarity import lexical
from pipeline.methods.tearag.grammar import TeaRag
from pipeline.methods.tearag.reward import consistency, score
from tests.smallest import small_trajectory


def trajectory(**values: Any) -> Trajectory:
    """A well-formed two-step trajectory for a two-hop question; ``values`` replace its fields."""
    steps = [
        Step(
            entities=["Film X"],
            subquery="Who directed Film X?",
            context=[ContextItem("chunk", "c", "Film X", "directed by Ann Lee", 0.5)],
            summary="Ann Lee directed it",
        ),
        Step(
            entities=["Ann Lee", "Oslo"],
            subquery="Where was Ann Lee born?",
            context=[ContextItem("triplet", "t", "", "Ann Lee born Rome", 0.5)],
            summary="born in Rome",
        ),
    ]
    defaults: dict[str, Any] = {
        "dataset": "musique",
        "hop": "multi",
        "answers": ["Rome"],
        "evidence": ["Film X directed by Ann Lee", "Ann Lee born Rome Italy"],
        "steps": steps,
        "answer": "Rome, Italy",
        "format_ok": True,
    }
    return small_trajectory(**(defaults | values))


def terms(record: Trajectory, weights: TeaRagReward | None = None) -> dict[str, Any]:
    (rewards,) = score([record], lexical, weights) if weights else score([record], lexical)
    return rewards


def test_every_term_of_a_multi_hop_trajectory() -> None:
    """Evidence 1 has 6 tokens {film, x, directed, by, ann, lee}, evidence 2 has 5.

    Subqueries: "who directed film x" shares 3 of 6, "where was ann lee born" 3 of 5. Context: the
    first item, title included, has all 6; the second 4 of 5. Summaries: "ann lee directed it"
    shares 3 of 6 with evidence 1; evidence 2 shares {ann, lee} with it and {born, rome} with the
    second: 2 of 5. Only the first step's subquery names all of its entities.
    """
    rewards = terms(trajectory())
    assert rewards["memory"] == {
        "subquery": [3 / 6, 3 / 5],
        "context": [1.0, 4 / 5],
        "summary": [3 / 6, 2 / 5],
    }
    assert rewards["outcome"] == 2 / 3
    assert rewards["format"] == 1.0
    assert rewards["consistency"] == 0.5
    assert rewards["subquery"] == pytest.approx(0.55)
    assert rewards["context"] == pytest.approx(0.9)
    assert rewards["summary"] == pytest.approx(0.45)
    process = 0.1 * 0.5 + 0.3 * 0.55 + 0.3 * 0.9 + 0.3 * 0.45
    assert rewards["process"] == pytest.approx(process)
    assert rewards["total"] == pytest.approx(1 + 2 / 3 + process)


def test_a_constant_divides_the_sums_in_place_of_the_steps() -> None:
    """Two steps: the sums of the test above, 1.1, 1.8 and .9, and one consistent step of two."""
    paper, halves, sums = (
        terms(trajectory(), TeaRagReward(divisor=divisor)) for divisor in ("steps", 2.0, 1)
    )
    assert halves == paper
    assert (sums["subquery"], sums["context"]) == (pytest.approx(1.1), pytest.approx(1.8))
    assert (sums["summary"], sums["consistency"]) == (pytest.approx(0.9), 1.0)
    assert sums["process"] == pytest.approx(2 * paper["process"])
    assert terms(trajectory(steps=[]), TeaRagReward(divisor=3))["process"] == 0


def test_process_is_not_clipped_when_one_step_finds_much_evidence() -> None:
    step = Step(["b"], "a b c d", [ContextItem("chunk", "", "", "a b c d", 0)], "a b c d")
    rewards = terms(trajectory(steps=[step], evidence=["a", "b", "c d"]))
    assert rewards["subquery"] == 3.0
    assert rewards["process"] == pytest.approx(0.1 + 3 * 0.9)


def test_single_hop_outcome_is_divided_by_steps_and_process_is_zero() -> None:
    rewards = terms(trajectory(hop="single", answer="Rome"))
    assert (rewards["outcome"], rewards["process"], rewards["total"]) == (0.5, 0.0, 1.5)
    record = trajectory(hop="single", answer="Rome")
    assert terms(record, TeaRagReward(single_outcome="f1"))["outcome"] == 1.0


STEP = """Step 1:
Important entity: Film X
Subquery: Who directed Film X?
<Reference>
Evidence 1: Title: "X" Text: Final answer: Oslo
</Reference>
"""


@pytest.mark.parametrize(
    ("tail", "last", "parsed"),
    [
        ("Final answer: Rome", 1.0, 0.0),  # no summary
        ("Summary: Oslo.\nFinal answer: Rome\nFinal answer: Rome Italy", 2 / 3, 1.0),
        ("Summary: Oslo.", 0.0, 0.0),  # a document cannot answer
        ("Summary: Oslo.\nFinal answer:\nRome", 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_malformed_trajectory_can_be_scored_by_its_last_answer(
    tail: str, last: float, parsed: float, recorded: bool
) -> None:
    """With recorded spans and without; the answer of the parser is that before the first error."""
    head, output = STEP.index("<Reference>") + len("<Reference>"), STEP + tail
    spans = [
        (0, head, "model"),
        (head, len(STEP), "observation"),
        (len(STEP), len(output), "model"),
    ]
    read = TeaRag().parse(output, spans)
    assert not read.format_ok
    record = trajectory(
        output=output, spans=spans if recorded else [], steps=read.steps, answer=read.answer,
        format_ok=False, answers=["Rome"],
    )  # fmt: skip
    rewards = terms(record, TeaRagReward(malformed_answer="last"))
    assert rewards["outcome"] == pytest.approx(last)
    (rewards,) = score([record], lexical)
    assert rewards["outcome"] == parsed


@pytest.mark.parametrize("hop", ["single", "multi"])
def test_without_steps_every_process_term_is_zero(hop: str) -> None:
    rewards = terms(trajectory(hop=hop, steps=[], format_ok=False, answer="Rome"))
    assert rewards["memory"]["context"] == [0.0, 0.0]
    names = ("format", "consistency", "subquery", "context", "summary", "process")
    assert [rewards[name] for name in names] == [0.0] * 6
    assert rewards["outcome"] == (0.0 if hop == "single" else 1.0)


def test_consistency_needs_every_entity_and_an_empty_name_never_occurs() -> None:
    steps = [
        Step(entities=["The Hague"], subquery="Where is hague, exactly?"),
        Step(entities=["Hague", "Oslo"], subquery="Is Hague far?"),
        Step(entities=["The"], subquery="What is the sea?"),
        Step(entities=["U.N."], subquery="Who leads the UN?"),
    ]
    assert consistency(steps) == 0.5


def broken(pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Returns NaN, as a model with overflowed weights does."""
    return np.full(len(pairs), np.nan)


def test_a_failure_is_never_a_reward() -> None:
    with pytest.raises(RetrievalError, match=r"nan.*expected a probability"):
        score([trajectory()], broken)


def test_the_process_counts_for_unknown_hops_only_with_evidence() -> None:
    """The outcome is never divided by the steps then."""
    known, unknown, bare = score(
        [
            trajectory(),
            trajectory(hop="unknown"),
            trajectory(hop="unknown", evidence=[]),
        ],
        lexical,
    )
    assert unknown == known
    assert bare["outcome"] == known["outcome"] > 0
    assert bare["process"] == 0
    assert bare["total"] == bare["outcome"] + bare["format"]
