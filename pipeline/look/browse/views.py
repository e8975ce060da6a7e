"""The values of the pages of one run: lists, pairs, trajectories, passages.

Each function returns the variables of the template with the same name, or None when there is no
such record. Raises InputError for an impossible filter, StoreError for a file that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import InputError, SteepError
from pipeline.core.records import Pair, Trajectory
from pipeline.evaluation.excerpts import PairSide, pair_sides, question_of, texts_of
from pipeline.evaluation.terminal import answer_line, cost_line
from pipeline.look.browse.compare import Selection, Side
from pipeline.look.browse.filters import PAIRS, TRAJECTORIES, Table
from pipeline.look.browse.queries import Row
from pipeline.look.browse.site import OpenRun
from pipeline.look.browse.sources import CALLS
from pipeline.look.browse.steps import (
    evidence_matches,
    first_difference,
    format_error,
    scalar_terms,
    step_views,
)
from pipeline.look.browse.texts import (
    Piece,
    pair_pieces,
    pieces,
    tokens,
    trained_pieces,
)
from pipeline.methods import candidate_terms
from pipeline.pairs.reasons import place, reasons
from pipeline.pairs.select import Candidate
from pipeline.rollout.answering import LONGEST_QUESTION

if TYPE_CHECKING:
    from pipeline.look.browse.asking import Desk
    from pipeline.rollout.answering import Answered

Page = dict[str, Any]
Found = tuple[Row | None, Trajectory | None]


def listing(run: OpenRun, table: Table, parameters: Mapping[str, str]) -> Page:
    """One page of a list, with its filters and the values that they can take."""
    filters = run.queries.parse(table, parameters)
    return {
        "filters": filters,
        "listing": run.queries.page(table, filters),
        "facets": run.queries.facets(table, filters),
        "groups": run.sources.groups,
        "titles": {group.key: group.title for group in run.sources.groups},
        "numbers": run.queries.sort_columns(table),
        "terms": run.queries.terms(table),
    }


def pair(run: OpenRun, group: str, row: int, parameters: Mapping[str, str]) -> Page | None:
    """A pair side by side, with the reason for it, its steps, and all samples of its question."""
    record, of_group = run.record(Pair, group, row), run.sources.group(group)
    if record is None or of_group is None:
        return None
    around = _around(run, PAIRS, group, row, parameters)
    sides = pair_sides(record)
    rows = [run.queries.first("trajectories", group=group, trajectory_id=s.id) for s in sides]
    found = [
        (own, None if own is None else run.record(Trajectory, group, own["row"])) for own in rows
    ]
    texts, problem = _pair_texts(run, sides, found)
    shown = around["show_tokens"] or None
    views = [
        {
            "side": side.name,
            "id": side.id,
            "pieces": text,
            "tokens": shown and tokens(run.tokenizer, side.ids, side.spans, whole),
            "terms": scalar_terms(side.rewards),
            **_trajectory_values(run, group, facts, whole),
        }
        for side, text, (facts, whole) in zip(sides, texts, found, strict=True)
    ]
    samples = run.queries.where("trajectories", question_id=record.question_id, group=group)
    candidates = {sample["trajectory_id"]: _candidate(sample) for sample in samples}
    thresholds, why = of_group.thresholds, None
    chosen, rejected = (candidates.get(side.id) for side in sides)
    if chosen is not None and rejected is not None and not of_group.unexplained:
        why = reasons(record.kind, chosen, rejected, thresholds)
    return {
        "pair": record,
        "group": of_group,
        "question": question_of(record),
        "sides": views,
        "problem": problem,
        "difference": first_difference(views),
        "reasons": why,
        "unexplained": of_group.unexplained,
        "samples": sorted(
            samples, key=lambda sample: place(candidates[sample["trajectory_id"]], thresholds)
        ),
        **around,
    }


def _around(
    run: OpenRun, table: Table, group: str, row: int, parameters: Mapping[str, str]
) -> Page:
    """The place of a record in its list: filters, neighbours, and whether tokens are shown."""
    given = {name: value for name, value in parameters.items() if name != "tokens"}
    filters = run.queries.parse(table, given)
    before, after = run.queries.neighbours(table, filters, group, row)
    show_tokens = parameters.get("tokens") == "yes"
    return {
        "row": row, "filters": filters, "before": before, "after": after, "show_tokens": show_tokens
    }  # fmt: skip


def _candidate(sample: Row) -> Candidate:
    """A sample as it was paired, from the reward terms of the side table."""
    terms = {
        name.removeprefix("term_"): value
        for name, value in sample.items()
        if name.startswith("term_") and value is not None
    }
    return Candidate(
        sample["trajectory_id"],
        sample["sample"],
        sample["hop"],
        broken=sample["stop"] == "retrieval_error",
        **(candidate_terms(terms) or {}),
    )


def _pair_texts(
    run: OpenRun, sides: Sequence[PairSide], found: Sequence[Found]
) -> tuple[tuple[list[Piece], list[Piece]], str | None]:
    """Both texts as training reads them, with differences marked, or why they are missing."""
    problem = None
    try:
        texts = [
            trained_pieces(run.tokenizer, side.ids, side.spans, whole)
            for side, (_, whole) in zip(sides, found, strict=True)
        ]
    except InputError as error:
        texts = [[Piece(part.text, "unknown") for part in texts_of(side)] for side in sides]
        problem = str(error)
    return pair_pieces(*texts), problem


def _trajectory_values(
    run: OpenRun, group: str, facts: Row | None, record: Trajectory | None
) -> Page:
    """The values of a trajectory's page besides its text."""
    if record is None:
        return {"facts": None, "error": None, "steps": [], "evidence": [], "verdicts": {}}
    verdicts = run.queries.where("verdicts", group=group, trajectory_id=record.trajectory_id)
    return {
        "facts": facts,
        "error": None if record.format_ok else format_error(record),
        "steps": step_views(record),
        "evidence": evidence_matches(record),
        "verdicts": {row["step"]: row for row in verdicts},
    }


def versus(sides: Sequence[Side], question_id: str, selected: Selection) -> Page | None:
    """One trajectory of a question on each side of a comparison, with their differences marked.

    Of a question that was won or lost, the two have a right and a wrong answer. None when the
    question is not on both sides.
    """
    ids = [row.question_id for row in selected.shown]
    place = ids.index(question_id) if question_id in ids else None
    outcome = next((row.outcome for row in selected.rows if row.question_id == question_id), None)
    if outcome is None:
        return None
    wanted = {"won": (False, True), "lost": (True, False)}.get(outcome, (None, None))
    views, records = [], []
    for side, right in zip(sides, wanted, strict=True):
        queries, group = side.run.queries, side.group.key
        rows = queries.where("trajectories", question_id=question_id, group=group)
        facts = next((row for row in rows if row["correct"] == right), rows[0])
        record = side.run.record(Trajectory, group, facts["row"])
        if record is None:
            return None
        records.append(record)
        values = _trajectory_values(side.run, group, facts, record)
        names = {"side": side.group.title, "run": side.run.name, "group": side.group}
        views.append({**values, **names, "id": record.trajectory_id, "tokens": None})
    for view, text in zip(views, pair_pieces(*map(pieces, records)), strict=True):
        view["pieces"] = text
    return {
        "sides": views,
        "outcome": outcome,
        "difference": first_difference(views),
        "filters": selected.filters,
        "before": ids[place - 1] if place else None,
        "after": None if place is None else next(iter(ids[place + 1 :]), None),
    }


def trajectory(run: OpenRun, group: str, row: int, parameters: Mapping[str, str]) -> Page | None:
    """A trajectory with its text, steps, rewards, verdicts and pairs."""
    found = run.record(Trajectory, group, row)
    facts = None if found is None else run.queries.first("trajectories", group=group, row=row)
    if found is None or facts is None:
        return None
    around = _around(run, TRAJECTORIES, group, row, parameters)
    shown = (around["show_tokens"] and found.token_ids) or None
    return {
        "trajectory": found,
        "group": run.sources.group(group),
        "pieces": pieces(found),
        "tokens": shown and tokens(run.tokenizer, found.token_ids, found.token_spans, found),
        "terms": scalar_terms(found.rewards),
        "pairs": run.queries.pairs_of(found.trajectory_id),
        **around,
        **_trajectory_values(run, group, facts, found),
    }


def chunk(run: OpenRun, id: str) -> Page | None:
    """A passage with its facts; ``id`` is its own or that of one of its facts."""
    facts = run.knowledge("triplets", "id", id) or run.knowledge("hyperedges", "id", id)
    chunk_id = facts[0].chunk_id if facts else id
    found = run.knowledge("chunks", "id", chunk_id)
    if not found:
        return None
    return {
        "chunk": found[0],
        "fact_id": id if facts else None,
        "triplets": run.knowledge("triplets", "chunk_id", chunk_id),
        "hyperedges": run.knowledge("hyperedges", "chunk_id", chunk_id),
    }


def ask(run: OpenRun, desk: Desk, key: str, question: str) -> Page:
    """The form for a question, the question ``key`` with its answers, and earlier questions.

    ``question`` is in the form at first.
    """
    asked = desk.find(run.name, key)
    opened = desk.open  # read once: the thread of the desk may close the engine at any time
    waits = asked is not None and not asked.ended  # read once: the answer may come meanwhile
    names, note = list[str](), ""
    if run.policies is None:
        note = run.not_asked
    elif not waits:  # else the page renews itself every two seconds and has no form
        try:
            names, note = run.policies.names()
        except SteepError as error:
            note = str(error)
    return {
        "names": names,
        "note": note,
        "asked": asked,
        "waits": waits,
        "missing": bool(key) and asked is None,
        "typed": asked.question.question if asked and asked.problem else question,
        "examples": run.queries.test_questions(),
        "answers": [] if asked is None else [_answer(*answer) for answer in asked.answers],
        "earlier": [other for other in desk.of_run(run.name) if other is not asked],
        "open": () if opened is None or opened[0] != run.name else opened[1],
        "longest": LONGEST_QUESTION,
    }


def _answer(name: str, answered: Answered) -> Page:
    trajectory = answered.trajectory
    return {
        "name": name,
        "trajectory": trajectory,
        "without": answer_line(trajectory),  # the reason if there is no answer
        "cost": cost_line(trajectory, answered.seconds),
        "steps": step_views(trajectory),
        "pieces": pieces(trajectory),
    }


def call(run: OpenRun, group: str, key: str) -> Page | None:
    """The prompt, the reply and the verdict of a judge's call."""
    of_group = run.sources.group(group)
    path = None if of_group is None or of_group.judged is None else of_group.judged / CALLS
    found = run.queries.first(path, key=key) if path is not None and path.is_file() else None
    if found is None:
        return None
    steps = run.queries.records(
        'SELECT v.*, t."row" FROM verdicts v JOIN trajectories t USING ("group", trajectory_id) '
        'WHERE "group" = ? AND key = ? ORDER BY t.n, step LIMIT 20',
        [group, key],
    )
    return {"call": found, "group": of_group, "steps": steps}
