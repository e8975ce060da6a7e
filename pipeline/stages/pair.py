"""Stage ``pair``: preference pairs of a round, the funnel, and a dataset card.

Input: the scored trajectories. Output: ``pairs.parquet``, ``funnel.parquet``, ``funnel.json`` and
``README.md``. The trajectories are read twice, so that only those of pairs are held in memory with
their token ids: the first pass reads the columns that the selection needs, the second builds the
pairs. Step pairs (ProGraph-R1) take a third pass, question by question.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.policy import Pairs
from pipeline.core.atomic import write_json, write_text
from pipeline.core.errors import InputError
from pipeline.core.input_files import iterate_parquet
from pipeline.core.methods import DEFAULT_METHOD
from pipeline.core.record_io import from_arrow, parse_record, write_parquet
from pipeline.core.records import Message, Pair, PairKind, Trajectory
from pipeline.grammars import grammar
from pipeline.grammars.base import Grammar
from pipeline.methods import method
from pipeline.pairs.candidates import CandidateTerms
from pipeline.pairs.card import card
from pipeline.pairs.funnel import PairingOutcome, count
from pipeline.pairs.select import PAPER, Candidate, CandidatePair, select
from pipeline.pairs.step_pairs import step_pairs
from pipeline.run.context import StageContext

_SELECTION_COLUMNS = [
    "trajectory_id", "question_id", "dataset", "hop", "sample", "output", "stop", "rewards",
]  # fmt: skip
_PAIR_COLUMNS = [
    "trajectory_id", "question_id", "dataset", "question", "hop", "answers", "evidence", "grammar",
    "output", "policy", "prompt_ids", "token_ids", "token_spans", "rewards",
]  # fmt: skip
_STEP_COLUMNS = [*_PAIR_COLUMNS, "spans", "steps", "format_ok"]


def run(context: StageContext) -> dict[str, int]:
    """Fill ``context.output`` with pairs.parquet, funnel.parquet, funnel.json and README.md.

    Raises InputError for trajectories without rewards and for repeated trajectory ids.
    """
    config, source = context.config, context.inputs["score"] / "trajectories.parquet"
    trained = method(config.rewards.kind)
    questions: dict[str, list[Candidate]] = {}
    datasets: dict[str, str] = {}
    for trajectory in _read(source, _SELECTION_COLUMNS):
        candidate = candidate_of(trajectory, trained.candidate_terms)
        questions.setdefault(trajectory.question_id, []).append(candidate)
        datasets[trajectory.trajectory_id] = trajectory.dataset
    selected, outcomes = pair_up(questions, datasets, config.pairs)
    if config.pairs.limit is not None:
        seed = f"{context.seed}:{context.round}"
        selected = limit(selected, outcomes, config.pairs.limit, seed)
    policy_grammar, system = grammar(config.grammar), config.prompt.system
    round_number = context.round or 0
    pairs = _build(source, selected, policy_grammar, system, round_number)
    counts_of_pairs = {"pairs": len(pairs)}
    if config.pairs.step_margin is not None:
        of_steps = _build_steps(
            source, config.pairs.step_margin, policy_grammar, system, round_number
        )
        if config.pairs.limit is not None:
            room = max(0, config.pairs.limit - len(pairs))
            chance = random.Random(f"{context.seed}:{context.round}:steps")
            of_steps = chance.sample(of_steps, min(room, len(of_steps)))
        pairs += of_steps
        counts_of_pairs = {"pairs": len(pairs), "step_pairs": len(of_steps)}
    write_parquet(context.output / "pairs.parquet", pairs, Pair)
    write_parquet(context.output / "funnel.parquet", list(outcomes.values()), PairingOutcome)
    counts = count(outcomes.values())
    write_json(context.output / "funnel.json", counts)
    text = card(
        f"{config.name}, round {context.round}",
        round_number=context.round,
        pairs=len(pairs),
        thresholds=config.pairs.model_dump(),
        counts=counts,
        selection=trained.selection,
    )
    write_text(context.output / "README.md", text)
    return {**counts_of_pairs, "trajectories": len(outcomes)}


def candidate_of(
    trajectory: Trajectory, terms_of: Callable[[Mapping[str, Any]], CandidateTerms | None]
) -> Candidate:
    """The values that the selection reads; outputs are compared by digest, being long and many.

    Raises InputError when the trajectory's rewards lack the terms of ``terms_of``.
    """
    broken = trajectory.stop == "retrieval_error"
    digest = hashlib.sha256(trajectory.output.encode()).hexdigest()
    candidate = Candidate(
        trajectory.trajectory_id, trajectory.sample, trajectory.hop, output=digest, broken=broken
    )
    if broken:
        return candidate
    terms = terms_of(trajectory.rewards or {})
    if terms is None:
        raise InputError(
            f"trajectory {trajectory.trajectory_id} has no rewards to pair by; "
            "run steep score on it first"
        )
    return replace(candidate, **terms)


def pair_up(
    questions: Mapping[str, Sequence[Candidate]],
    datasets: Mapping[str, str],
    thresholds: Pairs = PAPER,
) -> tuple[list[tuple[str, CandidatePair]], dict[str, PairingOutcome]]:
    """(question id, pair) in question order, and the pairing outcome of every trajectory by its id.

    Raises InputError when two trajectories share an id.
    """
    pairs: list[tuple[str, CandidatePair]] = []
    outcomes: dict[str, PairingOutcome] = {}
    for question_id, candidates in questions.items():
        selected, bins = select(candidates, thresholds)
        for candidate in candidates:
            name = candidate.id
            if name in outcomes:
                raise InputError(f"two trajectories are called {name}; ids must be unique")
            outcomes[name] = PairingOutcome(name, question_id, datasets[name], bins[name])
        for pair in selected:
            chosen, rejected = outcomes[pair.chosen.id], outcomes[pair.rejected.id]
            chosen.partner = chosen.partner or pair.rejected.id
            rejected.partner = pair.chosen.id
        pairs += [(question_id, pair) for pair in selected]
    return pairs, outcomes


def limit(
    pairs: Sequence[tuple[str, CandidatePair]],
    outcomes: Mapping[str, PairingOutcome],
    most: int,
    seed: str,
) -> list[tuple[str, CandidatePair]]:
    """At most ``most`` pairs, drawn with ``seed``; trajectories of the others go to bin over-limit."""
    kept = set(random.Random(seed).sample(range(len(pairs)), min(most, len(pairs))))
    remaining = [pair for number, pair in enumerate(pairs) if number in kept]
    used = {side.id for _, pair in remaining for side in (pair.chosen, pair.rejected)}
    for _, pair in pairs:
        for side in (pair.chosen, pair.rejected):
            if side.id not in used:
                outcomes[side.id].bin = "over-limit"
    return remaining


def _build(
    source: Path,
    selected: Sequence[tuple[str, CandidatePair]],
    policy_grammar: Grammar,
    system: str,
    round_number: int,
) -> list[Pair]:
    wanted = {side.id for _, pair in selected for side in (pair.chosen, pair.rejected)}
    trajectories = {
        trajectory.trajectory_id: trajectory for trajectory in _read(source, _PAIR_COLUMNS, wanted)
    }
    return [
        _pair(
            trajectories[pair.chosen.id],
            trajectories[pair.rejected.id],
            pair.kind,
            policy_grammar,
            system,
            round_number,
        )
        for _, pair in selected
    ]


def _build_steps(
    source: Path, margin: float, policy_grammar: Grammar, system: str, round_number: int
) -> list[Pair]:
    """Step pairs of all questions. The file holds the trajectories of a question in one run."""
    questions = itertools.groupby(
        _read(source, _STEP_COLUMNS), key=lambda trajectory: trajectory.question_id
    )
    return [
        _pair(chosen, rejected, "step", policy_grammar, system, round_number)
        for _, trajectories in questions
        for chosen, rejected in step_pairs(list(trajectories), margin)
    ]


def _pair(
    chosen: Trajectory,
    rejected: Trajectory,
    kind: PairKind,
    policy_grammar: Grammar,
    system: str,
    round_number: int,
) -> Pair:
    return Pair(
        question_id=chosen.question_id,
        prompt=policy_grammar.messages(system, chosen.question),
        chosen=[Message("assistant", chosen.output)],
        rejected=[Message("assistant", rejected.output)],
        chosen_id=chosen.trajectory_id,
        rejected_id=rejected.trajectory_id,
        kind=kind,
        chosen_rewards=chosen.rewards or {},
        rejected_rewards=rejected.rewards or {},
        policy=chosen.policy,
        round=round_number,
        prompt_ids=chosen.prompt_ids,
        chosen_ids=chosen.token_ids,
        rejected_ids=rejected.token_ids,
        chosen_spans=chosen.token_spans,
        rejected_spans=rejected.token_spans,
    )


def _read(source: Path, columns: list[str], wanted: set[str] | None = None) -> Iterator[Trajectory]:
    """Trajectories with the named columns only, a few hundred in memory at a time."""
    # Required fields that a selection of columns may lack.
    blank: dict[str, Any] = {
        "question": "",
        "answers": [],
        "evidence": [],
        "grammar": DEFAULT_METHOD,
    }
    for row in iterate_parquet(source, columns):
        if wanted is None or row["trajectory_id"] in wanted:
            yield parse_record(Trajectory, blank | from_arrow(row, Trajectory), source, None)
