"""Questions from documents: draft, verify, remove repetitions, and write question files.

Input: the outputs of the stages ``corpus`` and ``graph``, and a chat model. Output: a directory
with ``questions.jsonl`` and, for held-out documents, ``test.jsonl`` in the project's own form of
questions, ``rejected.jsonl`` with reasons, ``synthesis.json`` and a card. The chat keeps every
reply, so an interrupted synthesis continues and pays for no reply twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pipeline.core.atomic import write_json, write_text
from pipeline.core.columns import Records
from pipeline.core.errors import InputError
from pipeline.core.record_io import as_json, write_jsonl
from pipeline.core.records import Chunk, Question, Triplet
from pipeline.knowledge.corpus.overlap import find_overlaps, repeated_questions
from pipeline.llm.chat import Chat
from pipeline.training.export.directory import card, new_directory
from pipeline.training.synthesis.drafts import Draft, draft_questions
from pipeline.training.synthesis.paths import EvidencePath, evidence_paths
from pipeline.training.synthesis.verify import verify

KEPT, REPEATED = "kept", "repeats another question"


@dataclass(frozen=True)
class Wanted:
    """How many questions to draft, and the shares of two-hop questions and held-out documents."""

    questions: int = 200
    multi_hop: float = 0.5
    held_out: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Synthesis:
    """The kept questions of both splits; ``funnel`` has the outcomes by number of hops."""

    questions: list[Question]
    test: list[Question]
    funnel: dict[str, dict[str, int]]
    usage: dict[str, Any]


def synthesise(
    corpus: Path,
    graph: Path,
    chat: Chat,
    wanted: Wanted,
    output: Path,
    *,
    name: str,
    model: str,
    tell: Callable[[str], None],
) -> Synthesis:
    """Write the directory ``output`` and return its questions.

    ``name`` is the data set of the questions, ``model`` names the chat model in the card, and
    ``tell`` gets a line for each step. Raises InputError when ``output`` exists, or no question is
    kept, and what the chat raises.
    """
    with new_directory(output) as folder:
        multi = round(wanted.multi_hop * wanted.questions)
        paths = evidence_paths(
            Records(corpus / "chunks.arrow", Chunk),
            Records(graph / "triplets.arrow", Triplet),
            single=wanted.questions - multi,
            multi=multi,
            held_out=wanted.held_out,
            seed=wanted.seed,
        )
        pairs = sum(len(path.chunks) > 1 for path in paths)
        tell(f"{len(paths) - pairs:,} passages and {pairs:,} pairs of linked passages to ask about")
        made = draft_questions(paths, chat)
        drafts = [draft for draft in made if isinstance(draft, Draft)]
        tell(f"{len(drafts):,} drafts in the right form; verifying them")
        reasons = iter(verify(drafts, chat))
        outcomes: list[str | None] = [
            draft if isinstance(draft, str) else next(reasons) for draft in made
        ]
        splits = _without_repeats(made, outcomes, name)
        funnel = _funnel(paths, outcomes)
        tell(chat.usage.line())
        kept = len(splits[False]) + len(splits[True])
        if not kept:
            counts = ", ".join(f"{reason}: {n}" for reason, n in Counter(outcomes).most_common())
            raise InputError(
                f"none of {len(paths)} questions was kept ({counts or 'no passages'}); ask another "
                "model, or for more questions"
            )
        done = Synthesis(splits[False], splits[True], funnel, chat.usage.total())
        write_jsonl(folder / "questions.jsonl", map(as_json, done.questions))
        if done.test:
            write_jsonl(folder / "test.jsonl", map(as_json, done.test))
        write_jsonl(folder / "rejected.jsonl", _rejected(paths, made, outcomes))
        about = {"model": model, **asdict(wanted)}
        write_json(folder / "synthesis.json", {"settings": about, "funnel": funnel, **done.usage})
        text = card(
            "synthesis.md.j2", name=name, settings=about, funnel=funnel, usage=done.usage,
            train=len(done.questions), test=len(done.test),
        )  # fmt: skip
        write_text(folder / "README.md", text)
    return done


def _without_repeats(
    made: Sequence[Draft | str], outcomes: list[str | None], name: str
) -> dict[bool, list[Question]]:
    """The kept questions by whether they are held out; repetitions get an outcome here."""
    places: dict[str, int] = {}
    splits: dict[bool, list[Question]] = {True: [], False: []}
    for place, (draft, outcome) in enumerate(zip(made, outcomes, strict=True)):
        if isinstance(draft, Draft) and outcome is None:
            text = "\n".join([draft.question, *(chunk.id for chunk in draft.path.chunks)])
            digest = blake2b(text.encode(), digest_size=6).hexdigest()
            question = draft.record(f"{name}-{digest}", name)
            splits[draft.path.held_out].append(question)
            places[question.question_id] = place
    both = [*splits[True], *splits[False]]
    repeats = set(repeated_questions(both))
    repeats |= {overlap.question_id for overlap in find_overlaps(splits[False], splits[True])}
    for repeat in repeats:
        outcomes[places[repeat]] = REPEATED
    return {
        side: [one for one in questions if one.question_id not in repeats]
        for side, questions in splits.items()
    }


def _funnel(
    paths: Sequence[EvidencePath], outcomes: Sequence[str | None]
) -> dict[str, dict[str, int]]:
    funnel: dict[str, Counter[str]] = {"1 hop": Counter(), "2 hops": Counter()}
    for path, outcome in zip(paths, outcomes, strict=True):
        funnel["2 hops" if path.bridge else "1 hop"][outcome or KEPT] += 1
    return {
        hops: {"asked": counts.total(), KEPT: counts.pop(KEPT, 0), **counts}
        for hops, counts in funnel.items()
    }


def _rejected(
    paths: Sequence[EvidencePath], made: Sequence[Draft | str], outcomes: Sequence[str | None]
) -> list[dict[str, Any]]:
    return [
        {
            "reason": outcome,
            "passages": [chunk.id for chunk in path.chunks],
            "question": draft.question if isinstance(draft, Draft) else None,
            "answer": draft.answer if isinstance(draft, Draft) else None,
        }
        for path, draft, outcome in zip(paths, made, outcomes, strict=True)
        if outcome is not None
    ]
