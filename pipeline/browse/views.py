"""The values of the pages of one run: lists, pairs, trajectories, graphs, questions, passages.

Each function returns the variables of the template with the same name, or None when there is no
such record. Raises InputError for an impossible filter, StoreError for a file that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.browse.association import HEIGHT, WIDTH, association_graph
from pipeline.browse.compare import Outcome, Side
from pipeline.browse.figures import BarView, category_bars, histogram_bars
from pipeline.browse.filters import PAIRS, TRAJECTORIES, Filters, Table
from pipeline.browse.queries import Row
from pipeline.browse.records import read_call
from pipeline.browse.site import OpenRun
from pipeline.browse.steps import (
    evidence_matches,
    first_difference,
    format_error,
    scalar_terms,
    step_views,
)
from pipeline.browse.texts import (
    Piece,
    Token,
    pair_pieces,
    pair_tokens,
    pieces,
    tokens,
    trained_pieces,
)
from pipeline.config.policy import Pairs
from pipeline.core.errors import InputError, SteepError
from pipeline.core.records import Pair, Trajectory
from pipeline.evaluation.terminal_steps import answer_line, cost_line
from pipeline.methods import candidate_terms
from pipeline.pairs.reasons import Reasons, place, reasons
from pipeline.pairs.select import PAPER, Candidate
from pipeline.stages.answering import LONGEST_QUESTION

if TYPE_CHECKING:
    from pipeline.browse.asking import Desk
    from pipeline.stages.answering import Answered

Page = dict[str, Any]
_CHARTS = {"trajectories": "term_total", "pairs": "margin_total"}


def listing(run: OpenRun, table: Table, parameters: Mapping[str, str]) -> Page:
    """One page of a list, with its filters, facets and a distribution."""
    filters = run.queries.parse(table, parameters)
    facets = run.queries.facets(table, filters)
    charts = run.queries.sort_columns(table)
    default = _CHARTS[table.name]
    chart = filters.get("chart") or (default if default in charts else charts[0])
    return {
        "filters": filters,
        "listing": run.queries.page(table, filters),
        "facets": {
            name: category_bars(counts, lambda value, name=name: filters.address(**{name: value}))  # type: ignore[misc]
            for name, counts in facets.items()
        },
        "groups": run.sources.groups,
        "chart": chart,
        "charts": charts,
        "terms": run.queries.terms(table),
        "bars": _bars(run, table, filters, chart),
    }


def _bars(run: OpenRun, table: Table, filters: Filters, chart: str) -> list[BarView]:
    is_term = chart in run.queries.terms(table)
    names = ("from", "to") if is_term else (f"{chart}_from", f"{chart}_to")

    def address(low: float, high: float) -> str:
        """Both ends have all their digits, so that the range includes the rows at its ends."""
        ends = dict(zip(names, (repr(low), repr(high)), strict=True))
        return filters.address(**ends, **({"term": chart} if is_term else {}))

    return histogram_bars(run.queries.histogram(table, filters, chart), address)


def pair(run: OpenRun, group: str, row: int, parameters: Mapping[str, str]) -> Page | None:
    """A pair side by side, with the reason for it, its steps, and all samples of its question."""
    record = run.pair(group, row)
    if record is None:
        return None
    given = {name: value for name, value in parameters.items() if name != "tokens"}
    filters = run.queries.parse(PAIRS, given)
    of_side = {
        "chosen": run.trajectory_by_id(group, record.chosen_id),
        "rejected": run.trajectory_by_id(group, record.rejected_id),
    }
    show_tokens = parameters.get("tokens") == "yes"
    texts, problem = _pair_texts(run, record, of_side)
    sides = []
    for side, text in zip(("chosen", "rejected"), texts, strict=True):
        found = of_side[side]
        whole = found[1] if found is not None else None
        rewards = record.chosen_rewards if side == "chosen" else record.rejected_rewards
        sides.append(
            {
                "side": side,
                "id": record.chosen_id if side == "chosen" else record.rejected_id,
                "pieces": text,
                "tokens": _pair_tokens(run, record, side, whole) if show_tokens else None,
                "terms": scalar_terms(rewards),
                **_trajectory_values(run, group, found),
            }
        )
    before, after = run.queries.neighbours(PAIRS, filters, group, row)
    question = next((m.content for m in reversed(record.prompt) if m.role == "user"), "")
    of_group = run.sources.group(group)
    samples = [
        sample for sample in run.queries.of_question(record.question_id) if sample["group"] == group
    ]
    thresholds = of_group.thresholds if of_group is not None else PAPER
    candidates = {sample["trajectory_id"]: _candidate(sample) for sample in samples}
    return {
        "pair": record,
        "group": of_group,
        "row": row,
        "question": question,
        "sides": sides,
        "show_tokens": show_tokens,
        "problem": problem,
        "before": before,
        "after": after,
        "filters": filters,
        "difference": first_difference(sides),
        "reasons": _reasons(record, candidates, thresholds),
        "samples": sorted(
            samples, key=lambda sample: place(candidates[sample["trajectory_id"]], thresholds)
        ),
    }


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


def _reasons(
    record: Pair, candidates: Mapping[str, Candidate], thresholds: Pairs
) -> Reasons | None:
    """Why the pair was formed; None when its trajectories are no longer in the run."""
    if not {record.chosen_id, record.rejected_id} <= candidates.keys():
        return None
    return reasons(
        record.kind,
        candidates[record.chosen_id],
        candidates[record.rejected_id],
        thresholds,
    )


def _pair_texts(
    run: OpenRun, record: Pair, of_side: Mapping[str, tuple[Row, Trajectory] | None]
) -> tuple[tuple[list[Piece], list[Piece]], str | None]:
    """Both texts as training reads them, with differences marked, or why they are missing."""
    observed = {
        side: found[1].token_spans if found is not None else () for side, found in of_side.items()
    }
    try:
        left = trained_pieces(
            run.tokenizer, record.chosen_ids, record.chosen_spans, observed["chosen"]
        )
        right = trained_pieces(
            run.tokenizer, record.rejected_ids, record.rejected_spans, observed["rejected"]
        )
        problem = None
    except InputError as error:
        left = [Piece(message.content, "unknown") for message in record.chosen]
        right = [Piece(message.content, "unknown") for message in record.rejected]
        problem = str(error)
    return pair_pieces(left, right), problem


def _pair_tokens(run: OpenRun, record: Pair, side: str, whole: Trajectory | None) -> list[Token]:
    return pair_tokens(run.tokenizer, record, "chosen" if side == "chosen" else "rejected", whole)


def _trajectory_values(run: OpenRun, group: str, found: tuple[Row, Trajectory] | None) -> Page:
    """The values of a trajectory's page besides its text."""
    if found is None:
        return {"facts": None, "error": None, "steps": [], "evidence": [], "verdicts": {}}
    row, record = found
    return {
        "facts": row,
        "error": None if record.format_ok else format_error(record),
        "steps": step_views(record),
        "evidence": evidence_matches(record),
        "verdicts": run.queries.verdicts_of(group, record.trajectory_id),
    }


def versus(sides: Sequence[Side], question_id: str, outcome: Outcome | None) -> Page | None:
    """One trajectory of a question on each side of a comparison, with their differences marked.

    Of a question that was won or lost, the two have a right and a wrong answer. None when a side
    has no trajectory of the question.
    """
    found = []
    for number, side in enumerate(sides):
        rows = [
            row
            for row in side.run.queries.of_question(question_id)
            if row["group"] == side.group.key
        ]
        right = {"won": bool(number), "lost": not number}.get(outcome or "")
        rows.sort(key=lambda row: right is not None and row["correct"] != right)
        record = side.run.trajectory(side.group.key, rows[0]["row"]) if rows else None
        if record is None:
            return None
        found.append((side, rows, record))
    texts = pair_pieces(*(pieces(record) for _, _, record in found))
    views = [
        {
            "side": side.group.title,
            "run": side.run.name,
            "group": side.group,
            "id": record.trajectory_id,
            "pieces": text,
            "tokens": None,
            "samples": len(rows),
            **_trajectory_values(side.run, side.group.key, (rows[0], record)),
        }
        for (side, rows, record), text in zip(found, texts, strict=True)
    ]
    return {
        "sides": views,
        "outcome": outcome,
        "difference": first_difference(views),
    }


def trajectory(run: OpenRun, group: str, row: int, parameters: Mapping[str, str]) -> Page | None:
    """A trajectory with its text, steps, rewards, verdicts and pairs."""
    found, facts = run.trajectory(group, row), run.row(group, row)
    if found is None or facts is None:
        return None
    given = {name: value for name, value in parameters.items() if name != "tokens"}
    filters = run.queries.parse(TRAJECTORIES, given)
    show_tokens = parameters.get("tokens") == "yes"
    before, after = run.queries.neighbours(TRAJECTORIES, filters, group, row)
    return {
        "trajectory": found,
        "group": run.sources.group(group),
        "row": row,
        "pieces": pieces(found),
        "show_tokens": show_tokens,
        "tokens": (
            tokens(run.tokenizer, found.token_ids, found.token_spans, (), found.logprobs)
            if show_tokens and found.token_ids
            else None
        ),
        "terms": scalar_terms(found.rewards),
        "pairs": run.queries.pairs_of([found.trajectory_id]),
        "before": before,
        "after": after,
        "filters": filters,
        **_trajectory_values(run, group, (facts, found)),
    }


def graph(run: OpenRun, group: str, row: int, step: int) -> Page | None:
    """The association graph of a step (from 1)."""
    found = run.trajectory(group, row)
    if found is None or not 1 <= step <= len(found.steps):
        return None
    of_step = found.steps[step - 1]
    triplets = (run.knowledge.triplet(i.id) for i in of_step.context if i.kind == "triplet")
    facts = {triplet.id: triplet for triplet in triplets if triplet is not None}
    edges = (run.knowledge.hyperedge(i.id) for i in of_step.context if i.kind == "hyperedge")
    hyperedges = {edge["id"]: edge["entities"] for edge in edges if edge is not None}
    return {
        "trajectory": found,
        "group": run.sources.group(group),
        "row": row,
        "step": step_views(found)[step - 1],
        "steps": len(found.steps),
        "graph": association_graph(of_step, facts, hyperedges),
        "width": WIDTH,
        "height": HEIGHT,
        "variant": run.sources.settings.get("retrieval"),
    }


def question(run: OpenRun, question_id: str) -> Page | None:
    """All trajectories and pairs of a question, by round and policy."""
    rows = run.queries.of_question(question_id)
    if not rows:
        return None
    first = run.trajectory(rows[0]["group"], rows[0]["row"])
    ids = [row["trajectory_id"] for row in rows]
    return {
        "rows": rows,
        "groups": [
            group for group in run.sources.groups if any(r["group"] == group.key for r in rows)
        ],
        "first": first,
        "pairs": run.queries.pairs_of(ids),
    }


def chunk(run: OpenRun, chunk_id: str) -> Page | None:
    """A passage, its facts, and the trajectories that retrieved it."""
    found = run.knowledge.chunk(chunk_id)
    if found is None:
        return None
    total, rows = run.queries.retrieved_by(chunk_id)
    return {
        "chunk": found,
        "triplets": run.knowledge.triplets_of(chunk_id),
        "hyperedges": run.knowledge.hyperedges_of(chunk_id),
        "total": total,
        "rows": rows,
    }


def fact(run: OpenRun, fact_id: str) -> Page | None:
    """A triplet or an n-ary fact, its passage, and the trajectories that retrieved it."""
    triplet, edge = run.knowledge.triplet(fact_id), run.knowledge.hyperedge(fact_id)
    if triplet is None and edge is None:
        return None
    total, rows = run.queries.retrieved_by(fact_id)
    chunk_id = triplet.chunk_id if triplet is not None else (edge or {})["chunk_id"]
    return {
        "fact_id": fact_id,
        "triplet": triplet,
        "hyperedge": edge,
        "chunk": run.knowledge.chunk(chunk_id),
        "total": total,
        "rows": rows,
    }


def ask(run: OpenRun, desk: Desk, key: str) -> Page:
    """The form for a question, the question ``key`` with its answers, and earlier questions."""
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
    found = None if of_group is None or of_group.judged is None else read_call(of_group.judged, key)
    if found is None:
        return None
    steps = run.queries.records(
        'SELECT v.*, t."row" FROM verdicts v JOIN trajectories t USING ("group", trajectory_id) '
        'WHERE "group" = ? AND key = ? ORDER BY t.n, step LIMIT 20',
        [group, key],
    )
    return {"call": found, "group": of_group, "steps": steps}
