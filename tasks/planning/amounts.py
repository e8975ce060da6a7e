"""What the work of each stage is proportional to, in this run and in an earlier output.

A `driver` is one amount of a stage: the trajectories that it samples or scores, the passes over
examples that it trains, the chunks that it reads. Everything else that the stage does (tokens, judge
calls, bytes, seconds after its start) is scaled with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pipeline.config import for_round
from tasks.base import StageTask
from tasks.planning.driver import Driver, Known, Number
from tasks.planning.embedded import embedded_before
from tasks.planning.measured import Earlier, Measured
from tasks.planning.questions import question_count
from tasks.questions import SPLITS
from tasks.sharding import ShardedTask, ShardTask

_MERGED = "merged_"  # before the name of what a stage has joined from its shards
# Rows that other stages read, whatever made them.
_ROWS = ("entities", "triplets", "hyperedges")


def driver(task: StageTask) -> Driver:
    """What the work of a task is proportional to; stages without a rule take as long as before.

    A shard does its share of the stage's work, so each tells what the other takes. The stage that joins
    shards does other work.
    """
    whole = task.stage.removesuffix("-shard")
    rule = DRIVERS.get(whole, CONSTANT)
    if isinstance(task, ShardTask):
        count = task.shard_count

        def expected(task: StageTask, known: Known) -> Number:
            number = rule.expected(task, known)
            return None if number is None else number / count

        return replace(rule, expected=expected, measured=_undivided(rule), stages=(whole,))
    if not isinstance(task, ShardedTask):
        return rule
    if task.divided:
        merged = f"{_MERGED}{rule.name}"
        return Driver(merged, rule.expected, lambda found, _: found.amounts.get(merged))
    return replace(rule, measured=_undivided(rule), stages=(f"{whole}-shard",))


def _undivided(rule: Driver) -> Callable[[Measured, Earlier], Number]:
    """The amount of an output that was not joined from shards."""

    def measured(found: Measured, earlier: Earlier) -> Number:
        return None if _is_joined(found) else rule.measured(found, earlier)

    return measured


def _is_joined(found: Measured) -> bool:
    return any(name.startswith(_MERGED) for name in found.amounts)


def rows_of_whole(task: StageTask, known: Known, amount: float) -> dict[str, float]:
    """Rows of a stage that joins shards, by an earlier output of the stage in one piece.

    Empty when there is none, or the stage does not join shards.
    """
    if not (isinstance(task, ShardedTask) and task.divided):
        return {}
    rule = DRIVERS.get(task.stage, CONSTANT)
    for found in known.earlier.of(task.stage):
        measured = None if _is_joined(found) else measured_amount(rule, found, known.earlier)
        if measured:
            rows = {name: found.amounts[name] for name in _ROWS if name in found.amounts}
            return {name: value * amount / measured for name, value in rows.items()}
    return {}


def measured_amount(rule: Driver, found: Measured, earlier: Earlier) -> Number:
    """The amount of an earlier output; None when its settings have another shape than today's."""
    try:
        return rule.measured(found, earlier)
    except (KeyError, TypeError, ValueError):
        return None


def expected_rows(
    task: StageTask, amount: float, found: Measured | None = None
) -> dict[str, float]:
    """Rows of a stage that follow from its settings, or from the amount of its work.

    They are the training examples of ``sft-data``, and what joined shards hold. ``found`` is the output to
    go by, which may have had fewer examples than were asked for.
    """
    if task.stage != "sft-data":
        name = driver(task).name
        return {name.removeprefix(_MERGED): amount} if name.startswith(_MERGED) else {}
    asked = _asked(task.settings.sft_data.model_dump(mode="json"))
    if found is None:
        return {"train": asked}
    then, block = found.amounts.get("train", 0.0), found.settings.get("sft_data")
    share = min(then / _asked(block), 1.0) if isinstance(block, Mapping) else 1.0
    return {"train": asked * share}


def _asked(block: Mapping[str, Any]) -> float:
    """The training examples that a block ``sft_data`` asks for, at least 1."""
    memory = block.get("memory") or {}
    return float(sum(block["sizes"].values()) + memory.get("rehearsed", 0))


def _amount(name: str) -> Callable[[Measured, Earlier], Number]:
    return lambda found, _: found.amounts.get(name)


def _upstream(source: str, name: str) -> Callable[[StageTask, Known], Number]:
    return lambda task, known: known.of(task, name, source)


def _own_or_input(name: str, source: str) -> Callable[[Measured, Earlier], Number]:
    """An amount of an output, or of its input where older outputs do not have it."""

    def measured(found: Measured, earlier: Earlier) -> Number:
        if name in found.amounts:
            return found.amounts[name]
        below = earlier.find(found.inputs.get(source, ""))
        return None if below is None else below.amounts.get(name)

    return measured


def _sampled(task: StageTask, known: Known) -> Number:
    questions = question_count(task, "sampling", known.earlier)
    if questions is None:
        return None
    return questions * task.settings.sampling.samples


def _evaluated(task: StageTask, known: Known) -> Number:
    return question_count(task, task.settings.evaluation.split, known.earlier)


def _all_trajectories(task: StageTask, known: Known) -> Number:
    found = [
        known.amounts.get(upstream.task_id, {}).get("trajectories")
        for upstream in task.upstream().values()
    ]
    return sum(number for number in found if number is not None) or None


def _measured_trajectories(found: Measured, earlier: Earlier) -> Number:
    inputs = [earlier.find(fingerprint) for fingerprint in found.inputs.values()]
    return sum(below.amounts.get("trajectories", 0) for below in inputs if below) or None


def _world_records(sizes: Mapping[str, Any]) -> float:
    return float(sum(size for name, size in sizes.items() if name not in ("seed", "famous_share")))


def _expected_records(task: StageTask, known: Known) -> Number:
    world = task.settings.data.closed_world
    return None if world is None else _world_records(world.model_dump(mode="json"))


def _measured_records(found: Measured, earlier: Earlier) -> Number:
    sizes = found.settings.get("data.closed_world")
    return _world_records(sizes) if isinstance(sizes, Mapping) else None


def _documents(task: StageTask, known: Known) -> Number:
    """Documents of the closed world, or of an earlier corpus of the same files."""
    settings = task.settings
    if settings.data.closed_world is not None:
        return float(settings.data.closed_world.documents)
    paths = [file.path for file in settings.corpus.files]
    for found in known.earlier.of("corpus"):
        if all(path in found.files for path in paths) and all(
            found.files[path] == task.key.files.get(path) for path in paths
        ):
            return found.amounts.get("documents")
    return None


def _passes(task: StageTask, known: Known) -> Number:
    examples = known.of(task, "train", "sft-data")
    return None if examples is None else examples * task.settings.sft.epochs


def _measured_passes(found: Measured, earlier: Earlier) -> Number:
    examples, block = found.amounts.get("examples"), found.settings.get("sft")
    if examples is None or not isinstance(block, Mapping):
        return None
    return examples * float(block["epochs"])


def _round_passes(task: StageTask, known: Known) -> Number:
    settings = task.settings
    if settings.objective == "grpo":
        assert settings.grpo is not None  # the configuration refuses the objective without it
        records, epochs = known.of(task, "trajectories", "score"), settings.grpo.epochs
    else:
        records = known.of(task, "pairs", "pair")
        epochs = for_round(settings.dpo.round_epochs, task.round_number or 1)
    return None if records is None else records * epochs


def _measured_round_passes(found: Measured, earlier: Earlier) -> Number:
    amounts, settings = found.amounts, found.settings
    if "grpo" in settings and "paths" in amounts:
        read = sum(amounts.get(name, 0) for name in ("paths", "left_out", "over_long"))
        return read * float(settings["grpo"]["epochs"])
    if "dpo" in settings and "pairs" in amounts:
        read = sum(amounts.get(name, 0) for name in ("pairs", "identical", "over_long"))
        return read * float(settings["dpo"]["round_epochs"])
    return None


_TABLES = ("chunks", "entities", "triplets", "hyperedges")


def _texts(task: StageTask, known: Known) -> Number:
    tables = {"corpus": ("chunks",), "graph": ("entities", "triplets")}
    if task.stage == "hyper-index":
        tables = {"graph": ("entities", "hyperedges")}
    found = [known.of(task, name, source) for source, names in tables.items() for name in names]
    return None if None in found else sum(number for number in found if number is not None)


def _measured_texts(found: Measured, earlier: Earlier) -> Number:
    return sum(found.amounts.get(name, 0) for name in _TABLES) or None


def _was_embedded(found: Measured) -> bool:
    new = found.amounts.get("embedded_texts", found.amounts.get("newly embedded"))
    texts = sum(found.amounts.get(name, 0) for name in _TABLES)
    return new is not None and new < texts / 2


_INDEX = Driver(
    "texts",
    _texts,
    _measured_texts,
    cached=lambda task, known: embedded_before(task, known.earlier),
    was_cached=_was_embedded,
)


def _questions(split: str) -> Driver:
    return Driver(
        "questions",
        lambda task, known: question_count(task, split, known.earlier),
        _amount("questions"),
    )


CONSTANT = Driver("runs", lambda task, known: 1.0, lambda found, _: 1.0)
DRIVERS: Mapping[str, Driver] = {
    "world": Driver("records", _expected_records, _measured_records),
    "corpus": Driver("documents", _documents, _amount("documents")),
    **{f"questions-{split}": _questions(split) for split in SPLITS},
    "graph": Driver("chunks", _upstream("corpus", "chunks"), _own_or_input("chunks", "corpus")),
    "hypergraph": Driver(
        "chunks", _upstream("corpus", "chunks"), _own_or_input("chunks", "corpus")
    ),
    "index": _INDEX,
    "hyper-index": _INDEX,
    "sft-data": Driver(
        "questions",
        lambda task, known: question_count(task, "sft", known.earlier),
        _amount("questions"),
    ),
    "sft": Driver("passes", _passes, _measured_passes, constant_size=True),
    "sample": Driver("trajectories", _sampled, _amount("trajectories")),
    "judge": Driver(
        "trajectories", _upstream("paths", "trajectories"), _own_or_input("trajectories", "paths")
    ),
    "judge-policy": Driver(
        "trajectories", _upstream("paths", "trajectories"), _own_or_input("trajectories", "paths")
    ),
    "score": Driver(
        "trajectories", _upstream("sample", "trajectories"), _amount("trajectories")
    ),
    "pair": Driver(
        "trajectories", _upstream("score", "trajectories"), _amount("trajectories")
    ),
    "train": Driver("passes", _round_passes, _measured_round_passes, constant_size=True),
    "evaluate-policy": Driver("trajectories", _evaluated, _amount("trajectories")),
    "evaluate": Driver("trajectories", _all_trajectories, _measured_trajectories),
    "report": Driver("trajectories", _all_trajectories, _measured_trajectories),
}  # fmt: skip
