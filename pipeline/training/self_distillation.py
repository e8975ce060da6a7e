"""Self-distillation: a policy that reads a better trajectory teaches itself without it.

Search-E1 (arXiv 2605.22511) minimizes the forward KL to the policy's own distribution in a context
that also shows a more efficient right trajectory of the question. Input: a preference pair. The
student's own trajectory is its rejected side, and the teacher, policy n - 1, reads the chosen side
before the question. Output: at each token of the rejected side that the policy wrote, the teacher's
most probable tokens with their log-probabilities, and examples of `pipeline.training.sft`.

Up to a constant, the forward KL is the cross-entropy with the teacher's tokens as labels. An
example has one token at each place, drawn from the teacher's most probable ones; the mean over
draws is the cross-entropy with that distribution. Labels with weights would need a loss that TRL
does not compute without the logits of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipeline.core.errors import InputError
from pipeline.core.records import Message, Pair
from pipeline.llm.tokenizer import Tokenizer
from pipeline.llm.tokens import prompt_ids
from pipeline.llm.transformers_engine import TransformersEngine
from pipeline.training.encode import IGNORED, EncodedPair, EncodedSft

TOP = 16  # tokens that are kept at each place
DRAWS = 4  # examples of each trajectory


@dataclass(slots=True)
class Taught:
    """What the teacher would write in place of the N tokens that the policy wrote in a trajectory.

    Row n holds `TOP` ids, most probable first, and their log-probabilities (nats).
    """

    pair: str  # name of the pair, as of `EncodedPair`
    token_ids: list[list[int]]
    logprobs: list[list[float]]


def taught(
    engine: TransformersEngine, tokenizer: Tokenizer, pairs: Iterable[Pair]
) -> Iterator[Taught]:
    """The rejected side of every pair under the policy of ``engine`` that reads the chosen side.

    Raises InputError for a conversation.
    """
    for pair in pairs:
        asked = _privileged(tokenizer, pair)
        top = engine.top([*asked, *pair.rejected_ids], len(pair.rejected_ids), TOP)
        written = [at for first, end, who in pair.rejected_spans if who == "model"
                   for at in range(first, end)]  # fmt: skip
        rows = [top[at] for at in written]
        yield Taught(
            f"{pair.chosen_id}>{pair.rejected_id}",
            [[token for token, _ in row] for row in rows],
            [[logprob for _, logprob in row] for row in rows],
        )


def _privileged(tokenizer: Tokenizer, pair: Pair) -> list[int]:
    """Token ids of the prompt in which the chosen trajectory stands before the question.

    After the question the tiny reader used it less: the gold answer had -2.0 nats a token there,
    -1.3 here and -6.5 without it.
    """
    if len(pair.chosen) != 1 or pair.tools:
        raise InputError(
            f"pair {pair.chosen_id} > {pair.rejected_id} is of conversations; the loss distill "
            "reads the format tags alone; set dpo.loss to another"
        )
    *before, question = pair.prompt
    shown = replace(question, content=f"{pair.chosen[0].content}\n\n{question.content}")
    return prompt_ids(tokenizer, [Message(one.role, one.content) for one in (*before, shown)])


def examples(pair: EncodedPair, teacher: Taught, seed: int) -> Iterator[EncodedSft]:
    """The rejected side, `DRAWS` times, with labels drawn from the teacher's distributions."""
    logits_NK = np.array(teacher.logprobs)
    generator = np.random.default_rng([seed, *teacher.pair.encode()])
    start = [IGNORED] * len(pair.prompt_ids)
    for number in range(DRAWS):
        noisy_NK = logits_NK + generator.gumbel(size=logits_NK.shape)
        chosen = zip(teacher.token_ids, noisy_NK.argmax(1), strict=True)
        drawn = (ids[at] for ids, at in chosen)
        labels = [next(drawn) if trained else IGNORED for trained in pair.rejected_mask]
        yield EncodedSft(
            f"{pair.id}#{number}", [*pair.prompt_ids, *pair.rejected_ids], [*start, *labels]
        )
