"""Peak memory of the stages and commands that read and write trajectories, by their number.

``python -m benchmarks.trajectories COUNT FOLDER`` writes generated trajectories of realistic size
(8 per question, about 1,200 characters and 400 tokens each) below FOLDER and prints one line of
JSON per stage with the figures of `Measured`, each from a separate process. If FOLDER is followed
by names of stages, only these stages are measured. ``commands`` stands for all commands, which read
the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_process import Measured, run_measured
from pipeline.config import Config
from pipeline.core.record_io import write_parquet
from pipeline.core.records import ContextItem, Question, Span, Step, TokenCounts, Trajectory
from pipeline.core.verdicts import Verdict
from pipeline.engine.context import StageContext
from pipeline.engine.files.checkpoints import write_tables
from pipeline.methods.tearag.reward import TeaRagRewards

SAMPLES = 8
DISTINCT = 8_000  # trajectories that differ in more than their ids
_FILE = "trajectories.parquet"
_VOCABULARY = 3_000  # ids that the tokenizer of the tiny reader has


def trajectory(question: int, sample: int) -> Trajectory:
    """A generated trajectory of three steps; one in three has the right answer."""
    rng = random.Random(question * SAMPLES + sample)
    steps = []
    for number in range(3):
        words = " ".join(f"{rng.choice(_WORDS)}{rng.randrange(1000)}" for _ in range(26))
        context = [ContextItem("chunk", f"c{rng.randrange(10**6)}", "Title", words, rng.random())]
        steps.append(
            Step(["entity"], f"Who is {number} of {question}?", context, f"It is {words[:40]}.")
        )
    output = "".join(f"{step.subquery}{step.context[0].text}{step.summary}" for step in steps)
    right = rng.random() < 1 / 3
    token_spans: list[Span] = [(0, 100, "model"), (100, 300, "observation"), (300, 400, "model")]
    total = len(output)
    spans: list[Span] = [
        (0, total // 4, "model"),
        (total // 4, total // 2, "observation"),
        (total // 2, total, "model"),
    ]
    return Trajectory(
        trajectory_id=f"q{question}/{sample}@0123456789ab",
        question_id=f"q{question}",
        dataset=("nq", "musique")[question % 2],
        question=f"Who is the third of {question}?",
        hop=("single", "multi")[question % 2],
        answers=["Ann"],
        evidence=["Title: a fact", "Title: another fact"],
        grammar="tearag",
        output=output,
        policy="0123456789abcdef",
        sample=sample,
        spans=spans,
        prompt_ids=[rng.randrange(_VOCABULARY) for _ in range(60)],
        token_ids=[rng.randrange(_VOCABULARY) for _ in range(400)],
        token_spans=token_spans,
        logprobs=[None if 100 <= token < 300 else -round(rng.random(), 6) for token in range(400)],
        steps=steps,
        answer="Ann" if right else "Bo",
        format_ok=rng.random() < 0.9,
        tokens=TokenCounts(200, 200, [70, 70, 60]),
        rewards={
            "outcome": float(right),
            "format": 1.0,
            "process": rng.random(),
            "total": rng.random(),
        },
    )


_WORDS = ["river", "lives", "house", "north", "queen", "paper"]


def generate(count: int, folder: Path) -> None:
    """Write the inputs of all stages: questions, sampled and scored trajectories, verdicts.

    Above `DISTINCT` trajectories, copies follow that differ in their ids.
    """
    sampled = [trajectory(n // SAMPLES, n % SAMPLES) for n in range(min(count, DISTINCT))]
    verdicts = [
        Verdict(item.trajectory_id, step, "over", "no", "judge", f"{n:032x}")
        for n, item in enumerate(sampled)
        for step in range(len(item.steps))
    ]
    questions = [
        Question(item.question_id, item.dataset, item.question, item.answers, item.hop)
        for item in sampled[::SAMPLES]
    ]
    copies = -(-count // DISTINCT)
    ids, types = ("trajectory_id", "question_id"), {"rewards": TeaRagRewards}
    _write_copies(folder / "score-1" / _FILE, sampled, ids, copies, types)
    _write_copies(folder / "judge" / "verdicts.parquet", verdicts, ("id",), copies)
    path = folder / "questions" / "questions.parquet"
    _write_copies(path, questions, ("question_id",), copies)


def _write_copies(
    path: Path, records: Sequence[Any], ids: Sequence[str], copies: int, types: Any = None
) -> None:
    """Write the records ``copies`` times; ``types`` as in `write_parquet`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    kind = type(records[0])
    write_parquet(path, records, kind, types)
    one = pq.read_table(path)

    def tables() -> Iterator[pa.Table]:
        for number in range(copies):
            table = one
            for name in ids:
                place = table.schema.get_field_index(name)
                renamed = pc.binary_join_element_wise(f"{number}-", table[name], "")
                table = table.set_column(place, name, renamed)
            yield table

    write_tables(path, tables(), kind, types)


def _context(folder: Path, stage: str) -> StageContext:
    output = folder / "outputs" / stage
    output.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Any] = {
        "name": "memory",
        "data": {},
        "corpus": {"files": [{"path": "x"}]},
        "graph": {"source": "annotated", "path": "x"},
        "index": {"embedder": {"model": "x"}},
        "retrieval": {"reranker": {"kind": "biencoder"}},
        "model": {"base": "x"},
        "prompt": {"system": "S"},
        "sft_data": {"sizes": {1: 1}},
        "sft": {"learning_rate": 0.1, "batch_size": 1},
        "dpo": {"learning_rate": 0.1, "batch_size": 1},
    }
    return StageContext(
        config=Config.model_validate(settings),
        stage=stage,
        output=output,
        checkpoint_dir=folder / "outputs" / f"{stage}.partial",
        inputs={path.name: path for path in folder.iterdir() if path.is_dir()}
        | {"score": folder / "score-1", "sample": folder / "score-1", "paths": folder / "score-1"},
        round=1,
    )


def _end_of_sample(folder: Path) -> None:
    """From the checkpoints of all questions to ``trajectories.parquet``."""
    from pipeline.core.record_io import iterate_records
    from pipeline.engine.files.rollout_checkpoints import RolloutCheckpoints, RolloutTimer

    class NoEngine:
        seconds = 0.0

    questions = folder / "questions" / "questions.parquet"
    names = [question.question_id for question in iterate_records(questions, Question)]
    context = _context(folder, "sample")
    checkpoints = RolloutCheckpoints(context.checkpoint_dir, names, samples=SAMPLES, batch=64)
    timer = RolloutTimer(0.0, NoEngine(), None, {})  # type: ignore[arg-type]
    if checkpoints.remaining():
        for item in iterate_records(folder / "score-1" / _FILE, Trajectory):
            checkpoints.add(item, timer)
        checkpoints.flush(timer)
    write_parquet(context.output / _FILE, checkpoints.read(), Trajectory)


def _score(folder: Path) -> None:
    from pipeline.core.similarity import lexical
    from pipeline.methods.tearag.method import METHOD, knowledge_scorer
    from tasks.score import score_file

    score_file(_context(folder, "score"), knowledge_scorer(lexical), METHOD.terms, 512)


def _pair(folder: Path) -> None:
    from tasks.pair import run

    run(_context(folder, "pair"))


def _judge(folder: Path) -> None:
    from pipeline.core.content_cache import digest
    from pipeline.judges.cases import Judge, JudgeCall
    from pipeline.judges.closed_book import ClosedBookAnswer
    from tasks.judge import StepsOfFile, judge_to

    class NoJudge(Judge):
        model = "none"

        def decide(self, cases: Any) -> list[JudgeCall]:
            return [JudgeCall(digest(str(case)).hex(), "no", "none") for case in cases]

    context = _context(folder, "judge")
    judge_to(
        context.output,
        context.checkpoint_dir,
        StepsOfFile(folder / "score-1" / _FILE),
        lambda queries: {query: ClosedBookAnswer("Ann") for query in queries},
        NoJudge(),
        NoJudge(),
        ceiling=1.0,
    )


def _evaluate(folder: Path) -> None:
    """Measuring and merging two policies; the trajectories of one question share its id."""
    from pipeline.core.record_io import iterate_records
    from pipeline.evaluation.measured import merge_policies, write_measured

    class OneQuestion(dict[str, Question]):
        def __missing__(self, key: str) -> Question:
            return Question(key, "nq", "?", ["Ann"], "multi")

    directories = {}
    for policy in ("sft", "round-1"):
        output = folder / "outputs" / policy
        output.mkdir(parents=True, exist_ok=True)
        source = iterate_records(folder / "score-1" / _FILE, Trajectory)
        distinct = (_with_own_question(item) for item in source)
        write_measured(output, distinct, OneQuestion(), split="test", seconds={})
        directories[policy] = output
    merge_policies(directories, folder / "outputs" / "evaluate")


def _with_own_question(item: Trajectory) -> Trajectory:
    item.question_id = item.trajectory_id
    return item


def _report(folder: Path) -> None:
    from pipeline.look.report import recall_section as recall
    from pipeline.look.report.data import pair_kinds
    from pipeline.look.report.rewards_section import reward_terms
    from pipeline.methods import method

    inputs = {"score-1": folder / "score-1", "pair-1": folder / "outputs" / "pair"}
    inputs["questions-sampling"] = folder / "questions"
    reward_terms(folder / "score-1", method("tearag").reward_titles)
    recall.values(inputs, "test")
    pair_kinds(inputs)


STAGES: dict[str, Callable[[Path], None]] = {
    "sample": _end_of_sample,
    "score": _score,
    "pair": _pair,
    "judge": _judge,
    "evaluate": _evaluate,
    "report": _report,
}


_TOKENIZER = Path(__file__).parent.parent / "data" / "tiny_reader"
# The words after ``steep``; FILE stands for the trajectories, LAST for one of the last questions.
COMMANDS: dict[str, Sequence[str]] = {
    "steep score": ("score", "FILE", "--output", os.devnull),
    "steep pair": ("pair", "FILE", "--output", os.devnull),
    "steep parse": ("parse", "FILE", "--output", os.devnull),
    "steep metrics": ("metrics", "FILE", "--output", os.devnull),
    "steep failures": ("failures", "FILE", "--output", os.devnull),
    "steep mask": ("mask", "FILE", "--tokenizer", str(_TOKENIZER), "--output", os.devnull),
    "steep view": ("view", "FILE", "--id", "LAST"),
}


_MISMATCH = "steep mask"  # its status is 1, because the generated tokens do not match the texts


def _command(name: str, folder: Path) -> None:
    import pyarrow.parquet as pq

    from pipeline.cli.app import app

    path = folder / "score-1" / _FILE
    last = (pq.read_metadata(path).num_rows - 1) // DISTINCT
    place = {"FILE": str(path), "LAST": f"{last}-q0"}
    words = [place.get(word, word) for word in COMMANDS[name]]
    with contextlib.redirect_stdout(sys.stderr):
        status = app(words, standalone_mode=False)
    if status not in (None, 0) and name != _MISMATCH:
        raise SystemExit(f"{name} ended with status {status}")


def main(arguments: list[str]) -> None:
    """Measure in separate processes, or, with the name of one stage first, run it in this one."""
    first, place, *names = arguments
    folder = Path(place)
    if first in STAGES or first in COMMANDS:
        if first in STAGES:
            _context(folder, first)  # imports what every stage needs
        with Measured() as spent:
            if first in STAGES:
                STAGES[first](folder)
            else:
                _command(first, folder)
        print(json.dumps(spent.figures))
        return
    if not (folder / "judge" / "verdicts.parquet").exists():
        generate(int(first), folder)
    chosen = [name for word in names for name in (COMMANDS if word == "commands" else (word,))]
    for name in chosen or STAGES:
        figures = run_measured("benchmarks.trajectories", name, folder)
        print(json.dumps({"stage": name, "trajectories": int(first), **figures}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
