"""Stage ``sample``: R trajectories per question of one round (TeaRAG, arXiv 2511.05385, 4.3.2).

Input: the questions of stage ``questions-sampling``, and the policy that samples. Output:
``trajectories.parquet``, ``timing.json`` (seconds and generated tokens) and ``stops.json``
(trajectories by stop reason).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pipeline.core.atomic import write_json
from pipeline.core.errors import InputError
from pipeline.core.input_files import read_json
from pipeline.core.record_io import read_records, write_parquet
from pipeline.core.records import Question, Trajectory
from pipeline.run.context import StageContext
from pipeline.stages.files.shards import added, joined_trajectories, shard_counts, shard_directories
from pipeline.stages.files.trajectory_columns import FILE
from pipeline.stages.policy_rollout import roll_out_policy

_STOPS, _TIMING = "stops.json", "timing.json"


def run(context: StageContext) -> dict[str, int]:
    """Sample ``inputs["policy"]`` over this shard of the sampling questions; returns counts.

    Raises InputError when there are no questions, and what `roll_out_policy` raises.
    """
    path = context.inputs["questions"] / "questions.parquet"
    all_questions = read_records(path, Question)
    if not all_questions:
        raise InputError.at(path, None, "no questions to sample; name files under data.sampling")
    questions = all_questions[context.shard :: context.shards]
    trajectories, seconds = roll_out_policy(
        context,
        questions,
        context.inputs["policy"],
        temperature=context.config.sampling.temperature,
        samples=context.config.sampling.samples,
    )
    stops: Counter[str] = Counter()
    generated = 0

    def counted() -> Iterator[Trajectory]:
        nonlocal generated
        for trajectory in trajectories:
            stops[trajectory.stop] += 1
            generated += trajectory.tokens.thinking
            yield trajectory

    write_parquet(context.output / FILE, counted(), Trajectory)
    write_json(context.output / _TIMING, {**seconds, "generated_tokens": generated})
    write_json(context.output / _STOPS, dict(sorted(stops.items())))
    print(f"{generated:,} generated tokens; stop reasons: {dict(stops.most_common())}")
    context.work["questions"] = len(questions)
    return {"questions": len(questions), "trajectories": stops.total()}


def merge(context: StageContext) -> dict[str, int]:
    """Join the trajectories of the shards, and add up their seconds and counts.

    Raises StoreError when a trajectory is missing or occurs twice.
    """
    joined = joined_trajectories(context, samples=context.config.sampling.samples)
    write_parquet(context.output / FILE, joined, Trajectory)
    shards = shard_directories(context)
    stops = added([read_json(shard / _STOPS) for shard in shards])
    write_json(context.output / _STOPS, dict(sorted(stops.items())))
    write_json(context.output / _TIMING, added([read_json(shard / _TIMING) for shard in shards]))
    return shard_counts(context)
