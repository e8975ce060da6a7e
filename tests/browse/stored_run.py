"""A small run in a stage store, as the browser reads it: fabricated records, written as stages do.

Two rounds with pairs, two evaluated policies, passages, facts, verdicts and calls. Nothing in it was
sampled or trained. The first passage and its trajectories hold text that attacks a page.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient
from tokenizers import Tokenizer

from pipeline.core.record_io import write_parquet
from pipeline.core.records import (
    Chunk,
    ContextItem,
    Pair,
    Question,
    Span,
    Trajectory,
    Triplet,
)
from pipeline.core.verdicts import Verdict
from pipeline.evaluation.measured import merge_policies, write_measured
from pipeline.judges.cases import CallRecord
from pipeline.look.browse.app import create_app
from pipeline.look.browse.asking import Desk
from pipeline.look.browse.site import RunEntry, Site
from pipeline.look.report.html_pages import BROWSER_LINKS
from pipeline.pairs.questions import PairingOutcome
from tasks.judge import CALLS, VERDICTS
from tests.smallest import write_paired, write_scored
from tests.stages.fabricated_run import preference_pair, trajectory

TINY_READER = Path(__file__).parents[2] / "data" / "tiny_reader"
HOSTILE = "<script>alert('owned')</script><img src=x onerror=alert(1)>\u202egnp"
NAME = "stored"
VERDICT = "In round 2 the process reward prefers right answers."
CONTROL = "steep run --set name=stored-control --set pairs.terms=outcome-format"
MALFORMED = 5  # the rejected side of the third pair of each round


def write_stored_run(runs: Path, name: str = NAME, *, better: bool = False) -> Path:
    """Write a run below ``runs`` and return its directory; with ``better`` more answers are right."""
    root = runs / name
    store = root / "store"
    for number in (1, 2):
        records = [_scored(number, index, better) for index in range(8)]
        inputs = {"sample": f"{name}-s{number}"}
        _stage(store, "sample", number, f"{name}-s{number}", {}, trajectories=records)
        _stage(store, "score", number, f"{name}-c{number}", inputs, trajectories=records)
        directory = _stage(
            store, "pair", number, f"{name}-p{number}", {"score": f"{name}-c{number}"}
        )
        pairs = [_pair(records[n], records[n + 1], number) for n in (0, 2, 4)]
        write_paired(directory / "pairs.parquet", pairs)
        bins = ["chosen", "rejected-easy"] * 3 + ["not-reached", "no-chosen"]
        partners = [records[n ^ 1].trajectory_id for n in range(6)] + [None, None]
        outcomes = [
            PairingOutcome(r.trajectory_id, r.question_id, r.dataset, bin, partner)  # type: ignore[arg-type]
            for r, bin, partner in zip(records, bins, partners, strict=True)
        ]
        write_parquet(directory / "funnel.parquet", outcomes, PairingOutcome)
        _judged(store, number, name, records)
    _evaluated(store, name)
    (root / "report.json").write_text(json.dumps({"verdict": VERDICT, "control": CONTROL}))
    (root / "report.html").write_text(
        f"{BROWSER_LINKS}<style>h1 {{ color: red }}</style><h1>{HOSTILE}</h1>"
    )
    _knowledge(store, name)
    return root


@contextmanager
def browsed(run: Path, desk: Desk | None = None, **known: Any) -> Iterator[TestClient]:
    """A client of the browser over one run, and what is ``known`` of it besides its store."""
    desk = desk or Desk()
    site = Site({NAME: RunEntry(NAME, run / "store", **known)}, run.parent / "cache")
    with TestClient(create_app(site, desk=desk), base_url="http://localhost:8766") as client:
        yield client
    desk.close()


def _evaluated(store: Path, name: str) -> None:
    """Policies 0 and 1 with their trainings, evaluated on three questions each, and their comparison."""
    made = []
    for policy in (0, 1):
        history = [{"step": step, "loss": loss} for step, loss in ((1, 0.75), (2, 0.5), (3, 0.25))]
        trained = _stage(store, ("sft", "train")[policy], policy or None, f"{name}-t{policy}", {})
        (trained / "log.json").write_text(json.dumps({"history": history}))
        records = [
            dataclasses.replace(
                trajectory(f"t{n}", "Ostar" if policy or n == 0 else "Vell", name=f"t{n}@{policy}"),
                policy=f"p{policy}",
                answers=["Ostar"] if n or name == NAME else ["Ostar", "Os"],
            )
            for n in range(3)
        ]
        directory = _stage(
            store, "evaluate-policy", policy, f"{name}-e{policy}", {"policy": f"{name}-t{policy}"}
        )
        questions = {
            r.question_id: Question(r.question_id, r.dataset, r.question, r.answers, r.hop)
            for r in records
        }
        write_measured(directory, records, questions, split="test", seconds={"total": 1.0})
        made.append(directory)
    merged = _stage(store, "evaluate", None, f"{name}-m", {})
    merge_policies(dict(zip(("sft", "round-1"), made, strict=True)), merged)


def _scored(number: int, index: int, better: bool) -> Trajectory:
    """Trajectory ``index`` of a round: two samples for each of four questions."""
    question, right = index // 2, index % 2 == 0 or (better and number == 2)
    document = HOSTILE if index < 2 else "Vell is a harbour city on the river Ime."
    record = trajectory(
        f"q{question}",
        "Ostar" if right else "Vell",
        steps=1 + index % 2,
        document=document,
        dataset=("musique", "nq")[index // 4],
        name=f"q{question}/{index % 2}@{number}",
        rewards={
            "outcome": float(right),
            "format": 1.0,
            "process": 0.0 if question in (0, 2) else index / 7,  # most are no short decimals
            "total": 1.0 + float(right) + index / 8,
            "memory": {"subquery": [0.25], "context": [0.5], "summary": [0.75]},
        },
    )
    record.policy, record.sample = f"p{number - 1}", index % 2
    record.hop = "single" if question < 2 else "multi"
    record.answers.append("Os" * 200)  # a word that is wider than a page
    if index == MALFORMED:
        record.format_ok, record.format_error = False, "expected 'Summary:' at offset 8"
    for step in record.steps:
        step.context.append(ContextItem("triplet", "c1:1", "", "Vell country Ostar", 0.25))
    return tokenized(record)


@cache
def _codec() -> Tokenizer:
    codec: Tokenizer = Tokenizer.from_file(str(TINY_READER / "tokenizer.json"))
    return codec


def tokenized(record: Trajectory) -> Trajectory:
    """The trajectory with the tokens of the tiny reader, span by span."""
    codec = _codec()
    ids: list[int] = []
    spans: list[Span] = []
    for start, end, writer in record.spans:
        part = codec.encode(record.output[start:end], add_special_tokens=False).ids
        spans.append((len(ids), len(ids) + len(part), writer))
        ids += part
    inserted = {
        n for start, end, writer in spans if writer == "observation" for n in range(start, end)
    }
    logprobs = [None if n in inserted else -3.0 for n in range(len(ids))]
    return dataclasses.replace(record, token_ids=ids, token_spans=spans, logprobs=logprobs)


def _pair(chosen: Trajectory, rejected: Trajectory, number: int) -> Pair:
    return dataclasses.replace(
        preference_pair("easy" if number == 1 else "hard", chosen, rejected, number),
        policy=chosen.policy,
        chosen_ids=chosen.token_ids,
        rejected_ids=rejected.token_ids,
        chosen_spans=chosen.token_spans,
        rejected_spans=rejected.token_spans,
    )


def _judged(store: Path, number: int, name: str, records: Sequence[Trajectory]) -> None:
    directory = _stage(store, "judge", number, f"{name}-j{number}", {})
    verdicts = [
        Verdict(record.trajectory_id, 0, "over", "yes" if n == 0 else "no", "a judge", f"key{n}")
        for n, record in enumerate(records)
    ]
    write_parquet(directory / VERDICTS, verdicts, Verdict)
    calls = [
        CallRecord(
            key=verdict.key, kind="over", verdict=verdict.verdict, fault="", model="a judge",
            query="Where is Vell?", answer="Ostar", conclusion="Ostar.",
            prompt=f"Is this needed? {HOSTILE}", reply=f"The verdict is {verdict.verdict}.",
        )
        for verdict in verdicts
    ]  # fmt: skip
    write_parquet(directory / CALLS, calls, CallRecord)


def _knowledge(store: Path, name: str) -> None:
    corpus = _stage(store, "corpus", None, f"{name}-corpus", {})
    chunks = [Chunk("c1", "Vell", HOSTILE, "d1"), Chunk("c2", "Ime", "The Ime is a river.", "d2")]
    write_parquet(corpus / "chunks.parquet", chunks, Chunk)
    graph = _stage(store, "graph", None, f"{name}-graph", {})
    facts = [Triplet("c1:1", "Vell", "country", "Ostar", "c1")]
    write_parquet(graph / "triplets.parquet", facts, Triplet)
    questions = _stage(store, "questions-sampling", None, f"{name}-q", {})
    records = [
        Question(f"q{n}", "musique", "Which country?", ["Ostar"], "multi", hops=2 + n % 2)
        for n in range(4)
    ]
    write_parquet(questions / "questions.parquet", records, Question)


def _stage(
    store: Path,
    stage: str,
    number: int | None,
    fingerprint: str,
    inputs: dict[str, str],
    trajectories: Sequence[Trajectory] = (),
) -> Path:
    directory = store / stage / fingerprint
    directory.mkdir(parents=True)
    if trajectories:
        write_scored(directory / "trajectories.parquet", trajectories)
    key: dict[str, Any] = {
        "stage": stage, "version": 1, "settings": {}, "files": {}, "inputs": inputs, "round": number,
    }  # fmt: skip
    manifest = {"fingerprint": fingerprint, "key": key, "counts": {"rows": 1}, "files": {}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory
