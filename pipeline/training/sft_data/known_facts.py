"""Which hops a base model answers without retrieval, for HiPRAG's cold start (arXiv 2510.07794).

Input: hops and the base model's greedy closed-book answers to their questions. Output: the hops
whose supervised step answers from parametric knowledge instead of searching, and examples of
closed-book questions. A hop counts as known when the closed-book answer matches the hop's answer
exactly (EM).

The closed-book examples keep an ability that over-search detection needs. HiPRAG (3.2) decides
whether a search was redundant by asking the policy the closed-book question. A small model that is
trained on trajectories alone forgets how to answer such questions; every search would then seem
necessary. The examples use the base model's answers, right or wrong, so that they teach no new
facts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.core.answer_metrics import exact_match
from pipeline.core.records import Message, SftExample
from pipeline.training.sft_data.steps import Hop


@dataclass
class KnownFacts:
    """What the base model knows about the hops.

    Attributes:
        from_memory: ids of the hops whose step is built without a search.
        closed_book: training examples of closed-book questions.
        num_asked: hops whose closed-book question the base model answered.
        num_known: hops that it answered exactly.
    """

    from_memory: frozenset[str] = frozenset()
    closed_book: list[SftExample] = field(default_factory=list)
    num_asked: int = 0
    num_known: int = 0

    def statistics(self) -> dict[str, int]:
        """Counts for ``statistics.json``; empty when the base model was not asked."""
        if not self.num_asked:
            return {}
        return {
            "hops asked of the base model": self.num_asked,
            "hops that it knows": self.num_known,
            "hops from memory": len(self.from_memory),
            "bare questions": len(self.closed_book),
        }


def select_known_facts(
    hops: Sequence[Hop],
    answers: Mapping[str, str],
    *,
    search_share: float,
    num_closed_book: int,
    seed: int,
) -> KnownFacts:
    """The hops to answer from memory, and the closed-book examples.

    Args:
        hops: hops with their gold answers.
        answers: the base model's closed-book answer by question.
        search_share: probability that the step of a known hop searches nevertheless.
        num_closed_book: closed-book examples at most.
        seed: of both random choices.
    """
    known_hops = [hop for hop in hops if exact_match(answers[hop.question], [hop.answer])]
    from_memory = frozenset(
        hop.id
        for hop in known_hops
        if random.Random(f"{seed}:memory:{hop.id}").random() >= search_share
    )
    # Half of the examples are known, or fewer if there are fewer.
    known = {hop.question for hop in known_hops}
    right = [question for question, answer in answers.items() if answer and question in known]
    wrong = [question for question, answer in answers.items() if answer and question not in known]
    rng = random.Random(f"{seed}:rehearsal")
    rng.shuffle(right)
    rng.shuffle(wrong)
    num_right = min(len(right), max(num_closed_book // 2, num_closed_book - len(wrong)))
    chosen = [*right[:num_right], *wrong[: num_closed_book - num_right]]
    examples = [
        SftExample(
            example_id=f"bare#{number}",
            question_id=f"bare#{number}",
            hops=0,
            prompt=[Message("user", question)],
            completion=answers[question],
            spans=[(0, len(answers[question]), "model")],
        )
        for number, question in enumerate(chosen, 1)
    ]
    return KnownFacts(from_memory, examples, num_asked=len(hops), num_known=len(known_hops))
